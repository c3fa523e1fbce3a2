"""Oracles of normalizations of quantized tensors: layer, group and L2. Integer sums, float32 from there on. No TVM here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..rounding.fused_multiply_add import fused_multiply_add
from ..rounding.requantize import requantize

LAYER_NORM_MAX_COLUMNS = 1 << 15
"""Longest row: the sum of its squares, each up to 255 * 255, stays below 2**31, and a distance below 2**24."""


def layer_norm(
    q: npt.NDArray[np.integer],
    *,
    scale: float,
    epsilon: float,
    gamma: npt.NDArray[np.float32],
    beta: npt.NDArray[np.float32],
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
) -> npt.NDArray[np.integer]:
    """Return the rows of q, over the last axis, normalized: (x - mean) / sqrt(variance + epsilon) * gamma + beta, quantized.

    Parameters
    ----------
    q
        uint8, rows of n values, at most `LAYER_NORM_MAX_COLUMNS`. Their zero point cancels.
    scale
        Of q.
    gamma, beta
        float32 (n,).
    out_scale, zero_point, qmin, qmax
        Of the result.

    Notes
    -----
    With n times the distance from the mean, d = n * q - sum(q), and n * n times the variance, v = n * sum(q * q) - sum(q) ** 2,
    both exact, the result is rint(fma(d, m, beta / out_scale)) with m = 1 / (sqrt(v / n**2 + epsilon / scale**2) * n) * (gamma /
    out_scale); each operation rounds to float32 once.
    """
    columns = q.shape[-1]
    x = q.astype(np.int64)
    total, squares = x.sum(axis=-1, keepdims=True), (x * x).sum(axis=-1, keepdims=True)
    variance = (columns * squares - total * total).astype(np.float32) / np.float32(columns * columns)
    root = np.sqrt(variance + scaled_epsilon(epsilon, scale))
    inverse = np.float32(1) / (root * np.float32(columns))
    factors, addends = (values / np.float32(out_scale) for values in (gamma, beta))
    with np.errstate(invalid="ignore"):
        return requantize((columns * x - total).astype(np.int32), inverse * factors, zero_point, qmin, qmax, real_bias=addends)


def scaled_epsilon(epsilon: float, scale: float) -> np.float32:
    """Return epsilon in squared steps of the input, never 0: rows of equal values then have a result, beta."""
    with np.errstate(over="ignore"):
        steps = np.float32(np.float64(epsilon) / np.float64(np.float32(scale)) ** 2)
    return np.clip(steps, np.float32(1e-30), np.finfo(np.float32).max)


GROUP_NORM_MAX_VALUES = 1 << 23
"""Values of a group at most: its variance times their number squared then stays below 2**63."""


def group_norm(
    q: npt.NDArray[np.integer],
    *,
    groups: int,
    scale: float,
    epsilon: float,
    gamma: npt.NDArray[np.float32],
    beta: npt.NDArray[np.float32],
    out_scale: float,
    zero_point: int,
    qmin: int = 0,
    qmax: int = 255,
) -> npt.NDArray[np.integer]:
    """Return the images of q, each group of channels normalized: (x - mean) / sqrt(variance + epsilon) * gamma + beta, quantized.

    Parameters
    ----------
    q
        uint8 (images, pixels, channels); `GROUP_NORM_MAX_VALUES` values of a group at most. Their zero point cancels.
    groups
        Into how many equal parts the channels are cut.
    scale
        Of q.
    gamma, beta
        float32 (channels,).
    out_scale, zero_point, qmin, qmax
        Of the result.

    Notes
    -----
    With n the values of a group, s their sum and v = n * sum(q * q) - s * s, both exact, the result is rint(fma(q, m, b)) with
    m = 1 / sqrt(v / n**2 + epsilon / scale**2) * (gamma / out_scale) and b = fma(-(s / n), m, beta / out_scale); each operation
    rounds to float32 once.
    """
    images, pixels, channels = q.shape
    x = q.astype(np.int64).reshape(images, pixels, groups, channels // groups)
    count = x.shape[1] * x.shape[3]
    total, squares = x.sum(axis=(1, 3)), (x * x).sum(axis=(1, 3))
    variance = (count * squares - total * total).astype(np.float32) / np.float32(count * count)
    inverse = np.float32(1) / np.sqrt(variance + scaled_epsilon(epsilon, scale))
    mean = total.astype(np.float32) / np.float32(count)
    inverse, mean = (np.repeat(values, channels // groups, axis=1)[:, np.newaxis] for values in (inverse, mean))
    factors, addends = (values / np.float32(out_scale) for values in (gamma, beta))
    multiplier = inverse * factors
    bias = fused_multiply_add(-mean, multiplier, np.broadcast_to(addends, multiplier.shape))
    return requantize(q.astype(np.int32), multiplier, zero_point, qmin, qmax, real_bias=bias)


L2_MAX_COLUMNS = 1 << 15
"""Longest row: the sum of its squared differences, each up to 255 * 255, stays below 2**31."""

THREE_HALVES, SQRT_HALF = 3 << 27, 1518500250
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
        x = (_high(np.full(total.shape, THREE_HALVES, np.int64), x) - _high(half, cube)) << 3
    x = _high(x, np.full(total.shape, SQRT_HALF, np.int64))
    mantissa = np.where(total <= 1, (1 << 31) - 1, x << np.maximum(-exponent, 0))
    return mantissa, np.where(total <= 1, 0, np.maximum(exponent, 0))


def _high(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a * b / 2**31, half up."""
    return (a * b + (1 << 30)) >> 31


def _shifted(value: npt.NDArray[np.int64], bits: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return value / 2**bits, half away from 0."""
    magnitude = (np.abs(value) + ((1 << bits) >> 1)) >> bits
    return np.where(value < 0, -magnitude, magnitude)
