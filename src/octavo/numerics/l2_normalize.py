"""Oracles of the division of quantized rows by their Euclidean norm, in float32 and in fixed point. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .requantize import requantize

L2_MAX_COLUMNS = 1 << 15
"""Longest row: the sum of its squared differences, each up to 255 * 255, stays below 2**31."""

HALF_THREE, HALF_ROOT_TWO = 3 << 27, 1518500250
"""3/2 with 28 bits behind the point, and the square root of 1/2 with 31."""

NEWTON_STEPS = 5


def l2_normalize(
    q: npt.NDArray[np.integer],
    *,
    input_zero_point: int,
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
    dtype: str = "uint8",
) -> npt.NDArray[np.integer]:
    """Return clamp(rint(float32(d) * m) + zero_point) over the last axis, at most `L2_MAX_COLUMNS` long.

    d is q - input_zero_point, m is float32 1 / (sqrt(float32(sum of d * d)) * out_scale); the input's scale cancels. A row of
    zeros stays one.
    """
    d = q.astype(np.int32) - np.int32(input_zero_point)
    root = np.sqrt(np.maximum((d * d).sum(axis=-1, keepdims=True, dtype=np.int32), 1).astype(np.float32))
    return requantize(d, np.float32(1) / (root * np.float32(out_scale)), zero_point, qmin, qmax, dtype)


def l2_normalize_fixed(q: npt.NDArray[np.integer], *, input_zero_point: int) -> npt.NDArray[np.integer]:
    """Return q over its norm at the scale 1/128, of zero point 0 for int8 and 128 for uint8, as LiteRT computes it.

    Parameters
    ----------
    q
        int8 or uint8, rows along the last axis, at most `L2_MAX_COLUMNS` long.
    input_zero_point
        Of `q`.

    Notes
    -----
    An inverse square root by five steps of Newton's method in fixed point; the product with it rounds half up, the exponent half
    away from 0. For uint8 the factor 128 is in the product, for int8 in the exponent (TFLite's L2_NORMALIZATION).
    """
    d = q.astype(np.int64) - input_zero_point
    mantissa, exponent = inverse_root((d * d).sum(axis=-1, keepdims=True))
    if q.dtype == np.uint8:
        return np.clip(_shifted(_high(128 * d, mantissa), exponent) + 128, 0, 255).astype(np.uint8)
    left, right = np.maximum(7 - exponent, 0), np.maximum(exponent - 7, 0)
    return np.clip(_shifted(_high(d << left, mantissa), right), -128, 127).astype(np.int8)


def inverse_root(total: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return (mantissa, exponent) of 1 / sqrt(total), in [0; 2**31): mantissa * 2**-31 * 2**-exponent.

    1 / sqrt(1), and that of 0, is 2**31 - 1.
    """
    value, exponent = total.copy(), np.full(total.shape, 11, np.int64)
    large = value >= 1 << 29
    value, exponent = np.where(large, value >> 2, value), exponent + large
    for pairs in (8, 4, 2, 1):
        small = value < 1 << (29 - 2 * pairs)
        value, exponent = np.where(small, value << (2 * pairs), value), exponent - pairs * small
    half = (value + 2) >> 2
    x = np.full(total.shape, 1 << 28, np.int64)
    for _ in range(NEWTON_STEPS):
        cube = _high(_high(x, x), x) << 6
        x = (_high(np.full(total.shape, HALF_THREE, np.int64), x) - _high(half, cube)) << 3
    x = _high(x, np.full(total.shape, HALF_ROOT_TWO, np.int64))
    mantissa = np.where(total <= 1, (1 << 31) - 1, x << np.maximum(-exponent, 0))
    return mantissa, np.where(total <= 1, 0, np.maximum(exponent, 0))


def _high(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a * b / 2**31, half up."""
    return (a * b + (1 << 30)) >> 31


def _shifted(value: npt.NDArray[np.int64], bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return value / 2**bits, half away from 0."""
    magnitude = (np.abs(value) + ((1 << bits) >> 1)) >> bits
    return np.where(value < 0, -magnitude, magnitude)
