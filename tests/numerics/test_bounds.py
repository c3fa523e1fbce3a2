"""The bound of the accumulator is reached and never exceeded."""

import itertools

import numpy as np
import pytest

from octavo.errors import CompileError
from octavo.numerics import check_accumulator, matmul_accumulate, max_accumulator


@pytest.mark.parametrize("w_zero_point", [0, -7])
@pytest.mark.parametrize(("x_zero_point", "x_qmin", "x_qmax"), [(0, 0, 255), (131, 0, 255), (255, 3, 255), (5, 5, 9)])
def test_some_input_reaches_it_and_none_exceeds_it(
    rng: np.random.Generator, w_zero_point: int, x_zero_point: int, x_qmin: int, x_qmax: int
) -> None:
    w = rng.integers(-128, 128, (6, 4)).astype(np.int8)
    bias = rng.integers(-5000, 5000, 4).astype(np.int32)
    corners = np.array(list(itertools.product((x_qmin, x_qmax), repeat=6)), np.uint8)
    sums = matmul_accumulate(corners, w, x_zero_point=x_zero_point, w_zero_point=w_zero_point, bias=bias)
    got = max_accumulator(w, w_zero_point, bias, x_zero_point, x_qmin, x_qmax)
    assert np.array_equal(got, np.abs(sums.astype(np.int64)).max(axis=0))


def test_padding_counts_as_real_zero_even_outside_the_range() -> None:
    # Every x is 10 above its zero point, but a tap in the padding contributes 0.
    w = np.array([[1], [-1]], np.int8)
    assert max_accumulator(w, 0, None, 0, 10, 10).tolist() == [10]


def test_zero_points_per_axis_and_any_leading_shape() -> None:
    w = np.zeros((2, 2, 3, 2), np.int8)
    assert max_accumulator(w, np.array([1, -2]), None, 0, 0, 255).tolist() == [12 * 255, 24 * 255]


def test_it_does_not_overflow_itself() -> None:
    w = np.full((70_000, 1), -128, np.int8)
    assert max_accumulator(w, 127, np.array([-(2**31)], np.int32), 0, 0, 255).tolist() == [70_000 * 255 * 255 + 2**31]


def test_a_layer_that_fits_passes_and_one_more_is_an_error() -> None:
    w = np.array([[1, 0]], np.int8)
    limit = 2**31 - 1 - 255
    check_accumulator(w, 0, np.array([limit, 0], np.int32), 0, where="dense")
    with pytest.raises(CompileError, match=r"dense: .* output channel 0 can reach 2147483648, above 2147483647"):
        check_accumulator(w, 0, np.array([limit + 1, 0], np.int32), 0, where="dense")
