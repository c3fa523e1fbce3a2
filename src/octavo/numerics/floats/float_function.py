"""Oracle of float32 functions of single elements, and of branch-free programs of them. No TVM here.

Each operation is one that every processor rounds alike: a fused multiply-add, a quotient, a comparison, a move of bits.
So a kernel of the same operations gives the same bits on every instruction set. exp, sigmoid, tanh and erf of NaN are NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..rounding.fused_multiply_add import fused_multiply_add

Floats = npt.NDArray[np.float32]

EXP_RANGE = (-104.0, 89.0)
"""exp is 0 below and infinite above, in float32."""

MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000
"""1.5 * 2**23 and its bits: a float32 of that size counts in ones, so adding it rounds half to even, and the low bits hold the
integer."""

LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 as 355 / 512, whose products with small integers are exact, and the rest."""

EXP_SERIES = (
    1.0,
    1.0,
    0.49999993447277175,
    0.1666652062663931,
    0.041668388149583784,
    0.008368717351253226,
    0.0013814593660019829,
)
"""exp(r) for |r| <= ln(2) / 2, coefficients of rising powers; the error is at most 3.1e-9 of the result."""

ERF_LIMIT = 3.9192057
"""The greatest float32 whose erf, rounded, is less than 1."""

ERF_NUMERATOR = (
    *(1.12837911, 0.200779571, 0.0506854883, 0.00373553182),
    *(0.00014245543, -1.95505948e-06, 1.98130003e-08),
)
ERF_DENOMINATOR = (1.0, 0.511267878, 0.11535059, 0.0144244845, 0.000963575203)
"""erf(x) = x * P(x * x) / Q(x * x) within |x| <= ERF_LIMIT, coefficients of rising powers."""

TANH_LIMIT = 9.010913
"""The greatest float32 whose tanh, rounded, is less than 1."""

BELOW_ONE = 1 - 2.0**-24
"""The float32 before 1: within their limits erf and tanh are no greater, so that what cuts them off sees what it should."""

TANH_NUMERATOR = (0.999999979, 0.133793392, 0.00349358361, 2.05760293e-05, 1.33087084e-08)
TANH_DENOMINATOR = (1.0, 0.467126544, 0.0258693604, 0.000328235385, 7.75778486e-07)
"""tanh(x) = x * P(x * x) / Q(x * x) within |x| <= TANH_LIMIT. These fits, and those above, are least squares at 2,000 Chebyshev
nodes or more, reweighted towards the smallest maximum of the relative error."""


def exp(x: npt.ArrayLike) -> Floats:
    """Return exp(x), off by at most 1 unit in the last place of float64's.

    exp(x) = 2**n * exp(r) with n = rint(x / ln 2) and r = x - n * ln 2. Exactly 1 at 0, 0 at -inf, inf at inf; results below the
    smallest normal number are denormal, rounded once more.
    """
    series, power = _parts_of_exp(x, EXP_RANGE)
    half = power >> 1
    with np.errstate(all="ignore"):
        return (series * _two_to(half)) * _two_to(power - half)


def _parts_of_exp(x: npt.ArrayLike, within: tuple[float, float]) -> tuple[Floats, npt.NDArray[np.int32]]:
    """Return exp(r) and n of a value that is brought into a range before."""
    low, high = (np.float32(bound) for bound in within)
    value = np.asarray(x, np.float32)
    value = np.where(value > high, high, value)
    value = np.where(value < low, low, value)
    shifted = fused_multiply_add(value, np.float32(LOG2_E), np.float32(MAGIC))
    full = (shifted - np.float32(MAGIC)).astype(np.float32)
    rest = fused_multiply_add(full, np.float32(-LN2_LOW), fused_multiply_add(full, np.float32(-LN2_HIGH), value))
    return _series(rest, EXP_SERIES), shifted.view(np.int32) - np.int32(MAGIC_BITS)


def sigmoid(x: npt.ArrayLike) -> Floats:
    """Return 1 / (1 + exp(-x)) as e / (1 + e) with e = exp(x), off by at most 3 units in the last place.

    0 below -87.7, where the true value is below 8.3e-39 and no normal number any more.
    """
    series, power = _parts_of_exp(x, SIGMOID_RANGE)
    exponential = series * _two_to(power)
    return exponential / (np.float32(1) + exponential)


SIGMOID_RANGE = (-88.0, 88.0)
"""At its ends 2**n is 0, its exponent being -127, and finite, and sigmoid long 1."""


