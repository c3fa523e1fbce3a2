"""Rounding to bfloat16 and float16, and the sums of bfloat16 products, against exact arithmetic."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from octavo.numerics import Window
from octavo.numerics.floats.half import MAX_FINITE, MIN_NORMAL, bfloat16_conv2d, bfloat16_dot, from_half, round_half, to_half

FORMATS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}


def float32_of(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_half_to_even(rng: np.random.Generator, dtype: str) -> None:
    every = rng.integers(0, 2**32, 200_000, np.uint32)
    ties = (every & np.uint32(0xFFFF0000)) | np.uint32(0x8000 if dtype == "bfloat16" else 0)
    values = np.concatenate([every, ties]).view(np.float32)
    values = values[np.isfinite(values) & ((np.abs(values) >= MIN_NORMAL[dtype]) | (dtype == "float16"))]
    with np.errstate(over="ignore"):
        expected = values.astype(FORMATS[dtype]).view(np.uint16)
    assert np.array_equal(to_half(values, dtype), expected)


def test_bfloat16_at_the_ends_of_its_range() -> None:
    subnormal, least = float32_of(0x007FFFFF), float32_of(0x00800000)
    beyond = np.nextafter(np.float32(MAX_FINITE["bfloat16"]), np.float32(np.inf))
    infinite = float32_of(0x7F7F8000)  # half a step beyond the largest
    values = np.array([subnormal, -subnormal, least, beyond, infinite, np.inf, -np.inf, -0.0], np.float32)
    assert to_half(values, "bfloat16").tolist() == [0, 0x8000, 0x0080, 0x7F7F, 0x7F80, 0x7F80, 0xFF80, 0x8000]
    # A NaN whose digits would be rounded away, or would carry into the sign, stays one.
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert to_half(nans, "bfloat16").tolist() == [0x7FC0, 0xFFC0, 0x7FFF, 0xFFFF]


def test_float16_at_the_ends_of_its_range() -> None:
    values = np.array([65504, 65519.99, 65520, -1e9, 2.0**-24, 2.0**-25, 3 * 2.0**-26], np.float32)
    assert to_half(values, "float16").tolist() == [0x7BFF, 0x7BFF, 0x7C00, 0xFC00, 1, 0, 1]
    assert np.isnan(round_half(float32_of(0x7FFFFFFF), "float16"))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_all_bits_come_back(dtype: str) -> None:
    bits = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = from_half(bits, dtype)
    same = values.view(np.uint32) if dtype == "bfloat16" else values
    expected = (bits.astype(np.uint32) << 16) if dtype == "bfloat16" else bits.view(np.float16).astype(np.float32)
    assert np.array_equal(same, expected, equal_nan=dtype == "float16")
    normal = np.isfinite(values) & ((np.abs(values) >= MIN_NORMAL[dtype]) | (values == 0) | (dtype == "float16"))
    assert np.array_equal(to_half(values[normal], dtype), bits[normal])


def rounded(exact: Fraction) -> np.float32:
    """The nearest float32 of an exact number of float32's normal range, half to even: by steps of its exponent."""
    if exact == 0:
        return np.float32(0)
    exponent = math.frexp(float(exact))[1] - 24
    step = Fraction(2) ** exponent
    return np.float32(float(round(exact / step) * step))


def test_each_product_is_added_in_one_rounding_the_second_of_a_pair_first(rng: np.random.Generator) -> None:
    for _ in range(300):
        count = int(rng.integers(1, 6))
        x, y = (round_half(rng.normal(size=count) * 2.0 ** rng.integers(-9, 9, count), "bfloat16") for _ in range(2))
        start = np.float32(rng.normal())
        total = start
        for step in [step for pair in range(0, count, 2) for step in (pair + 1, pair) if step < count]:
            total = rounded(Fraction(float(total)) + Fraction(float(x[step])) * Fraction(float(y[step])))
        assert bfloat16_dot(start, to_half(x, "bfloat16"), to_half(y, "bfloat16")) == total


def dot(acc: float, *products: tuple[float, float]) -> float:
    x, y = (to_half(np.array(values, np.float32), "bfloat16") for values in zip(*products, strict=True))
    return float(bfloat16_dot(np.float32(acc), x, y))


def test_sums_that_leave_the_range_of_float32() -> None:
    assert dot(-3e38, (2.0**127, 2.0)) == float(np.float32(2.0**128 - float(np.float32(3e38))))  # the product alone overflows
    assert dot(0, (2.0**127, 2.0), (1, 1)) == np.inf
    assert dot(0, (2.0**-70, 2.0**-60)) == 0.0  # a subnormal sum
    assert dot(1e-39, (0, 0)) == 0.0
    assert dot(2.0**-126, (2.0**-64, 2.0**-64)) == float(np.float32(2.0**-126 + 2.0**-128))  # a subnormal product counts
    assert np.isnan(dot(0, (np.inf, 0)))


def test_a_convolution_sums_its_window_as_it_lies(rng: np.random.Generator) -> None:
    x, w = (to_half(rng.normal(size=shape), "bfloat16") for shape in ((1, 5, 4, 3), (3, 2, 3, 7)))
    got = bfloat16_conv2d(x, w, window=Window(strides=(2, 1), padding=(1, 0, 1, 1)))
    padded = np.pad(x, ((0, 0), (1, 1), (0, 1), (0, 0)))
    assert got.shape == (1, 3, 4, 7)
    total = np.float32(0)
    for row in range(3):  # a row of both taps is one run of six products
        total = bfloat16_dot(total, padded[0, 2 + row, 1:3].ravel(), w[row, :, :, 5].reshape(6))
    assert got[0, 1, 1, 5] == total
