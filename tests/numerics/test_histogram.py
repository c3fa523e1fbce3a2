"""The histogram: exact bins, and merges that give the same counts whatever the split, order or grouping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics.statistics.histogram import CODES, LAST_BIN, SHIFT, Histogram, bin_of, edges_of

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
LARGEST = float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal)
ONE = 127 << 6


def histogram(values: list[float]) -> Histogram:
    return Histogram.of(np.array(values, np.float32))


def as_bytes(value: Histogram) -> bytes:
    return value.bins.tobytes() + value.counts.tobytes()


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
def test_a_bin_holds_its_value_and_is_narrow(value: float) -> None:
    one = histogram([value])
    (low,), (high,) = one.edges()
    assert low <= value <= high
    assert value >= high or value < high or low == high
    if abs(value) > 2.0**-126:
        assert (high - low) <= abs(value) / 64
        assert low < value <= high if value < 0 else low <= value < high


@given(st.lists(FLOATS, min_size=1, max_size=30), FLOATS, FLOATS)
def test_clamping_the_histogram_is_the_histogram_of_the_clamped(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    clamped = np.clip(np.array(values, np.float32), np.float32(low), np.float32(high))
    assert histogram(values).clamped(low, high) == Histogram.of(clamped)
    assert histogram(values).clamped(0.0, float("inf")) == Histogram.of(np.maximum(np.array(values, np.float32), 0))


@given(st.lists(FLOATS, max_size=30))
def test_counts_by_code_give_the_same_histogram(values: list[float]) -> None:
    codes = np.array([*values, np.nan, np.inf, -np.inf], np.float32).view(np.uint32) >> SHIFT
    assert Histogram.of_codes(np.bincount(codes, minlength=CODES)) == histogram(values)


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (0.0, 0),
        (-0.0, 0),
        (SMALLEST, 0),
        (-SMALLEST, 0),
        (2.0**-132, 1),
        (1.0, ONE),
        (-1.0, -ONE),
        (1.0 + 1 / 64, ONE + 1),
        (float(np.nextafter(np.float32(1), np.float32(0))), ONE - 1),
        (6.0, (129 << 6) + 32),
        (LARGEST, LAST_BIN),
        (-LARGEST, -LAST_BIN),
    ],
)
def test_known_bins(value: float, index: int) -> None:
    assert bin_of(np.array([value], np.float32)).tolist() == [index]
    assert histogram([value]).bins.tolist() == [index]


def test_edges_are_those_of_the_bins() -> None:
    bins = np.arange(-LAST_BIN, LAST_BIN + 1)
    edges = edges_of(bins).astype(np.float32)
    np.testing.assert_array_equal(bin_of(edges), bins)
    assert (np.diff(edges) > 0).all()
    assert edges_of(np.array([LAST_BIN + 1])).tolist() == [2.0**128]


def test_the_empty_histogram_changes_nothing() -> None:
    some = histogram([0.5, -3.0, 7.0])
    assert Histogram.empty().merge(some) == some
    assert Histogram.merged([]) == Histogram.empty() == Histogram.of(np.zeros((0, 3), np.float32))
    assert some != Histogram.empty()
    assert (some.total, some.count_between(0, LAST_BIN)) == (3, 2)


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("bins", "counts", "message"),
    [
        (array(-LAST_BIN - 1), array(1), "ascend within"),
        (array(LAST_BIN + 1), array(1), "ascend within"),
        (array(1, 1), array(1, 1), "ascend"),
        (array(2, 1), array(1, 1), "ascend"),
        (array(1, 2), array(1), "2 bins have 1 counts"),
        (array(1), np.ones(1, np.int32), "int64"),
        (array(1), array(0), "positive"),
        (array(1), array(-1), "positive"),
    ],
)
def test_impossible_histograms_are_refused(bins: np.ndarray, counts: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Histogram(bins=bins, counts=counts)
