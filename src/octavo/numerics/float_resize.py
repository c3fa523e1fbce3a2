"""Oracle of bilinear resizing in float32, as ONNX Runtime has it between DequantizeLinear and QuantizeLinear. No TVM here.

Resizing in integers is in `resize`; the two differ beside ties.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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

    Returns
    -------
    array
        Of x's dtype: clamp(rint(sum / out_scale) + zero_point, qmin, qmax), half to even. The sum is that of the four neighbours'
        (q - input_zero_point) * in_scale, each times the product of its weights: the upper row first, from left to right.
    """
    real = (x.astype(np.int32) - np.int32(input_zero_point)).astype(np.float32) * np.float32(in_scale)
    total: npt.NDArray[np.float32] | None = None
    for lines, down in ((rows.first, rows.first_weights), (rows.second, rows.second_weights)):
        for places, across in ((columns.first, columns.first_weights), (columns.second, columns.second_weights)):
            weights = np.asarray(down, np.float32)[:, None] * np.asarray(across, np.float32)
            term = weights[None, :, :, None] * real[:, list(lines)][:, :, list(places)]
            total = term if total is None else total + term
    assert total is not None
    steps = np.rint(total / np.float32(out_scale)).astype(np.float64)
    return np.clip(steps + zero_point, qmin, qmax).astype(x.dtype)
