"""Positions that a resized image is read at, as TVM's resize2d has them, and the oracles of bilinear resizing. No TVM here.

Bilinear resizing has three arithmetics: XNNPACK's of 8 bits and TFLite's of 16 bits in fixed point, ONNX Runtime's in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..rounding.requantize import clamp

FRACTION_BITS = 11
"""Bits of a bilinear weight, as in XNNPACK's 8-bit kernels."""

_EPSILON = np.float32(1e-5)


def source_positions(extent: int, out_extent: int, mode: str) -> npt.NDArray[np.float32]:
    """Return the position in the source, in pixels, of each pixel of the result along one axis.

    Parameters
    ----------
    mode
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric" or "tf_half_pixel_for_nn" (ValueError otherwise).
    """
    at = np.arange(out_extent, dtype=np.float32)
    scale = np.float32(extent) / np.float32(out_extent)
    half = np.float32(0.5)
    if mode == "half_pixel" or (mode == "pytorch_half_pixel" and out_extent > 1):
        return (at + half) * scale - half
    if mode == "pytorch_half_pixel":
        return np.zeros(out_extent, np.float32)
    if mode == "align_corners":
        return at * (np.float32(extent - 1) / np.float32(max(out_extent - 1, 1)))
    if mode == "asymmetric":
        return at * scale
    if mode == "tf_half_pixel_for_nn":
        return (at + half) * scale
    raise ValueError(f"coordinate transformation {mode!r} is none of those known here")


def nearest_indices(extent: int, out_extent: int, mode: str, rounding: str) -> tuple[int, ...]:
    """Return the index in the source of each pixel of the result along one axis.

    Parameters
    ----------
    mode
        As `source_positions` takes it.
    rounding
        "round" (half to even; "" means it too), "round_prefer_floor", "round_prefer_ceil", "floor" or "ceil" (ValueError
        otherwise). As in TVM, floor and ceil forgive 1e-5 of a pixel.
    """
    position = source_positions(extent, out_extent, mode)
    half = np.float32(0.5)
    rounded = {
        "": np.rint(position),
        "round": np.rint(position),
        "round_prefer_floor": np.ceil(position - half),
        "round_prefer_ceil": np.floor(position + half),
        "floor": np.floor(position + _EPSILON),
        "ceil": np.ceil(position - _EPSILON),
    }
    if rounding not in rounded:
        raise ValueError(f"rounding {rounding!r} is none of {', '.join(filter(None, rounded))}")
    return tuple(np.clip(rounded[rounding], 0, extent - 1).astype(int).tolist())


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearTaps:
    """The two pixels that each pixel of the result lies between along one axis, and its distance from the first.

    `fractions` are in [0; 2**bits], in units of 2**-bits pixels.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    fractions: tuple[int, ...]
    bits: int = FRACTION_BITS


def linear_taps(extent: int, out_extent: int, mode: str) -> LinearTaps:
    """Return the taps of one axis; outside the image its border continues."""
    position = np.clip(source_positions(extent, out_extent, mode), 0, np.float32(extent - 1))
    first = np.minimum(np.floor(position).astype(np.int64), extent - 1)
    fractions = np.rint((position - first.astype(np.float32)) * np.float32(1 << FRACTION_BITS)).astype(np.int64)
    second = np.minimum(first + 1, extent - 1)
    return LinearTaps(first=tuple(first.tolist()), second=tuple(second.tolist()), fractions=tuple(fractions.tolist()))


def resize_bilinear(
    x: npt.NDArray[np.integer],
    rows: LinearTaps,
    columns: LinearTaps,
    *,
    rounding: Literal["half_up", "half_even", "half_away"] = "half_up",
) -> npt.NDArray[np.integer]:
    """Return [batch, height, width, channels] of 8 or 16 bits resized; scale and zero point stay.

    Parameters
    ----------
    rows, columns
        Taps with as many bits: `linear_taps`, or `int16_linear_taps`.
    rounding
        "half_up" is what XNNPACK's s8-ibilinear and u8-ibilinear compute, which LiteRT runs; "half_away" what TFLite's reference
        kernel has for 16 bits.

    Returns
    -------
    array
        Of x's dtype. Across: top = t0 * 2**bits + (t1 - t0) * fraction, and so the bottom row; down: the same of both, then a
        shift by 2 * bits that rounds. int32 holds 8-bit images: |x| <= 255 < 2**8, and 8 + 22 bits are less than 31.
    """
    values, bits = x.astype(np.int64), rows.bits

    def across(line: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        left, right = line[:, :, list(columns.first)], line[:, :, list(columns.second)]
        return (left << bits) + (right - left) * np.asarray(columns.fractions)[None, None, :, None]

    top, bottom = across(values[:, list(rows.first)]), across(values[:, list(rows.second)])
    acc = (top << bits) + (bottom - top) * np.asarray(rows.fractions)[None, :, None, None]
    half = 1 << (2 * bits - 1)
    # Half to even: one less than half, and one more where the bit above is odd. Half away: one less for negative numbers.
    addend = {"half_up": half, "half_even": half - 1 + ((acc >> 2 * bits) & 1), "half_away": half - (acc < 0)}[rounding]
    return clamp((acc + addend) >> 2 * bits, None, None, str(x.dtype))


INT16_FRACTION_BITS = 10
"""Bits of a weight; a result has twice as many digits to round away."""

_MODES = ("asymmetric", "align_corners", "half_pixel")


def int16_linear_taps(extent: int, out_extent: int, mode: str) -> LinearTaps:
    """Return the taps of one axis, with fractions in units of 2**-10 pixels.

    Parameters
    ----------
    extent, out_extent
        Pixels of the source and of the result.
    mode
        "asymmetric", "align_corners" or "half_pixel" (ValueError otherwise).

    Notes
    -----
    The ratio of the extents is a fixed-point number of 10 digits, rounded half up, as TFLite has it: over a wide result its error
    adds up, and positions behind the image are its last pixel.
    """
    if mode not in _MODES:
        raise ValueError(f"coordinate transformation {mode!r} is none that 16-bit resizing in fixed point knows")
    one = 1 << INT16_FRACTION_BITS
    step = (one * extent + out_extent // 2) // out_extent
    if mode == "align_corners" and out_extent > 1:
        step = (one * (extent - 1) + (out_extent - 1) // 2) // (out_extent - 1)
    position = np.arange(out_extent, dtype=np.int64) * step
    if mode == "half_pixel":
        position += step // 2 - one // 2
    first = np.clip(position // one, 0, extent - 1)
    second = np.clip(-(-position // one), 0, extent - 1)
    fractions = np.where(first == second, 0, position - first * one)
    return LinearTaps(
        first=tuple(first.tolist()), second=tuple(second.tolist()), fractions=tuple(fractions.tolist()), bits=INT16_FRACTION_BITS
    )


_HALF = np.float32(0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTaps:
    """The two pixels that each pixel of the result lies between along one axis, and the float32 weight of each."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    first_weights: tuple[float, ...]
    second_weights: tuple[float, ...]


