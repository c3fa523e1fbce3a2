"""Tables of changes of parameters and of relus in fixed point, as LiteRT computes them: an entry for each integer of the operand.

They differ from rint(real / scale) + zero_point by a step for some integers, and networks run by LiteRT were evaluated with them.
No TVM here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quant_params import INTEGER_RANGE, QuantParams
from ..rounding.fixed_point import (
    FixedPointMultiplier,
    FixedPointRounding,
    fixed_point_multiplier,
    half_up_shift,
    multiply_by_quantized_multiplier,
)

_LEAST, _MOST = 2.0**-8, 2.0**7


def has_coarse_multiplier(x: QuantParams, y: QuantParams, slope: float = 1.0) -> bool:
    """Return whether factors from `x` to `y`, and times `slope` below 0, come in steps of 1 / 256."""
    ratio = np.float32(x.scale) / np.float32(y.scale)
    negative = np.float32(ratio * np.float32(slope))
    in_range = _LEAST <= ratio <= _MOST and _LEAST <= abs(negative) <= _MOST and negative > -_MOST + _LEAST
    return x.dtype == y.dtype and bool(in_range)


def rescale_table(
    x: QuantParams, y: QuantParams, *, slope: float = 1.0, qmin: int | None = None, qmax: int | None = None
) -> npt.NDArray[np.integer]:
    """Return clamp(factor * (q - x.zero_point) + y.zero_point) for every q of x.dtype, least first.

    Parameters
    ----------
    x, y
        Per-tensor parameters of operand and result, each int8 or uint8.
    slope
        Multiplies what lies below the zero point (a leaky relu); 1 for a change of parameters. Other slopes need
        `has_coarse_multiplier`.
    qmin, qmax
        Of the result; None for its dtype's own.

    Returns
    -------
    array
        Of `y.dtype`, shape [256].

    Notes
    -----
    Where `has_coarse_multiplier`, the factor is rint(256 * float32(x.scale / y.scale)), below 0 times `slope` before; its
    product is shifted down by 8 bits, half up (XNNPACK's qs8-vcvt and qs8-vlrelu). Elsewhere the factor is rounded to 31 bits and
    an exponent; product and exponent round half up, one after the other (TFLite's QUANTIZE between int8 and uint8).
    """
    low, high = INTEGER_RANGE[x.dtype]
    distance = np.arange(low, high + 1, dtype=np.int64) - int(x.zero_point)
    if has_coarse_multiplier(x, y, slope):
        ratio = np.float32(x.scale) / np.float32(y.scale)
        factors = [int(np.rint(np.float32(256) * value)) for value in (ratio, np.float32(ratio * np.float32(slope)))]
        scaled = half_up_shift(distance * np.where(distance >= 0, factors[0], factors[1]), 8)
    elif slope == 1.0:
        scaled = multiply_by_quantized_multiplier(distance, float(x.scale) / float(y.scale))
    else:
        raise ValueError(f"slope {slope} from scale {x.scale} to {y.scale} has no factor in steps of 1 / 256")
    table = scaled + int(y.zero_point)
    return np.clip(table, y.qmin if qmin is None else qmin, y.qmax if qmax is None else qmax).astype(y.dtype)


def integer_values(dtype: str) -> npt.NDArray[np.int64]:
    """Return all values of a quantized dtype, least first."""
    low, high = INTEGER_RANGE[dtype]
    return np.arange(low, high + 1, dtype=np.int64)


def int16_rescale_table(
    x: QuantParams, y: QuantParams, *, slope: float | None = None, qmin: int | None = None, qmax: int | None = None
) -> npt.NDArray[np.integer]:
    """Return clamp(factor * (q - x.zero_point) + y.zero_point) for every q of x.dtype.

    Parameters
    ----------
    x, y
        Per-tensor parameters; one of them 16-bit.
    slope
        Of a leaky relu: multiplies what lies below the zero point. None for a change of parameters.
    qmin, qmax
        Of the result; None for its dtype's own.

    Notes
    -----
    Factors have 31 bits and round "twice_away" (TFLite's QUANTIZE, RELU and LEAKY_RELU of int16). A change of parameters divides
    the scales in float64, a leaky relu in float32, as TFLite does.
    """
    distance = integer_values(x.dtype) - int(x.zero_point)
    if slope is None:
        scaled = fixed_point_multiplier(float(x.scale) / float(y.scale), "twice_away").apply(distance)
    else:
        ratio = np.float32(x.scale) / np.float32(y.scale)
        below = np.float32(np.float32(x.scale) * np.float32(slope)) / np.float32(y.scale)
        positive, negative = (
            fixed_point_multiplier(float(ratio), "twice_away"),
            fixed_point_multiplier(abs(float(below)), "twice_away"),
        )
        # A negative factor has a negative mantissa: the sign is the value's as well.
        signed = distance if below >= 0 else -distance
        scaled = np.where(distance >= 0, positive.apply(distance), negative.apply(signed))
    low, high = y.qmin if qmin is None else qmin, y.qmax if qmax is None else qmax
    return np.clip(scaled + int(y.zero_point), low, high).astype(y.dtype)


def fixed_point_table(
    x: QuantParams, y: QuantParams, rounding: FixedPointRounding, *, qmin: int | None = None, qmax: int | None = None
) -> npt.NDArray[np.integer]:
    """Return clamp(factor * (q - x.zero_point) + y.zero_point) for every q of x.dtype, as accelerators change parameters.

    Parameters
    ----------
    x, y
        Per-tensor parameters; for a shift the quotient of their scales is a power of two.
    rounding
        Of the factor x.scale / y.scale, a quotient of float64.
    qmin, qmax
        Of the result; None for its dtype's own.
    """
    # A larger factor saturates every difference but 0, too.
    factor = fixed_point_multiplier(min(float(x.scale) / float(y.scale), 2.0**20), rounding)
    scaled = factor.apply(integer_values(x.dtype) - int(x.zero_point)) + int(y.zero_point)
    return np.clip(scaled, y.qmin if qmin is None else qmin, y.qmax if qmax is None else qmax).astype(y.dtype)


def prelu_table(
    slopes: npt.NDArray[np.integer], x: QuantParams, slope: QuantParams, y: QuantParams, *, qmin: int, qmax: int
) -> npt.NDArray[np.integer]:
    """Return, for each slope a row: clamp(d * x.scale / y.scale + y.zero_point) from the zero point on, times the slope below.

    Parameters
    ----------
    slopes
        Integers of `slope`'s dtype, one-dimensional.
    x, slope, y
        Per-tensor parameters, each int8 or uint8; d is the distance from x.zero_point.
    qmin, qmax
        Clamp of the result.

    Returns
    -------
    array
        Of `y.dtype`, (slopes, 256), the least integer of x first.

    Notes
    -----
    Factors are of 31 bits and an exponent, and the product of d and the slope's distance from its zero point is an integer;
    the product rounds half up, then the exponent half away from 0 (TFLite's PRELU).
    """
    low, high = INTEGER_RANGE[x.dtype]
    distance = np.arange(low, high + 1, dtype=np.int64)[None] - int(x.zero_point)
    steepness = slopes.astype(np.int64)[:, None] - int(slope.zero_point)
    ratio = float(x.scale) / float(y.scale)
    above = multiply_by_quantized_multiplier(np.broadcast_to(distance, (slopes.size, distance.size)), ratio, half_away=True)
    below = multiply_by_quantized_multiplier(
        distance * steepness, float(x.scale) * float(slope.scale) / float(y.scale), half_away=True
    )
    return np.clip(np.where(distance >= 0, above, below) + int(y.zero_point), qmin, qmax).astype(y.dtype)


def prelu_int16_multipliers(
    x_scale: float, slope_scale: float, out_scale: float
) -> tuple[FixedPointMultiplier, FixedPointMultiplier]:
    """Return the factors of a parametric relu from 0 on, and of products with a slope below, from float32 quotients."""
    x, slope, y = (np.float32(scale) for scale in (x_scale, slope_scale, out_scale))
    above, below = (fixed_point_multiplier(float(factor), "twice_away") for factor in (x / y, x * slope / y))
    return above, below


def prelu_int16(
    x: npt.NDArray[np.int16],
    slopes: npt.NDArray[np.integer],
    *,
    x_scale: float,
    slope_scale: float,
    out_scale: float,
    qmin: int = -32768,
    qmax: int = 32767,
) -> npt.NDArray[np.int16]:
    """Return the quantized parametric relu of int16: x from 0 on, x * slope below, clamped to [qmin; qmax].

    `slopes` are 8-bit integers less their zero point, whose shape broadcasts to x's.
    """
    above, below = prelu_int16_multipliers(x_scale, slope_scale, out_scale)
    wide = x.astype(np.int64)
    scaled = np.where(wide >= 0, above.apply(wide), below.apply(wide * slopes.astype(np.int64)))
    return np.clip(scaled, qmin, qmax).astype(np.int16)