def tanh(x: npt.ArrayLike) -> Floats:
    """Return tanh(x), off by at most 6 units in the last place; exactly -1 and 1 beyond TANH_LIMIT alone."""
    return _rational(x, TANH_NUMERATOR, TANH_DENOMINATOR, TANH_LIMIT)


def erf(x: npt.ArrayLike) -> Floats:
    """Return erf(x), off by at most 6 units in the last place; exactly -1 and 1 beyond ERF_LIMIT alone."""
    return _rational(x, ERF_NUMERATOR, ERF_DENOMINATOR, ERF_LIMIT)


def _rational(x: npt.ArrayLike, numerator: tuple[float, ...], denominator: tuple[float, ...], limit: float) -> Floats:
    value = np.asarray(x, np.float32)
    one, limit32 = np.float32(1), np.float32(limit)
    with np.errstate(all="ignore"):
        square = value * value
        quotient = (value * _series(square, numerator)) / _series(square, denominator)
    below = np.float32(BELOW_ONE)
    quotient = np.where(quotient > below, below, quotient)
    quotient = np.where(quotient < -below, -below, quotient)
    return np.where(value > limit32, one, np.where(value < -limit32, -one, quotient)).astype(np.float32)


def _series(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    value: Floats = np.full(x.shape, np.float32(coefficients[-1]), np.float32)
    for coefficient in reversed(coefficients[:-1]):
        value = fused_multiply_add(value, x, np.float32(coefficient))
    return value


def _two_to(power: npt.NDArray[np.int32]) -> Floats:
    return ((power + np.int32(127)) << np.int32(23)).astype(np.int32).view(np.float32)


def _greater(a: Floats, b: Floats) -> Floats:
    """Return the greater one, b where they can't be compared or are equal."""
    return np.where(a > b, a, b)


def _lesser(a: Floats, b: Floats) -> Floats:
    """Return the lesser one, b where they can't be compared or are equal."""
    return np.where(a < b, a, b)


def _leaky(x: Floats, slope: Floats) -> Floats:
    return np.where(x > 0, x, x * slope)


FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "exp": (1, exp),
    "sigmoid": (1, sigmoid),
    "tanh": (1, tanh),
    "erf": (1, erf),
    "negative": (1, np.negative),
    "abs": (1, np.abs),
    "sqrt": (1, np.sqrt),
    "add": (2, np.add),
    "subtract": (2, np.subtract),
    "multiply": (2, np.multiply),
    "divide": (2, np.divide),
    "maximum": (2, _greater),
    "minimum": (2, _lesser),
    "leaky_relu": (2, _leaky),
    "multiply_add": (3, fused_multiply_add),
}
"""Operations of a step by name: how many operands, and what they do. All others than exp, sigmoid, tanh and erf round once."""

TRANSCENDENTAL = ("exp", "sigmoid", "tanh", "erf")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One operation; `operands` are numbers of values."""

    op: str
    operands: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the number of operands."""
        if len(self.operands) != FUNCTIONS[self.op][0]:
            raise ValueError(f"{self.op} takes {FUNCTIONS[self.op][0]} operands, got {len(self.operands)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatFunction:
    """A branch-free program on single float32 elements; its result is that of its last step.

    Parameters
    ----------
    inputs
        How many tensors it reads; values 0 to inputs - 1.
    constants
        float32 numbers: the values behind the inputs.
    steps
        Each is the next value, and reads earlier ones only.
    """

    inputs: int
    constants: tuple[float, ...]
    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        """Check that steps read earlier values."""
        first = self.inputs + len(self.constants)
        if not self.steps or self.inputs < 1:
            raise ValueError("a function has an input and a step at least")
        for number, step in enumerate(self.steps, first):
            if not all(0 <= operand < number for operand in step.operands):
                raise ValueError(f"step {step} is value {number} and can only read earlier ones")

    @property
    def operations(self) -> int:
        """About how many elementary operations an element costs."""
        return sum(_COSTS.get(step.op, 1) for step in self.steps)

    def __call__(self, *inputs: npt.ArrayLike) -> Floats:
        """Return the result for inputs of shapes that broadcast."""
        values: list[Floats] = [np.asarray(x, np.float32) for x in inputs]
        assert len(values) == self.inputs, f"{self.inputs} inputs, got {len(values)}"
        values.extend(np.float32(number) for number in self.constants)  # pyright: ignore[reportArgumentType]
        with np.errstate(all="ignore"):
            for step in self.steps:
                result = FUNCTIONS[step.op][1](*(values[operand] for operand in step.operands))
                values.append(np.asarray(result, np.float32))
        return values[-1]


_COSTS = {"exp": 20, "sigmoid": 30, "tanh": 25, "erf": 25, "divide": 10, "sqrt": 10}
