"""Oracles of matrix multiplication in integers: by constant weights, and of two activations batch by batch. No TVM here."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..dynamic import centered_rows
from ..rounding.fixed_point import FixedPointMultiplier
from ..rounding.requantize import dequantize_accumulator, requantize
from .conv2d import IntegerArray, accumulator, centered

BATCH_MATMUL_MAX_INNER = (2**31 - 1) // 255**2
"""Longest sum of products of two 8-bit integers less their zero points that int32 holds whatever they are."""


def matmul_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.signedinteger]:
    """Return sum((x - x_zero_point) * (w - w_zero_point)) + bias, the accumulators of x @ w.

    Parameters
    ----------
    x
        8-bit or 16-bit (..., in_features).
    w
        8-bit (in_features, out_features).
    x_zero_point, w_zero_point, bias
        As in `conv2d_accumulate`, with out_features in place of channels.

    Returns
    -------
    array
        (..., out_features), of the dtype that `conv2d_accumulate` has.
    """
    return accumulator(centered(x, x_zero_point) @ centered(w, w_zero_point), bias, x)


def matmul(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
    multiplier: npt.ArrayLike | FixedPointMultiplier,
    zero_point: int = 0,
    qmin: int | None = None,
    qmax: int | None = None,
    out_dtype: str = "uint8",
    real_bias: npt.ArrayLike | None = None,
) -> IntegerArray:
    """Return the quantized matrix product, `out_dtype` (..., out_features).

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias
        As `matmul_accumulate` takes them.
    multiplier, zero_point, qmin, qmax, out_dtype, real_bias
        As `requantize` takes them; `multiplier` and `real_bias` are numbers or (out_features,).
    """
    acc = matmul_accumulate(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias)
    return requantize(acc, multiplier, zero_point, qmin, qmax, out_dtype, real_bias=real_bias)


def batch_matmul_accumulate(
    a: IntegerArray, b: IntegerArray, *, a_zero_point: int = 0, b_zero_point: int = 0
) -> npt.NDArray[np.signedinteger]:
    """Return (a - a_zero_point) @ (b - b_zero_point); the operands are those of `batch_matmul`."""
    if a.dtype.itemsize == 1 and a.shape[-1] > BATCH_MATMUL_MAX_INNER:
        raise ValueError(f"sums of {a.shape[-1]} products may exceed int32; at most {BATCH_MATMUL_MAX_INNER} are safe")
    return matmul_accumulate(a, b, x_zero_point=a_zero_point, w_zero_point=b_zero_point)


def batch_matmul(
    a: IntegerArray,
    b: IntegerArray,
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    multiplier: npt.ArrayLike | FixedPointMultiplier,
    zero_point: int = 0,
    qmin: int | None = None,
    qmax: int | None = None,
    out_dtype: str = "uint8",
) -> IntegerArray:
    """Return `requantize` of (a - a_zero_point) @ (b - b_zero_point).

    Parameters
    ----------
    a, b
        8-bit or 16-bit integers (..., rows, inner) and (..., inner, columns), whose other axes broadcast; inner is at most
        `BATCH_MATMUL_MAX_INNER` for 8 bits.
    multiplier, zero_point, qmin, qmax, out_dtype
        As `requantize` takes them; the multiplier is float32 a_scale * b_scale / out_scale, or that in fixed point.
    """
    acc = batch_matmul_accumulate(a, b, a_zero_point=a_zero_point, b_zero_point=b_zero_point)
    return requantize(acc, multiplier, zero_point, qmin, qmax, out_dtype)


def row_batch_matmul(
    a: npt.NDArray[np.float32], b: npt.NDArray[np.float32], *, low: float = -math.inf, high: float = math.inf
) -> npt.NDArray[np.float32]:
    """Return clamp(a @ b, low, high) of integers that are found when run: each row of a, and each column of b, has its own scale.

    Parameters
    ----------
    a, b
        float32 (..., rows, inner) and (..., inner, columns), whose other axes broadcast; inner is at most
        `BATCH_MATMUL_MAX_INNER`. A row or a column that holds NaN or infinity gives NaN, as in `numerics.dynamic`.
    """
    (left, row_scale), (right, column_scale) = centered_rows(a), centered_rows(b, -2)
    return dequantize_accumulator(left @ right, column_scale, np.float32(0), input_scale=row_scale, low=low, high=high)
