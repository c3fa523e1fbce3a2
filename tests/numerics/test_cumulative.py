"""Running sums over a histogram against the values themselves, and a logarithm that is the same on any machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.numerics.statistics.cumulative import CumulativeMoments, folded, natural_log
from octavo.numerics.statistics.histogram import Histogram
from octavo.numerics.statistics.histogram_estimates import spans

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_folding_counts_magnitudes(values: list[float]) -> None:
    data = np.array(values, np.float32)
    assert folded(Histogram.of(data)) == Histogram.of(np.abs(data))


@pytest.mark.parametrize("seed", range(4))
def test_sums_below_and_above_are_those_of_the_values(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.standard_normal(50_000), rng.exponential(4, 50_000), np.zeros(7000)]).astype(np.float32)
    histogram = Histogram.of(values)
    ends = spans(histogram, float(values.min()), float(values.max()))
    moments = CumulativeMoments(*ends, histogram.counts.astype(np.float64))
    exact = values.astype(np.float64)
    numbers = np.array([-100.0, -1.5, -1e-3, 0.0, 1e-9, 0.02, 0.77, 3.0, 100.0])
    for sums, inside in ((moments.below(numbers), np.less), (moments.above(numbers), np.greater_equal)):
        for power, found in enumerate(sums):
            expected = [(exact[inside(exact, number)] ** power).sum() for number in numbers]
            np.testing.assert_allclose(found, expected, rtol=5e-4, atol=1e-5 * moments.total[power])


@given(st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=20))
def test_logarithms(values: list[float]) -> None:
    numbers = np.array(values)
    np.testing.assert_allclose(natural_log(numbers), np.log(numbers), rtol=2e-15, atol=2e-16)
    assert natural_log(np.ones(1)).tolist() == [0.0]
