"""Oracles of sums, products, averages and reductions of int16 tensors, as TFLite's reference kernels compute them. No TVM here.

All are symmetric: zero points are 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .fixed_multiplier import FixedFactor, fixed_factor, mantissa_of

Int16Array = npt.NDArray[np.int16]

_LEFT_SHIFT = 15
"""Digits that addends gain before they are scaled."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16SumFactors:
    """Factors of both addends and of their sum; addends are shifted to the left by 15 first."""

    a: FixedFactor
    b: FixedFactor
    y: FixedFactor


def int16_sum_factors(a_scale: float, b_scale: float, out_scale: float) -> Int16SumFactors:
    """Return the factors of a sum or difference: addends in units of twice the larger scale, less the 15 digits."""
    a, b, y = (float(np.float32(scale)) for scale in (a_scale, b_scale, out_scale))
    unit = 2 * max(a, b)
    factors = (a / unit, b / unit, unit / (y * 2**_LEFT_SHIFT))
    first, second, third = (fixed_factor(factor, "twice_away") for factor in factors)
    return Int16SumFactors(a=first, b=second, y=third)


def add_int16(
    a: Int16Array,
    b: Int16Array,
    *,
    a_scale: float,
    b_scale: float,
    out_scale: float,
    subtract: bool = False,
    qmin: int = -32768,
    qmax: int = 32767,
) -> Int16Array:
    """Return the quantized a + b, or a - b, of int16 tensors whose shapes broadcast, clamped to [qmin; qmax]."""
    f = int16_sum_factors(a_scale, b_scale, out_scale)
    first = f.a.apply(a.astype(np.int64) << _LEFT_SHIFT)
    second = f.b.apply(b.astype(np.int64) << _LEFT_SHIFT)
    return np.clip(f.y.apply(first - second if subtract else first + second), qmin, qmax).astype(np.int16)


def int16_product_factor(a_scale: float, b_scale: float, out_scale: float) -> FixedFactor:
    """Return the factor of a product, from float32 a_scale * b_scale / out_scale."""
    real = np.float32(a_scale) * np.float32(b_scale) / np.float32(out_scale)
    return fixed_factor(float(real), "twice_away")


def mul_int16(
    a: Int16Array, b: Int16Array, *, a_scale: float, b_scale: float, out_scale: float, qmin: int = -32768, qmax: int = 32767
) -> Int16Array:
    """Return the quantized a * b of int16 tensors whose shapes broadcast, clamped to [qmin; qmax]."""
    product = a.astype(np.int64) * b.astype(np.int64)
    return np.clip(int16_product_factor(a_scale, b_scale, out_scale).apply(product), qmin, qmax).astype(np.int16)


def int16_mean_factor(in_scale: float, out_scale: float, count: int) -> FixedFactor:
    """Return the factor from the sum of `count` integers to their mean: TFLite divides the mantissa, rounding it down."""
    mantissa, exponent = mantissa_of(float(np.float32(in_scale)) / float(np.float32(out_scale)))
    gained = min(count.bit_length() - 1, 32, 31 + exponent)
    mantissa, exponent = (mantissa << gained) // count, exponent - gained
    return FixedFactor(
        factor=np.asarray(mantissa << max(exponent, 0), np.int64),
        first=np.asarray(31, np.int64),
        second=np.asarray(max(-exponent, 0), np.int64),
        is_away=True,
    )


def mean_int16(
    x: Int16Array,
    axes: tuple[int, ...],
    *,
    in_scale: float,
    out_scale: float,
    keepdims: bool = True,
    qmin: int = -32768,
    qmax: int = 32767,
) -> Int16Array:
    """Return the quantized mean of int16 values over `axes`."""
    total = x.astype(np.int64).sum(axis=axes, keepdims=keepdims)
    count = int(np.prod([x.shape[axis] for axis in axes]))
    return np.clip(int16_mean_factor(in_scale, out_scale, count).apply(total), qmin, qmax).astype(np.int16)


def int16_prelu_factors(x_scale: float, slope_scale: float, out_scale: float) -> tuple[FixedFactor, FixedFactor]:
    """Return the factors of a parametric relu from 0 on, and of products with a slope below, from float32 quotients."""
    x, slope, y = (np.float32(scale) for scale in (x_scale, slope_scale, out_scale))
    above, below = (fixed_factor(float(factor), "twice_away") for factor in (x / y, x * slope / y))
    return above, below


def prelu_int16(
    x: Int16Array,
    slopes: npt.NDArray[np.integer],
    *,
    x_scale: float,
    slope_scale: float,
    out_scale: float,
    qmin: int = -32768,
    qmax: int = 32767,
) -> Int16Array:
    """Return the quantized parametric relu of int16: x from 0 on, x * slope below, clamped to [qmin; qmax].

    `slopes` are 8-bit integers less their zero point, whose shape broadcasts to x's.
    """
    above, below = int16_prelu_factors(x_scale, slope_scale, out_scale)
    wide = x.astype(np.int64)
    scaled = np.where(wide >= 0, above.apply(wide), below.apply(wide * slopes.astype(np.int64)))
    return np.clip(scaled, qmin, qmax).astype(np.int16)
