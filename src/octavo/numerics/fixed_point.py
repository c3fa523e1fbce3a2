"""Oracle of changes of parameters by fixed-point factors, rounded half up: tables of 256 entries, as LiteRT computes them.

They differ from rint(real / scale) + zero_point by a step for some integers, and networks run by LiteRT were evaluated with them.
No TVM here.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .quant_params import INTEGER_RANGE, QuantParams

_LEAST, _MOST = 2.0**-8, 2.0**7


def has_coarse_factor(x: QuantParams, y: QuantParams, slope: float = 1.0) -> bool:
    """Return whether factors from `x` to `y`, and times `slope` below 0, come in steps of 1 / 256."""
    ratio = np.float32(x.scale) / np.float32(y.scale)
    negative = np.float32(ratio * np.float32(slope))
    in_range = _LEAST <= ratio <= _MOST and _LEAST <= abs(negative) <= _MOST and negative > -_MOST + _LEAST
    return x.dtype == y.dtype and bool(in_range)


def fixed_point_table(
    x: QuantParams, y: QuantParams, *, slope: float = 1.0, qmin: int | None = None, qmax: int | None = None
) -> npt.NDArray[np.integer]:
    """Return clamp(factor * (q - x.zero_point) + y.zero_point) for every q of x.dtype, least first.

    Parameters
    ----------
    x, y
        Per-tensor parameters of operand and result, each int8 or uint8.
    slope
        Multiplies what lies below the zero point (a leaky relu); 1 for a change of parameters. Other slopes need
        `has_coarse_factor`.
    qmin, qmax
        Of the result; None for its dtype's own.

    Returns
    -------
    array
        Of `y.dtype`, shape [256].

    Notes
    -----
    Where `has_coarse_factor`, the factor is rint(256 * float32(x.scale / y.scale)), times `slope` before rounding below 0; the
    product is shifted down by 8 bits, half up (XNNPACK's qs8-vcvt and qs8-vlrelu). Elsewhere the factor is rounded to 31 bits and
    an exponent; product and exponent round half up, one after the other (TFLite's QUANTIZE between int8 and uint8).
    """
    low, high = INTEGER_RANGE[x.dtype]
    distance = np.arange(low, high + 1, dtype=np.int64) - int(x.zero_point)
    if has_coarse_factor(x, y, slope):
        ratio = np.float32(x.scale) / np.float32(y.scale)
        factors = [int(np.rint(np.float32(256) * value)) for value in (ratio, np.float32(ratio * np.float32(slope)))]
        scaled = _halved_up(distance * np.where(distance >= 0, factors[0], factors[1]), 8)
    elif slope == 1.0:
        scaled = by_31_bits(distance, float(x.scale) / float(y.scale))
    else:
        raise ValueError(f"slope {slope} from scale {x.scale} to {y.scale} has no factor in steps of 1 / 256")
    table = scaled + int(y.zero_point)
    return np.clip(table, y.qmin if qmin is None else qmin, y.qmax if qmax is None else qmax).astype(y.dtype)


def _halved_up(value: npt.NDArray[np.int64], times: int) -> npt.NDArray[np.int64]:
    """Return floor(value / 2**times + 1/2)."""
    return (value + (1 << times >> 1)) >> times


def by_31_bits(value: npt.NDArray[np.int64], factor: float, *, half_away: bool = False) -> npt.NDArray[np.int64]:
    """Return value * factor, the positive factor rounded to 31 bits and an exponent.

    Product and exponent round one after the other, half up; with `half_away` a tie of the exponent goes away from 0.
    """
    mantissa, exponent = math.frexp(factor)
    product = _halved_up((value << max(exponent, 0)) * round(mantissa * 2**31), 31)
    if not half_away:
        return _halved_up(product, max(-exponent, 0))
    return np.where(product < 0, -_halved_up(-product, max(-exponent, 0)), _halved_up(product, max(-exponent, 0)))
