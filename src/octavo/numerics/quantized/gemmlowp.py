"""Oracle of logistic and tanh in 16-bit fixed point, as LiteRT computes them for power-of-two scales (by gemmlowp). No TVM here.

Numbers are integers q that stand for q * 2**(bits - 15); "bits" are those before the binary point. Products have half as many
digits as they should, and results are off by some units of the last place: networks were evaluated with just these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntegerArray = npt.NDArray[np.int64]

_ONE = 32767
_EXP_MINUS_EIGHTH = 28918  # exp(-1/8), 15 digits after the point, as all constants here
_THIRD = 10923
_EXP_OF_POWERS = (25520, 19875, 12055, 4435, 600, 11, 0)  # exp(-2**i) for i from -2 to 4
_48_17, _32_17 = 23130, -15420  # 48/17 and -32/17 with two bits before the point: first guess of a reciprocal


def _wrapped(value: IntegerArray) -> IntegerArray:
    return ((value + 32768) & 65535) - 32768


def _saturated(value: IntegerArray) -> IntegerArray:
    return np.clip(value, -32768, 32767)


def _product(a: IntegerArray, b: IntegerArray | int) -> IntegerArray:
    """Return the high half of 2 * a * b, half up."""
    return _saturated((a * b + (1 << 14)) >> 15)


def _shifted(value: IntegerArray, by: int) -> IntegerArray:
    """Return value * 2**by, saturated; to the right half away from 0."""
    if by >= 0:
        return _saturated(value << by)
    return (value + (1 << -by >> 1) - (value < 0)) >> -by


def _exp_of_negative(a: IntegerArray, bits: int) -> IntegerArray:
    """Return exp(a) for a <= 0 with `bits` before the point, as a number without any: a series, then a factor for each bit."""
    digits = 15 - bits
    quarter = 1 << (digits - 2)
    within = (a & (quarter - 1)) - quarter
    x = _wrapped(_shifted(within, bits) + (1 << 12))
    square = _product(x, x)
    cube, fourth = _product(square, x), _product(square, square)
    series = _shifted(_wrapped(_product(_wrapped(_shifted(fourth, -2) + cube), _THIRD) + square), -1)
    result = _saturated(_EXP_MINUS_EIGHTH + _product(_wrapped(x + series), _EXP_MINUS_EIGHTH))
    remainder = within - a
    for power, factor in zip(range(-2, 5), _EXP_OF_POWERS, strict=True):
        if bits > power:
            result = np.where(remainder & (1 << (digits + power)), _product(result, factor), result)
    return np.where(a == 0, _ONE, np.where(a < -32 << digits, 0, result))


def _reciprocal_of_half_sum(a: IntegerArray) -> IntegerArray:
    """Return 2 / (1 + a) for a in [0; 1] with two bits before the point, by three steps of Newton's."""
    half = (a + _ONE + 1) >> 1
    x = _wrapped(_48_17 + _product(half, _32_17))
    for _ in range(3):
        missing = _wrapped((1 << 13) - _product(half, x))
        x = _wrapped(x + _shifted(_product(x, missing), 2))
    return x


def gemmlowp_logistic(q: IntegerArray) -> IntegerArray:
    """Return 32768 * sigmoid(q / 4096) for int16 values q, 32767 at most."""
    positive = _shifted(_reciprocal_of_half_sum(_exp_of_negative(-np.abs(q), 3)), 1)
    return np.where(q == 0, 1 << 14, np.where(q > 0, positive, _ONE - positive))


def gemmlowp_tanh(q: IntegerArray, bits: int = 3) -> IntegerArray:
    """Return 32768 * tanh(q * 2**(bits - 15)) for int16 values q; 0 to 6 bits."""
    magnitude = _shifted(_wrapped(_reciprocal_of_half_sum(_exp_of_negative(-np.abs(q), bits + 1)) - (1 << 13)), 2)
    return np.where(q == 0, 0, np.where(q < 0, -magnitude, magnitude))
