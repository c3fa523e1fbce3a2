"""Oracles of reductions of quantized tensors over any axes, of arg-reductions, and of top-k. No TVM here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier
from ..rounding.requantize import clamp, requantize

Integers = npt.NDArray[np.integer]


def reduce_sum(
    x: Integers,
    axes: tuple[int, ...],
    *,
    multiplier: float | FixedPointMultiplier,
    input_zero_point: int = 0,
    zero_point: int = 0,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
    stored_even: bool = False,
) -> Integers:
    """Return `requantize` of the sum of x - input_zero_point, without the axes.

    Parameters
    ----------
    x
        Integers of 8 or 16 bits, of any shape.
    axes
        Axes to sum over.
    multiplier
        float32 in_scale / out_scale for a sum; that divided by the number of summed elements, in float32, for a mean. In
        fixed point a mean has `mean_multiplier`.
    input_zero_point
        Of `x`.
    zero_point, qmin, qmax, dtype, stored_even
        Of the result, as `requantize` takes them.
    """
    acc = np.asarray((x.astype(np.int64) - input_zero_point).sum(axis=axes))
    return requantize(acc, multiplier, zero_point, qmin, qmax, dtype, stored_even=stored_even)


def reduce_extreme(
    x: Integers, axes: tuple[int, ...], *, largest: bool, qmin: int | None = None, qmax: int | None = None
) -> Integers:
    """Return the largest (or the least) integer over the axes, clamped to [qmin; qmax]; scale and zero point stay."""
    return clamp(x.max(axis=axes) if largest else x.min(axis=axes), qmin, qmax, str(x.dtype))


def arg_reduce(x: Integers, axis: int, *, largest: bool) -> npt.NDArray[np.int64]:
    """Return along `axis` the index of the largest (or the least) integer; the first where several are equal.

    Order among integers of one scale is order among the real values that they stand for.
    """
    return np.asarray(x.argmax(axis=axis) if largest else x.argmin(axis=axis), np.int64)


def top_k_indices(x: npt.NDArray[np.integer[Any]], count: int, *, axis: int = -1, largest: bool = True) -> npt.NDArray[np.int64]:
    """Return the indices of the `count` greatest (or least) elements along `axis`, the greatest (least) first.

    Of equal elements the first comes first, as in TFLite's TOPK_V2 and ONNX's TopK.
    """
    wide = x.astype(np.int64)
    order = np.argsort(-wide if largest else wide, axis=axis, kind="stable")
    return np.take(order, np.arange(count), axis=axis)
