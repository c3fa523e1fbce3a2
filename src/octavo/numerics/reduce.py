"""Oracles of reductions of quantized tensors over any axes, and of the places of their extremes. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .requantize import requantize

Integers = npt.NDArray[np.integer]


def reduce_sum(
    x: Integers,
    axes: tuple[int, ...],
    *,
    multiplier: float,
    input_zero_point: int,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
    stored_even: bool = False,
) -> Integers:
    """Return clamp(rint(float32(sum of x - input_zero_point) * multiplier) + zero_point), without the axes.

    Parameters
    ----------
    x
        8-bit, of any shape.
    axes
        Axes to sum over.
    multiplier
        float32 in_scale / out_scale for a sum; that divided by the number of summed elements, in float32, for a mean.
    input_zero_point
        Of `x`.
    zero_point, qmin, qmax, dtype, stored_even
        Of the result, as `requantize` takes them.
    """
    acc = (x.astype(np.int32) - np.int32(input_zero_point)).sum(axis=axes, dtype=np.int32)
    return requantize(np.asarray(acc), np.float32(multiplier), zero_point, qmin, qmax, dtype, stored_even=stored_even)


def reduce_extreme(x: Integers, axes: tuple[int, ...], *, largest: bool, qmin: int = 0, qmax: int = 255) -> Integers:
    """Return the largest (or the least) integer over the axes, clamped to [qmin; qmax]; scale and zero point stay."""
    return np.clip(x.max(axis=axes) if largest else x.min(axis=axes), qmin, qmax).astype(x.dtype)


def place_of_extreme(x: Integers, axis: int, *, largest: bool) -> npt.NDArray[np.int64]:
    """Return along `axis` the place, from 0, of the largest (or the least) integer; the first where several are equal.

    Order among integers of one scale is order among the real values that they stand for.
    """
    return np.asarray(x.argmax(axis=axis) if largest else x.argmin(axis=axis), np.int64)
