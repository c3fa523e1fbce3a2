"""Multiplication by a fixed-point multiplier: an integer product and shifts, in TFLite's four roundings. No TVM here.

This is how TFLite's reference kernels bring integers to the scale of the output; which op rounds how is said where it is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

FixedPointRounding = Literal["reduced", "once", "twice", "twice_away"]
"""How a product with a factor of `mantissa * 2**(exponent - 31)` becomes an integer.

"reduced"     the mantissa is rounded to 15 bits first; one shift, half up. For sums of 64 bits.
"once"        one shift, half up.
"twice"       the mantissa's 31 bits are shifted out half up, then the exponent, half up again.
"twice_away"  as "twice", but the exponent's shift rounds half away from 0.
"""

_MIN_EXPONENT, _MAX_EXPONENT = -31, 30
_REDUCED_BITS = 16
_REDUCED_MAX = 0x7FFF


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FixedPointMultiplier:
    """Integers that multiply and shift: t = (value * factor + half(first)) >> first; y = (t + half(second)) >> second.

    half(s) is 2**(s - 1), and 0 where s is 0; with `is_away` half(second) is less by one for t < 0.

    Parameters
    ----------
    factor
        int64, not negative, one for each channel or ().
    first, second
        int64 shifts of the same shape, at least 1 and at least 0.
    is_away
        Whether the second shift rounds half away from 0.
    """

    factor: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    is_away: bool

    @property
    def max_value(self) -> int:
        """The largest |value| whose product is sure to stay within int64."""
        return int((2**62) // max(int(self.factor.max(initial=1)), 1))

    def apply(self, value: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the scaled integers, channels last; |value| is `max_value` at most."""
        scaled = (value.astype(np.int64) * self.factor + _half(self.first)) >> self.first
        away = (scaled < 0) & (self.second > 0) if self.is_away else False
        return (scaled + _half(self.second) - away) >> self.second


def _half(shift: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (np.int64(1) << shift) >> 1


def fixed_point_multiplier(real: npt.ArrayLike, rounding: FixedPointRounding) -> FixedPointMultiplier:
    """Return the integers that stand for multiplication by `real`.

    Parameters
    ----------
    real
        Positive numbers, as float64, of any shape.
    rounding
        Which shifts there are, and how they round.

    Notes
    -----
    The mantissa, in [2**30; 2**31], is rounded half away from 0, as TFLite's QuantizeMultiplier does it. A factor below 2**-31 is
    0 there, and one of 2**30 or more is the largest there is.
    """
    values = np.asarray(real, np.float64)
    parts = [quantize_multiplier(float(value)) for value in values.ravel()]
    mantissa, exponent = (np.array([part[i] for part in parts], np.int64).reshape(values.shape) for i in range(2))
    if rounding in ("reduced", "once"):
        factor, first = mantissa, 31 - exponent
        if rounding == "reduced":
            rounded = (mantissa + (1 << (_REDUCED_BITS - 1))) >> _REDUCED_BITS
            factor, first = np.minimum(rounded, _REDUCED_MAX), 31 - _REDUCED_BITS - exponent
        # A shift to the left is one of the factor.
        missing = np.maximum(1 - first, 0)
        return FixedPointMultiplier(
            factor=factor * (1 << missing), first=first + missing, second=np.zeros_like(first), is_away=False
        )
    return FixedPointMultiplier(
        factor=(mantissa << np.maximum(exponent, 0)).astype(np.int64),
        first=np.full_like(exponent, 31),
        second=np.maximum(-exponent, 0),
        is_away=rounding == "twice_away",
    )


def quantize_multiplier(value: float) -> tuple[int, int]:
    """Return a mantissa in [2**30; 2**31) and an exponent: value is about mantissa * 2**(exponent - 31)."""
    fraction, exponent = math.frexp(value)
    mantissa = math.floor(fraction * 2**31 + 0.5)
    if mantissa == 2**31:
        mantissa, exponent = 2**30, exponent + 1
    if exponent < _MIN_EXPONENT:
        return 0, 0
    return (2**31 - 1, _MAX_EXPONENT) if exponent > _MAX_EXPONENT else (mantissa, exponent)


def half_up_shift(value: npt.NDArray[np.int64], times: int) -> npt.NDArray[np.int64]:
    """Return floor(value / 2**times + 1/2)."""
    return (value + (1 << times >> 1)) >> times


def multiply_by_quantized_multiplier(
    value: npt.NDArray[np.int64], factor: float, *, half_away: bool = False
) -> npt.NDArray[np.int64]:
    """Return value * factor, the positive factor rounded to 31 bits and an exponent.

    Product and exponent round one after the other, half up; with `half_away` a tie of the exponent goes away from 0.
    """
    mantissa, exponent = math.frexp(factor)
    product = half_up_shift((value << max(exponent, 0)) * round(mantissa * 2**31), 31)
    if not half_away:
        return half_up_shift(product, max(-exponent, 0))
    return np.where(product < 0, -half_up_shift(-product, max(-exponent, 0)), half_up_shift(product, max(-exponent, 0)))
