"""Oracle of bilinear resizing of int16 images in fixed point, as TFLite's reference kernel computes it. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .resize import LinearTaps

FIXED_FRACTION_BITS = 10
"""Bits of a weight; a result has twice as many digits to round away."""

_MODES = ("asymmetric", "align_corners", "half_pixel")


def fixed_taps(extent: int, out_extent: int, mode: str) -> LinearTaps:
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
    one = 1 << FIXED_FRACTION_BITS
    step = (one * extent + out_extent // 2) // out_extent
    if mode == "align_corners" and out_extent > 1:
        step = (one * (extent - 1) + (out_extent - 1) // 2) // (out_extent - 1)
    position = np.arange(out_extent, dtype=np.int64) * step
    if mode == "half_pixel":
        position += step // 2 - one // 2
    first = np.clip(position // one, 0, extent - 1)
    second = np.clip(-(-position // one), 0, extent - 1)
    fractions = np.where(first == second, 0, position - first * one)
    return LinearTaps(first=tuple(first.tolist()), second=tuple(second.tolist()), fractions=tuple(fractions.tolist()))


def resize_bilinear_int16(x: npt.NDArray[np.int16], rows: LinearTaps, columns: LinearTaps) -> npt.NDArray[np.int16]:
    """Return int16 [batch, height, width, channels] resized; scale and zero point stay, and results round half away from 0."""
    values = x.astype(np.int64)

    def across(line: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        left, right = line[:, :, list(columns.first)], line[:, :, list(columns.second)]
        return (left << FIXED_FRACTION_BITS) + (right - left) * np.asarray(columns.fractions)[None, None, :, None]

    top, bottom = across(values[:, list(rows.first)]), across(values[:, list(rows.second)])
    acc = (top << FIXED_FRACTION_BITS) + (bottom - top) * np.asarray(rows.fractions)[None, :, None, None]
    shift = 2 * FIXED_FRACTION_BITS
    return ((acc + (1 << (shift - 1)) - (acc < 0)) >> shift).astype(np.int16)
