"""The histogram: exact bins, and merges that give the same counts whatever the split, order or grouping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics.histogram import BINS, MAX_EXPONENT, MIN_EXPONENT, ZERO_BIN, Histogram, bin_of, exponent_of

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def histogram(values: list[float]) -> Histogram:
    return Histogram.of(np.array(values, np.float32))


def as_bytes(value: Histogram) -> bytes:
    return bytes([value.exponent - MIN_EXPONENT]) + value.counts.tobytes()


@given(st.lists(FLOATS, min_size=1, max_size=40), st.data())
def test_any_tree_of_merges_gives_the_bytes_of_one_pass(values: list[float], data: st.DataObject) -> None:
    order = data.draw(st.permutations(values))
    parts: list[Histogram] = []
    while order:
        size = data.draw(st.integers(1, len(order)))
        parts.append(histogram(order[:size]))
        order = order[size:]
    while len(parts) > 1:
        first = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        second = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(first.merge(second))
    assert as_bytes(parts[0]) == as_bytes(histogram(values))


@given(FLOATS)
def test_exponent_is_the_smallest_that_holds_the_value(value: float) -> None:
    exponent = exponent_of(abs(value))
    assert MIN_EXPONENT <= exponent <= MAX_EXPONENT
    assert abs(value) < 2.0**exponent
    assert exponent == MIN_EXPONENT or abs(value) >= 2.0 ** (exponent - 1)


@given(FLOATS, st.integers(0, 200))
def test_bin_is_half_open_and_coarsening_finds_the_bin_of_the_wider_range(value: float, more: int) -> None:
    single = np.array([value], np.float32)
    one = Histogram.of(single)
    (index,) = np.flatnonzero(one.counts)
    assert one.edge(int(index)) <= value < one.edge(int(index) + 1)
    wider = min(one.exponent + more, MAX_EXPONENT)
    assert np.flatnonzero(one.coarsened(wider).counts).tolist() == bin_of(single, wider).tolist()


@pytest.mark.parametrize(
    ("value", "exponent", "index"),
    [
        (0.0, MIN_EXPONENT, ZERO_BIN),
        (-0.0, MIN_EXPONENT, ZERO_BIN),
        (SMALLEST, MIN_EXPONENT, ZERO_BIN),
        (-SMALLEST, MIN_EXPONENT, ZERO_BIN - 1),
        (1.0, 1, ZERO_BIN + 512),
        (-1.0, 1, ZERO_BIN - 512),
        (math.nextafter(1, 0), 0, BINS - 1),
        (LARGEST, MAX_EXPONENT, BINS - 1),
        (-LARGEST, MAX_EXPONENT, 0),
    ],
)
def test_extreme_values(value: float, exponent: int, index: int) -> None:
    single = np.nextafter(np.float32(1), np.float32(0)) if value == math.nextafter(1, 0) else value
    one = histogram([float(single)])
    assert (one.exponent, np.flatnonzero(one.counts).tolist()) == (exponent, [index])


def test_a_vanishing_negative_value_stays_below_zero_beside_the_largest() -> None:
    both = histogram([-SMALLEST, LARGEST])
    assert np.flatnonzero(both.counts).tolist() == [ZERO_BIN - 1, BINS - 1]


def test_the_empty_histogram_changes_nothing() -> None:
    some = histogram([0.5, -3.0, 7.0])
    assert Histogram.empty().merge(some) == some
    assert Histogram.merged([]) == Histogram.empty() == Histogram.of(np.zeros((0, 3), np.float32))
    assert some != Histogram.empty()
    assert (some.total, some.bin_width) == (3, 16 / BINS)


@pytest.mark.parametrize(
    ("exponent", "counts", "message"),
    [
        (MIN_EXPONENT - 1, np.zeros(BINS, np.int64), "exponent"),
        (MAX_EXPONENT + 1, np.zeros(BINS, np.int64), "exponent"),
        (0, np.zeros(BINS - 1, np.int64), "int64"),
        (0, np.zeros(BINS, np.int32), "int64"),
        (0, np.full(BINS, -1, np.int64), "negative"),
    ],
)
def test_impossible_histograms_are_refused(exponent: int, counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Histogram(exponent=exponent, counts=counts)
