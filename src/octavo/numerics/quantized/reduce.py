"""Oracles of reductions of quantized tensors over any axes, of arg-reductions, and of top-k. No TVM here."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier, quantize_multiplier
from ..rounding.requantize import requantize

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


def arg_reduce(x: Integers, axis: int, *, largest: bool) -> npt.NDArray[np.int64]:
    """Return along `axis` the place, from 0, of the largest (or the least) integer; the first where several are equal.

    Order among integers of one scale is order among the real values that they stand for.
    """
    return np.asarray(x.argmax(axis=axis) if largest else x.argmin(axis=axis), np.int64)


def top_k_indices(x: npt.NDArray[np.integer[Any]], count: int, *, axis: int = -1, largest: bool = True) -> npt.NDArray[np.int64]:
    """Return where the `count` greatest (or least) elements along `axis` are, the greatest (least) first.

    Of equal elements the first comes first, as in TFLite's TOPK_V2 and ONNX's TopK.
    """
    wide = x.astype(np.int64)
    order = np.argsort(-wide if largest else wide, axis=axis, kind="stable")
    return np.take(order, np.arange(count), axis=axis)


def mean_int16_multiplier(in_scale: float, out_scale: float, count: int) -> FixedPointMultiplier:
    """Return the factor from the sum of `count` integers to their mean: TFLite divides the mantissa, rounding it down."""
    mantissa, exponent = quantize_multiplier(float(np.float32(in_scale)) / float(np.float32(out_scale)))
    gained = min(count.bit_length() - 1, 32, 31 + exponent)
    mantissa, exponent = (mantissa << gained) // count, exponent - gained
    return FixedPointMultiplier(
        factor=np.asarray(mantissa << max(exponent, 0), np.int64),
        first=np.asarray(31, np.int64),
        second=np.asarray(max(-exponent, 0), np.int64),
        is_away=True,
    )


def mean_int16(
    x: npt.NDArray[np.int16],
    axes: tuple[int, ...],
    *,
    in_scale: float,
    out_scale: float,
    keepdims: bool = True,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized mean of int16 values over `axes`."""
    total = x.astype(np.int64).sum(axis=axes, keepdims=keepdims)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    return np.clip(mean_int16_multiplier(in_scale, out_scale, count).apply(total), qmin, qmax).astype(np.int16)
