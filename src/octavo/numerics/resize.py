"""Positions that a resized image is read at, as TVM's resize2d has them, and the oracle of bilinear resizing. No TVM here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .quant_params import INTEGER_RANGE

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

    `fractions` are in [0; 2**11], in units of 2**-11 pixels.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    fractions: tuple[int, ...]


def linear_taps(extent: int, out_extent: int, mode: str) -> LinearTaps:
    """Return the taps of one axis; outside the image its border continues."""
    position = np.clip(source_positions(extent, out_extent, mode), 0, np.float32(extent - 1))
    first = np.minimum(np.floor(position).astype(np.int64), extent - 1)
    fractions = np.rint((position - first.astype(np.float32)) * np.float32(1 << FRACTION_BITS)).astype(np.int64)
    second = np.minimum(first + 1, extent - 1)
    return LinearTaps(first=tuple(first.tolist()), second=tuple(second.tolist()), fractions=tuple(fractions.tolist()))


def resize_bilinear(
    x: npt.NDArray[np.integer], rows: LinearTaps, columns: LinearTaps, *, rounding: Literal["half_up", "half_even"] = "half_up"
) -> npt.NDArray[np.integer]:
    """Return 8-bit [batch, height, width, channels] resized; scale and zero point stay.

    Returns
    -------
    array
        Of x's dtype. Across: top = t0 * 2**11 + (t1 - t0) * fraction, and so the bottom row; down: the same of both, then a shift
        by 22 bits that rounds as `rounding` says. int32 holds everything: |x| <= 255 < 2**8, and 8 + 22 bits are less than 31.

    Notes
    -----
    "half_up" is what XNNPACK's s8-ibilinear and u8-ibilinear compute, which LiteRT runs.
    """
    values = x.astype(np.int64)

    def across(line: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        left, right = line[:, :, list(columns.first)], line[:, :, list(columns.second)]
        return (left << FRACTION_BITS) + (right - left) * np.asarray(columns.fractions)[None, None, :, None]

    top, bottom = across(values[:, list(rows.first)]), across(values[:, list(rows.second)])
    acc = (top << FRACTION_BITS) + (bottom - top) * np.asarray(rows.fractions)[None, :, None, None]
    shift = 2 * FRACTION_BITS
    half = 1 << (shift - 1)
    # Half to even: one less than half, and one more where the bit above is odd.
    addend = half if rounding == "half_up" else half - 1 + ((acc >> shift) & 1)
    low, high = INTEGER_RANGE[str(x.dtype)]
    return np.clip((acc + addend) >> shift, low, high).astype(x.dtype)
