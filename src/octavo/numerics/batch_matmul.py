"""Oracle of the quantized product of two activations, batch by batch. No TVM here; the product with constants is in `conv2d`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .int16_conv2d import Int16Multiplier, requantize_int16
from .requantize import requantize

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
    multiplier: Int16Multiplier,
    zero_point: int = 0,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized product of int16 (..., rows, inner) and (..., inner, columns), whose other axes broadcast.

    Sums are exact in 64 bits; `multiplier` and what follows are as `requantize_int16` takes them, one factor for all.
    """
    sums = (a.astype(np.int64) - a_zero_point) @ (b.astype(np.int64) - b_zero_point)
    return requantize_int16(sums, multiplier, zero_point, qmin, qmax)
