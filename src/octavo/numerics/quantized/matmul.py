"""Oracles of matrix multiplication in integers: by constant weights, and of two activations batch by batch. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..rounding.requantize import Multiplier, requantize, requantize_int16
from .conv2d import IntegerArray, centered


def matmul_total(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.integer] | None = None,
) -> npt.NDArray[np.int64]:
    """Return the exact sums of `matmul_accumulate`, as int64; activations and bias may have any integer dtype."""
    total = (centered(x, x_zero_point) @ centered(w, w_zero_point)).astype(np.int64)
    if bias is not None:
        total = total + bias.astype(np.int64)
    return total


def matmul_accumulate(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int32] | None = None,
) -> npt.NDArray[np.int32]:
    """Return sum((x - x_zero_point) * (w - w_zero_point)) + bias, the int32 accumulators of x @ w.

    Parameters
    ----------
    x
        uint8 or int8 (..., in_features).
    w
        int8 or uint8 (in_features, out_features).
    x_zero_point, w_zero_point, bias
        As in `conv2d_accumulate`, with out_features in place of channels.

    Returns
    -------
    array
        int32 (..., out_features); a sum beyond int32 wraps.
    """
    return matmul_total(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias).astype(np.int32)


def matmul(
    x: IntegerArray,
    w: IntegerArray,
    *,
    x_zero_point: int,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int32] | None = None,
    multiplier: npt.ArrayLike,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    out_dtype: str = "uint8",
    real_bias: npt.ArrayLike | None = None,
) -> IntegerArray:
    """Return the quantized matrix product: `requantize` of `matmul_accumulate`.

    Parameters
    ----------
    x, w, x_zero_point, w_zero_point, bias
        As `matmul_accumulate` takes them.
    multiplier, zero_point, qmin, qmax, out_dtype, real_bias
        As `requantize` takes them; `multiplier` and `real_bias` are numbers or (out_features,).

    Returns
    -------
    array
        `out_dtype` (..., out_features).
    """
    acc = matmul_accumulate(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias)
    return requantize(acc, multiplier, zero_point, qmin, qmax, out_dtype, real_bias=real_bias)


def matmul_int16(
    x: npt.NDArray[np.int16],
    w: IntegerArray,
    *,
    x_zero_point: int = 0,
    w_zero_point: npt.ArrayLike = 0,
    bias: npt.NDArray[np.int64] | None = None,
    multiplier: Multiplier,
    zero_point: int = 0,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized product of int16 (..., in_features) by 8-bit (in_features, out_features); see `conv2d_int16`."""
    acc = matmul_total(x, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias)
    return requantize_int16(acc, multiplier, zero_point, qmin, qmax)


BATCH_MATMUL_MAX_INNER = (2**31 - 1) // 255**2
"""Longest sum of products of two 8-bit integers less their zero points that int32 holds whatever they are."""


def batch_matmul_accumulate(
    a: npt.NDArray[np.integer], b: npt.NDArray[np.integer], *, a_zero_point: int, b_zero_point: int
) -> npt.NDArray[np.int32]:
    """Return int32 (a - a_zero_point) @ (b - b_zero_point); the operands are those of `batch_matmul`."""
    if a.shape[-1] > BATCH_MATMUL_MAX_INNER:
        raise ValueError(f"sums of {a.shape[-1]} products may exceed int32; at most {BATCH_MATMUL_MAX_INNER} are safe")
    # Exact in float64: sums stay below 2**31.
    sums = (a.astype(np.float64) - a_zero_point) @ (b.astype(np.float64) - b_zero_point)
    return sums.astype(np.int32)


def batch_matmul(
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    *,
    a_zero_point: int,
    b_zero_point: int,
    multiplier: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    out_dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return `requantize` of (a - a_zero_point) @ (b - b_zero_point).

    Parameters
    ----------
    a, b
        8-bit integers (..., rows, inner) and (..., inner, columns), whose other axes broadcast; inner is at most
        `BATCH_MATMUL_MAX_INNER`.
    multiplier, zero_point, qmin, qmax, out_dtype
        As `requantize` takes them; the multiplier is float32 a_scale * b_scale / out_scale.
    """
    sums = batch_matmul_accumulate(a, b, a_zero_point=a_zero_point, b_zero_point=b_zero_point)
    return requantize(sums, np.float32(multiplier), zero_point, qmin, qmax, out_dtype)


def batch_matmul_int16(
    a: npt.NDArray[np.int16],
    b: npt.NDArray[np.int16],
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    multiplier: Multiplier,
    zero_point: int = 0,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized product of int16 (..., rows, inner) and (..., inner, columns), whose other axes broadcast.

    Sums are exact in 64 bits; `multiplier` and what follows are as `requantize_int16` takes them, one factor for all.
    """
    sums = (a.astype(np.int64) - a_zero_point) @ (b.astype(np.int64) - b_zero_point)
    return requantize_int16(sums, multiplier, zero_point, qmin, qmax)
