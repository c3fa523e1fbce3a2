"""The requantization oracle against exact rational arithmetic, and the multiplier against its definition."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics import requantize, requantize_multiplier

INT32 = st.integers(-(2**31), 2**31 - 1)
MULTIPLIERS = st.floats(0, 2.0**100, width=32, allow_nan=False)


def half_even(value: Fraction) -> int:
    """Python's own rounding of an exact fraction."""
    return round(value)


def expected(acc: int, multiplier: np.float32, zero_point: int, qmin: int, qmax: int) -> int:
    with np.errstate(over="ignore"):
        product = np.float32(acc) * multiplier
    if not np.isfinite(product):
        return qmax if acc > 0 else qmin
    return min(max(half_even(Fraction(float(product))) + zero_point, qmin), qmax)


@given(
    acc=INT32, multiplier=MULTIPLIERS, zero_point=st.integers(0, 255), bounds=st.tuples(st.integers(0, 255), st.integers(0, 255))
)
def test_equals_exact_rounding_of_the_float32_product(
    acc: int, multiplier: float, zero_point: int, bounds: tuple[int, int]
) -> None:
    qmin, qmax = sorted(bounds)
    got = requantize(np.array([acc], np.int32), np.float32(multiplier), zero_point, qmin, qmax)
    assert got.tolist() == [expected(acc, np.float32(multiplier), zero_point, qmin, qmax)]


@pytest.mark.parametrize(("acc", "rounded"), [(1, 0), (3, 2), (5, 2), (-1, 0), (-3, -2), (-5, -2), (2, 1)])
def test_halves_go_to_the_even_neighbour(acc: int, rounded: int) -> None:
    assert requantize(np.array([acc], np.int32), 0.5, 0, -128, 127, "int8").tolist() == [rounded]


def test_the_tie_is_decided_before_the_zero_point_is_added() -> None:
    assert requantize(np.array([1, 3], np.int32), 0.5, 1, 0, 255).tolist() == [1, 3]


def test_the_accumulator_is_rounded_to_float32_first() -> None:
    # 2**24 + 1 is no float32; half to even makes it 2**24, and the quotient an exact 128.
    acc = np.array([2**24 + 1], np.int32)
    assert requantize(acc, 2.0**-17, 0, 0, 255).tolist() == [128]


def test_multipliers_are_per_channel_on_the_last_axis() -> None:
    acc = np.full((2, 3), 10, np.int32)
    assert requantize(acc, np.float32([1, 2, 3]), 0, 0, 255).tolist() == [[10, 20, 30]] * 2


@given(
    acc=INT32,
    multiplier=st.floats(0, 2.0**20, width=32, allow_nan=False),
    bias=st.floats(-(2.0**40), 2.0**40, width=32),
    zero_point=st.integers(0, 255),
)
def test_a_real_bias_joins_the_product_before_both_are_rounded_once(
    acc: int, multiplier: float, bias: float, zero_point: int
) -> None:
    exact = Fraction(float(np.float32(acc))) * Fraction(multiplier) + Fraction(bias)
    near = np.float32(float(exact))  # the float64 next to the sum, rounded on: at most one float32 away from it
    around = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    closest = min(around, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.int32)) & 1))
    want = min(max(half_even(Fraction(float(closest))) + zero_point, 0), 255)
    got = requantize(np.array([acc], np.int32), multiplier, zero_point, 0, 255, real_bias=bias)
    assert got.tolist() == [want]


def test_dtype_and_range_are_checked() -> None:
    acc = np.array([-1000, 1000], np.int32)
    assert requantize(acc, 1.0, 0, -128, 127, "int8").tolist() == [-128, 127]
    with pytest.raises(ValueError, match=r"\[0; 255\] must lie in the range \[-128; 127\] of int8"):
        requantize(acc, 1.0, 0, 0, 255, "int8")


def test_the_multiplier_is_rounded_to_float32_twice() -> None:
    scales = np.random.default_rng(0).uniform(1e-4, 1, (3, 10_000)).astype(np.float32)
    got = requantize_multiplier(scales[0], scales[1], scales[2])
    assert got.dtype == np.float32
    twice = [np.float32(np.float32(float(a) * float(b)) / c) for a, b, c in scales.T]
    once = (scales[0].astype(np.float64) * scales[1] / scales[2]).astype(np.float32)
    assert np.array_equal(got, twice)
    assert not np.array_equal(got, once)  # the two definitions do differ


def test_the_multiplier_of_plain_numbers_is_a_number() -> None:
    assert requantize_multiplier(0.5, 0.25, 2.0).shape == ()
    assert requantize_multiplier(0.5, [0.25, 0.5], 2.0).tolist() == [0.0625, 0.125]
