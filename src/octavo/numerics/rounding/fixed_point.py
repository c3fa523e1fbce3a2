"""Multiplication by a fixed-point multiplier, an integer product and shifts: in TFLite's four roundings, or by one shift alone.

This is how TFLite's reference kernels, and accelerators, bring integers to the scale of the output; which op rounds how is said
where it is used. No TVM here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

ShiftRounding = Literal["shift_half_up", "shift_half_away", "shift_half_even"]
FixedPointRounding = Literal["reduced", "once", "twice", "twice_away"] | ShiftRounding
"""How a product with a factor of `mantissa * 2**(exponent - 31)` becomes an integer.

"reduced"     the mantissa is rounded to 15 bits first; one shift, half up. For sums of 64 bits.
"once"        one shift, half up.
"twice"       the mantissa's 31 bits are shifted out half up, then the exponent, half up again.
"twice_away"  as "twice", but the exponent's shift rounds half away from 0.
"shift_..."   the factor is a power of two, and the exact product is rounded once: ties up, away from 0, or to even.
"""

FIXED_POINT_ROUNDINGS: dict[str, FixedPointRounding] = {
    "once": "once",
    "twice": "twice",
    "twice_away": "twice_away",
    "shift_half_up": "shift_half_up",
    "shift_half_away": "shift_half_away",
    "shift_half_even": "shift_half_even",
}
"""Those of accelerators, by name."""

Ties = Literal["half_up", "half_away", "half_even"]

_MIN_EXPONENT, _MAX_EXPONENT = -31, 30
_REDUCED_BITS = 16
_REDUCED_MAX = 0x7FFF
SHIFTS: dict[str, Ties] = {f"shift_{ties}": ties for ties in get_args(Ties)}
"""Where the ties of a shift go, by its name."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FixedPointMultiplier:
    """Integers that multiply and shift: t = (value * factor + half(first)) >> first; y = (t + half(second)) >> second.

    half(s) is 2**(s - 1), and 0 where s is 0. Where `second` is not, "half_away" has half(second) less by one for t < 0, and
    "half_even" for an even floor(t / 2**second).

    Parameters
    ----------
    factor
        int64, not negative, one for each channel or ().
    first, second
        int64 shifts of the same shape, in [0; 62].
    ties
        Where those of the second shift go.
    """

    factor: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    second: npt.NDArray[np.int64]
    ties: Ties = "half_up"

    @property
    def max_value(self) -> int:
        """The largest |value| whose product is sure to stay within int64."""
        return int((2**62) // max(int(self.factor.max(initial=1)), 1))

    def apply(self, value: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """Return the scaled integers, channels last; |value| is `max_value` at most."""
        scaled = (value.astype(np.int64) * self.factor + _half(self.first)) >> self.first
        if self.ties == "half_up":
            return (scaled + _half(self.second)) >> self.second
        is_less = scaled < 0 if self.ties == "half_away" else (scaled >> self.second) & 1 == 0
        return (scaled + _half(self.second) - (is_less & (self.second > 0))) >> self.second


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
    if rounding in SHIFTS:
        return _power_of_two(values, SHIFTS[rounding])
    parts = [quantize_multiplier(float(value)) for value in values.ravel()]
    mantissa, exponent = (np.array([part[i] for part in parts], np.int64).reshape(values.shape) for i in range(2))
    return _of_parts(mantissa, exponent, rounding)


def mean_multiplier(real: float, count: int, rounding: FixedPointRounding = "twice_away") -> FixedPointMultiplier:
    """Return the integers that turn a sum of `count` integers into their mean times `real`.

    TFLite divides the mantissa by the count, rounding down, with as many digits gained first as fit. A shift has none.
    """
    mantissa, exponent = quantize_multiplier(real)
    gained = min(count.bit_length() - 1, 32, 31 + exponent)
    return _of_parts(np.asarray((mantissa << gained) // count, np.int64), np.asarray(exponent - gained, np.int64), rounding)


def _of_parts(
    mantissa: npt.NDArray[np.int64], exponent: npt.NDArray[np.int64], rounding: FixedPointRounding
) -> FixedPointMultiplier:
    if rounding in ("reduced", "once"):
        factor, first = mantissa, 31 - exponent
        if rounding == "reduced":
            rounded = (mantissa + (1 << (_REDUCED_BITS - 1))) >> _REDUCED_BITS
            factor, first = np.minimum(rounded, _REDUCED_MAX), 31 - _REDUCED_BITS - exponent
        # A shift to the left is one of the factor.
        missing = np.maximum(1 - first, 0)
        return FixedPointMultiplier(factor=factor * (1 << missing), first=first + missing, second=np.zeros_like(first))
    return FixedPointMultiplier(
        factor=(mantissa << np.maximum(exponent, 0)).astype(np.int64),
        first=np.full_like(exponent, 31),
        second=np.maximum(-exponent, 0),
        ties="half_away" if rounding == "twice_away" else "half_up",
    )


def is_power_of_two(real: npt.ArrayLike) -> bool:
    """Return whether every one of these positive numbers is 2**k for an integer k."""
    return bool((np.frexp(np.asarray(real, np.float64))[0] == 0.5).all())


def _power_of_two(values: npt.NDArray[np.float64], ties: Ties) -> FixedPointMultiplier:
    """Return the shift by powers of two; a longer one than fits saturates any 8-bit result, or gives 0, all the same."""
    assert is_power_of_two(values), "scales of a shift are powers of two"
    exponent = np.asarray(np.frexp(values)[1] - 1, np.int64)
    return FixedPointMultiplier(
        factor=np.asarray(np.int64(1) << np.clip(exponent, 0, _MAX_EXPONENT)),
        first=np.zeros_like(exponent),
        second=np.clip(-exponent, 0, 62),
        ties=ties,
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


def rounded_quotient(value: npt.NDArray[np.int64], divisor: int, ties: Ties) -> npt.NDArray[np.int64]:
    """Return value / divisor, which is positive, rounded once."""
    doubled = 2 * np.abs(value) + divisor
    away = doubled // (2 * divisor)
    is_tie = doubled % (2 * divisor) == 0
    is_less = {"half_up": value < 0, "half_away": np.False_, "half_even": away % 2 == 1}[ties]
    return np.sign(value) * (away - (is_tie & is_less))


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
