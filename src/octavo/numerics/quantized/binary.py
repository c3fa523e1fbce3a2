"""Oracles of elementwise ops of two quantized tensors: add, subtract, multiply, maximum, minimum. No TVM here.

Sums of 8 bits have two arithmetics: integers alone, as XNNPACK (LiteRT) has them, and float32, as ONNX Runtime has them; those of
16 bits as well: TFLite's fixed point, and float32. Products differ in their multiplier only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier, FixedPointRounding, fixed_point_multiplier
from ..rounding.fused_multiply_add import fused_multiply_add
from ..rounding.requantize import clamp, requantize

Integers = npt.NDArray[np.integer]

_MULTIPLIER_BITS = 20
"""The larger multiplier lies in [2**20; 2**21]."""

_SHIFT_MIN, _SHIFT_MAX = 1, 30


@dataclass(frozen=True, kw_only=True, slots=True)
class AddParameters:
    """Constants of one quantized addition: y = clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point).

    Parameters
    ----------
    a_multiplier, b_multiplier
        int32 in [0; 2**21]; that of b is negated in a difference.
    bias
        int32: 2**(shift - 1), which makes the shift round half up, less the zero points times the multipliers.
    shift
        In [1; 30].
    """

    a_multiplier: int
    b_multiplier: int
    bias: int
    shift: int


def add_parameters(
    a_scale: float, a_zero_point: int, b_scale: float, b_zero_point: int, out_scale: float, *, subtract: bool = False
) -> AddParameters:
    """Choose multipliers and shift for a + b, or a - b, with 8-bit a and b.

    Parameters
    ----------
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point
        Within the range of their 8-bit dtypes.

    Returns
    -------
    AddParameters
        The ratios in_scale / out_scale (a float32 quotient) times 2**shift, rounded half to even.

    Notes
    -----
    The form is that of XNNPACK's quantized addition (qs8-vadd, qu8-vadd, vsub), which LiteRT runs, so TFLite models agree with it
    bit for bit: shift = 20 - floor(log2(larger ratio)). XNNPACK takes ratios in [2**-10; 2**8) only. Beyond:

    * larger ratio < 2**-10: the shift stays at 30 and the multipliers shrink. The sum is below 510 * 2**-10 < 0.5 in size, so the
      result is the zero point, exactly.
    * larger ratio >= 2**20: the shift stays at 1 and both ratios are halved together until they fit. A difference of one in the
      accumulator is then more than one output step, and the result saturates unless the addends cancel to the 21 bits kept.

    int32 never overflows, in any order of the additions: a term q * multiplier is at most 255 * 2**21 < 2**29 in size, so are the
    two products with zero points in the bias, and the rounding constant is at most 2**29; even the positive terms alone
    (2**29 + 2 * 255 * 2**21) and the negative ones alone stay below 2**31.
    """
    largest = float(np.finfo(np.float32).max)
    with np.errstate(over="ignore", under="ignore"):
        ratios = [float(np.minimum(np.float32(scale) / np.float32(out_scale), largest)) for scale in (a_scale, b_scale)]
    exponent = math.frexp(max(ratios))[1] - 1 if max(ratios) > 0 else -_SHIFT_MAX
    exact_shift = _MULTIPLIER_BITS - exponent
    shift = min(max(exact_shift, _SHIFT_MIN), _SHIFT_MAX)
    # `exact_shift` bits keep the larger multiplier in its range where the shift could not follow the ratio down.
    a_multiplier, b_multiplier = (int(np.rint(math.ldexp(ratio, min(exact_shift, _SHIFT_MAX)))) for ratio in ratios)
    b_multiplier = -b_multiplier if subtract else b_multiplier
    bias = (1 << (shift - 1)) - a_zero_point * a_multiplier - b_zero_point * b_multiplier
    return AddParameters(a_multiplier=a_multiplier, b_multiplier=b_multiplier, bias=bias, shift=shift)


def add(
    a: Integers,
    b: Integers,
    *,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    subtract: bool = False,
    zero_point: int,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> Integers:
    """Return the quantized sum of two 8-bit tensors whose shapes broadcast, or their difference a - b.

    Parameters
    ----------
    a, b
        uint8 or int8.
    a_scale, a_zero_point, b_scale, b_zero_point, out_scale, subtract
        As `add_parameters` takes them.
    zero_point, qmin, qmax, dtype
        Of the result; None means the dtype's own bound, here and below.

    Returns
    -------
    array
        Of `dtype`: clamp(((bias + a * a_multiplier + b * b_multiplier) >> shift) + zero_point, qmin, qmax), half up.
    """
    p = add_parameters(a_scale, a_zero_point, b_scale, b_zero_point, out_scale, subtract=subtract)
    acc = p.bias + a.astype(np.int64) * p.a_multiplier + b.astype(np.int64) * p.b_multiplier
    return clamp((acc >> p.shift) + zero_point, qmin, qmax, dtype)


def mul(
    a: Integers,
    b: Integers,
    *,
    a_zero_point: int = 0,
    b_zero_point: int = 0,
    multiplier: float | FixedPointMultiplier,
    zero_point: int = 0,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> Integers:
    """Return `requantize` of the product (a - a_zero_point) * (b - b_zero_point) of two tensors whose shapes broadcast.

    Parameters
    ----------
    a, b
        Integers of 8 bits, whose product float32 holds exactly, or of 16.
    multiplier, zero_point, qmin, qmax, dtype
        As `requantize` takes them; a float32 multiplier is a_scale * b_scale / out_scale as `requantize_multiplier` forms it
        (XNNPACK's qs8-vmul and qu8-vmul), a fixed-point one is `mul_int16_multiplier`'s (TFLite's 16-bit MUL).
    """
    product = (a.astype(np.int64) - a_zero_point) * (b.astype(np.int64) - b_zero_point)
    return requantize(product, multiplier, zero_point, qmin, qmax, dtype)


_MAX_RATIO = 2.0**100
"""Beyond it every result saturates anyway; products stay finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSumParameters:
    """Constants of one sum: y = clamp(rint(fma(a, a_ratio, fma(b, b_ratio, bias))) + zero_point, qmin, qmax).

    All but `zero_point` are float32 values; it is 0 where the bias holds the result's zero point, which ties then see.
    """

    a_ratio: float
    b_ratio: float
    bias: float
    zero_point: int


def float_sum_parameters(
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    zero_point: int,
    *,
    subtract: bool = False,
    stored: bool = True,
) -> FloatSumParameters:
    """Choose the constants of a + b, or a - b, of 8-bit integers as the source stores them.

    Parameters
    ----------
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point, zero_point
        Zero points of a, b and the result.
    subtract
        Whether b is subtracted.
    stored
        Whether the zero point is added before rounding, so that a tie becomes an even integer as stored; else after it.

    Notes
    -----
    With `stored`, and for a sum, this is ONNX Runtime's QLinearAdd on x86 processors, found by trying all pairs of integers under
    many parameters: bias = zero_point - fma(a_ratio, a_zero_point, b_ratio * b_zero_point), ratios are float32 quotients.
    """
    with np.errstate(over="ignore"):
        ratios = [min(float(np.float32(scale) / np.float32(out_scale)), _MAX_RATIO) for scale in (a_scale, b_scale)]
    a_ratio, b_ratio = np.float32(ratios[0]), np.float32(-ratios[1] if subtract else ratios[1])
    zeros = fused_multiply_add(a_ratio, np.float32(a_zero_point), np.float32(b_ratio * np.float32(b_zero_point)))
    bias = np.float32(np.float32(zero_point if stored else 0) - zeros)
    return FloatSumParameters(
        a_ratio=float(a_ratio), b_ratio=float(b_ratio), bias=float(bias), zero_point=0 if stored else zero_point
    )


def float_sum(
    a: Integers,
    b: Integers,
    parameters: FloatSumParameters,
    *,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> Integers:
    """Return the quantized sum of two 8-bit tensors of shapes that broadcast; see FloatSumParameters for the formula."""
    p = parameters
    inner = fused_multiply_add(b.astype(np.float32), np.float32(p.b_ratio), np.float32(p.bias))
    real = fused_multiply_add(a.astype(np.float32), np.float32(p.a_ratio), inner)
    return clamp(np.rint(real).astype(np.float64) + p.zero_point, qmin, qmax, dtype)


def maximum(a: Integers, b: Integers, *, qmin: int, qmax: int) -> Integers:
    """Return the larger integer of each pair, clamped: order among integers of one scale is order among their real values.

    Parameters
    ----------
    a, b
        Of one dtype; shapes that broadcast.
    qmin, qmax
        Clamp of the result.
    """
    return np.clip(np.maximum(a, b), qmin, qmax)


def minimum(a: Integers, b: Integers, *, qmin: int, qmax: int) -> Integers:
    """Return the smaller integer of each pair, clamped; parameters as `maximum` takes them."""
    return np.clip(np.minimum(a, b), qmin, qmax)


Int16Array = npt.NDArray[np.int16]

_INT16_DIGITS, _BYTE_DIGITS = 15, 20
_LONGEST_SHIFT = 30


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumMultipliers:
    """Multipliers of both addends, which are shifted to the left by `digits` first, and of their sum."""

    a: FixedPointMultiplier
    b: FixedPointMultiplier
    y: FixedPointMultiplier
    digits: int

    def apply(self, a: npt.NDArray[np.integer], b: npt.NDArray[np.integer], *, subtract: bool) -> npt.NDArray[np.int64]:
        """Return the sum or difference of integers less their zero points, in steps of the result."""
        first, second = self.a.apply(a.astype(np.int64) << self.digits), self.b.apply(b.astype(np.int64) << self.digits)
        return self.y.apply(first - second if subtract else first + second)


def sum_multipliers(
    a_scale: float, b_scale: float, out_scale: float, *, dtype: str, rounding: FixedPointRounding
) -> SumMultipliers:
    """Return the multipliers of a sum or difference of two tensors of `dtype`.

    Addends are in units of twice the larger scale, less 15 digits of int16 and 20 of bytes. For a shift they are in units of the
    smaller scale, which loses nothing.
    """
    a, b, y = (float(np.float32(scale)) for scale in (a_scale, b_scale, out_scale))
    is_shift = rounding.startswith("shift")
    digits = 0 if is_shift else _INT16_DIGITS if dtype == "int16" else _BYTE_DIGITS
    unit = min(a, b) if is_shift else 2 * max(a, b)
    factors = (a / unit, b / unit, unit / (y * 2**digits))
    first, second, third = (fixed_point_multiplier(factor, rounding) for factor in factors)
    return SumMultipliers(a=first, b=second, y=third, digits=digits)


def combine_in_integers(
    kind: str,
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    *,
    scales: tuple[float, float, float],
    zero_points: tuple[int, int, int],
    rounding: FixedPointRounding,
    qmin: int | None = None,
    qmax: int | None = None,
    dtype: str = "uint8",
) -> Integers:
    """Return the quantized a op b of tensors of 8 or 16 bits whose shapes broadcast, in the integers of accelerators.

    Parameters
    ----------
    kind
        "add", "sub" or "mul".
    scales, zero_points
        Of a, b and the result; `reaches_beyond_int64` says which scales there are no multipliers for.
    rounding
        Of every multiplication; for a shift the exact result is rounded, and scales are powers of two.
    qmin, qmax, dtype
        Of the result.
    """
    first, second = a.astype(np.int64) - zero_points[0], b.astype(np.int64) - zero_points[1]
    if kind == "mul":
        return requantize(first * second, product_multiplier(*scales, rounding), zero_points[2], qmin, qmax, dtype)
    factors = sum_multipliers(*scales, dtype=dtype, rounding=rounding)
    return clamp(factors.apply(first, second, subtract=kind == "sub") + zero_points[2], qmin, qmax, dtype)


def reaches_beyond_int64(
    kind: str, scales: tuple[float, float, float], largest: tuple[int, int], rounding: FixedPointRounding, dtype: str = "uint8"
) -> bool:
    """Return whether sums or products of two tensors leave int64 by their multipliers.

    `largest` are the magnitudes that their integers less the zero points reach.
    """
    if kind == "mul":
        return product_multiplier(*scales, rounding).max_value < largest[0] * largest[1]
    if max(scales[:2]) > min(scales[:2]) * 2.0**_LONGEST_SHIFT:
        return True
    factors = sum_multipliers(*scales, dtype=dtype, rounding=rounding)
    a, b = (np.asarray(most, np.int64) << factors.digits for most in largest)
    if int(a) > factors.a.max_value or int(b) > factors.b.max_value:
        return True
    return int(factors.a.apply(a) + factors.b.apply(b)) > factors.y.max_value


def add_int16(
    a: Int16Array,
    b: Int16Array,
    *,
    a_scale: float,
    b_scale: float,
    out_scale: float,
    subtract: bool = False,
    qmin: int | None = None,
    qmax: int | None = None,
) -> Integers:
    """Return the quantized a + b, or a - b, of int16 tensors whose shapes broadcast, clamped to [qmin; qmax]."""
    factors = sum_multipliers(a_scale, b_scale, out_scale, dtype="int16", rounding="twice_away")
    return clamp(factors.apply(a, b, subtract=subtract), qmin, qmax, "int16")


def product_multiplier(a_scale: float, b_scale: float, out_scale: float, rounding: FixedPointRounding) -> FixedPointMultiplier:
    """Return the multiplier of a product, from float32 a_scale * b_scale / out_scale; a shift's is exact."""
    if rounding.startswith("shift"):
        return fixed_point_multiplier(a_scale * b_scale / out_scale, rounding)
    real = np.float32(a_scale) * np.float32(b_scale) / np.float32(out_scale)
    return fixed_point_multiplier(float(real), rounding)


_REAL: Mapping[str, Callable[..., npt.NDArray[np.float32]]] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def float_binary_int16(
    kind: str,
    a: Int16Array,
    b: Int16Array,
    *,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    out_scale: float,
    zero_point: int,
    qmin: int | None = None,
    qmax: int | None = None,
) -> Integers:
    """Return the quantized a op b of int16 tensors whose shapes broadcast, every operation rounded to float32.

    Parameters
    ----------
    kind
        "add", "sub" or "mul".
    a_scale, b_scale, out_scale
        Positive finite scales; used as float32.
    a_zero_point, b_zero_point, zero_point
        Of a, b and the result.

    Returns
    -------
    array
        clamp(rint(real / out_scale) + zero_point, qmin, qmax), half to even, of (a - a_zero_point) * a_scale op
        (b - b_zero_point) * b_scale.
    """

    def real(values: Int16Array, scale: float, zero: int) -> npt.NDArray[np.float32]:
        return (values.astype(np.int32) - np.int32(zero)).astype(np.float32) * np.float32(scale)

    steps = _REAL[kind](real(a, a_scale, a_zero_point), real(b, b_scale, b_zero_point)) / np.float32(out_scale)
    return clamp(np.rint(steps).astype(np.float64) + zero_point, qmin, qmax, "int16")