def float_taps(extent: int, out_extent: int, mode: str) -> FloatTaps:
    """Return the taps of one axis; outside the image its border continues.

    Parameters
    ----------
    mode
        "half_pixel", "pytorch_half_pixel", "align_corners" or "asymmetric" (ValueError otherwise).

    Notes
    -----
    Positions are quotients by the float32 factor out_extent / extent, as ONNX Runtime forms them (`upsamplebase.h`), where TVM
    multiplies by its inverse. At the border both taps are one pixel, with weights of a half.
    """
    at = np.arange(out_extent, dtype=np.float32)
    factor = np.float32(out_extent) / np.float32(extent)
    if factor == 1:
        position = at
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and out_extent > 1):
        position = (at + _HALF) / factor - _HALF
    elif mode == "pytorch_half_pixel":
        position = np.zeros(out_extent, np.float32)
    elif mode == "align_corners":
        position = at * np.float32(extent - 1) / np.float32(max(out_extent - 1, 1))
    elif mode == "asymmetric":
        position = at / factor
    else:
        raise ValueError(f"coordinate transformation {mode!r} is none of those known here")
    position = np.clip(position, 0, np.float32(extent - 1))
    first = position.astype(np.int32)
    second = np.minimum(first + 1, extent - 1)
    weights = [np.abs(position - other.astype(np.float32)) for other in (second, first)]
    first_weights, second_weights = (np.where(first == second, _HALF, weight) for weight in weights)
    return FloatTaps(
        first=tuple(first.tolist()),
        second=tuple(second.tolist()),
        first_weights=tuple(first_weights.tolist()),
        second_weights=tuple(second_weights.tolist()),
    )


def float_resize_bilinear(
    x: npt.NDArray[np.integer],
    rows: FloatTaps,
    columns: FloatTaps,
    *,
    in_scale: float,
    input_zero_point: int,
    out_scale: float,
    zero_point: int,
    qmin: int,
    qmax: int,
    cuts_off: bool = False,
) -> npt.NDArray[np.integer]:
    """Return [batch, height, width, channels] resized, every operation rounded to float32.

    Parameters
    ----------
    x
        Integers of 8 or 16 bits.
    in_scale, out_scale
        Positive finite scales; used as float32.
    input_zero_point, zero_point, qmin, qmax
        Of x, and of the result.
    cuts_off
        The quotient is cut off behind the point in place of rounded, as ONNX Runtime does in a Resize of integers (scale 1).

    Returns
    -------
    array
        Of x's dtype: clamp(rint(sum / out_scale) + zero_point, qmin, qmax), half to even. The sum is that of the four neighbours'
        (q - input_zero_point) * in_scale, each times the product of its weights: the upper row first, from left to right.
    """
    real = (x.astype(np.int32) - np.int32(input_zero_point)).astype(np.float32) * np.float32(in_scale)
    total: npt.NDArray[np.float32] | None = None
    for lines, down in ((rows.first, rows.first_weights), (rows.second, rows.second_weights)):
        for indices, across in ((columns.first, columns.first_weights), (columns.second, columns.second_weights)):
            weights = np.asarray(down, np.float32)[:, None] * np.asarray(across, np.float32)
            term = weights[None, :, :, None] * real[:, list(lines)][:, :, list(indices)]
            total = term if total is None else total + term
    assert total is not None
    steps = (np.trunc if cuts_off else np.rint)(total / np.float32(out_scale)).astype(np.float64)
    return clamp(steps + zero_point, qmin, qmax, str(x.dtype))
