"""Estimates from a histogram, against the same figures computed from the values themselves."""

import math

import numpy as np
import pytest

from octavo.numerics.affine import dequantize, quantize
from octavo.numerics.quant_params import QuantParams
from octavo.numerics.statistics.histogram import Histogram
from octavo.numerics.statistics.histogram_estimates import estimated_sqnr_db, moments, share_outside, spans
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.numerics.statistics.ranges import asymmetric_params, symmetric_params

RANDOM = np.random.default_rng(5)
VALUES = {
    "normal": RANDOM.normal(0.3, 2.0, 40_000),
    "heavy tails": RANDOM.standard_t(3, 40_000),
    "rectified": np.maximum(RANDOM.normal(-0.5, 1.0, 40_000), 0),
    "clamped": np.clip(RANDOM.normal(2, 4.0, 40_000), 0, 6),
    "tiny": RANDOM.normal(0, 1e-20, 40_000),
    "huge": RANDOM.normal(0, 1e30, 40_000),
    "negative": -np.abs(RANDOM.normal(5, 0.5, 40_000)),
}


@pytest.fixture(params=VALUES)
def values(request: pytest.FixtureRequest) -> np.ndarray:
    return VALUES[request.param].astype(np.float32)


def extremes(values: np.ndarray) -> tuple[Histogram, float, float]:
    return Histogram.of(values), float(values.min()), float(values.max())


def test_moments_are_those_of_the_values(values: np.ndarray) -> None:
    found = moments(*extremes(values))
    exact = values.astype(np.float64)
    deviation = exact.std()
    assert found.mean == pytest.approx(exact.mean(), abs=2e-3 * deviation)
    assert found.deviation == pytest.approx(deviation, rel=2e-3)
    assert found.kurtosis == pytest.approx(((exact - exact.mean()) ** 4).mean() / deviation**4 - 3, rel=0.02, abs=0.02)


@pytest.mark.parametrize("percentile", [100.0, 99.9, 99.0, 90.0])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sqnr_is_that_of_quantizing_the_values(values: np.ndarray, percentile: float, dtype: str) -> None:
    histogram, minimum, maximum = extremes(values)
    params = asymmetric_params(*np.percentile(values, [(100 - percentile) / 2, (100 + percentile) / 2]), dtype)
    exact = sqnr_db(values, dequantize(quantize(values, params), params))
    assert estimated_sqnr_db(histogram, minimum, maximum, params) == pytest.approx(exact, abs=0.1)


def test_sqnr_of_a_symmetric_weight(values: np.ndarray) -> None:
    histogram, minimum, maximum = extremes(values)
    params = symmetric_params(values, "int8", axis=None)
    exact = sqnr_db(values, dequantize(quantize(values, params), params))
    assert estimated_sqnr_db(histogram, minimum, maximum, params) == pytest.approx(exact, abs=0.1)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.001])
def test_the_share_outside_is_that_of_the_values(values: np.ndarray, share: float) -> None:
    low, high = np.quantile(values, [share / 2, 1 - share / 2])
    outside = float(((values < low) | (values > high)).mean())
    assert share_outside(*extremes(values), float(low), float(high)) == pytest.approx(outside, abs=5e-3)


def test_nothing_lies_outside_the_whole_range(values: np.ndarray) -> None:
    histogram, minimum, maximum = extremes(values)
    assert share_outside(histogram, minimum, maximum, minimum, maximum) == 0


def test_one_value_is_known_exactly() -> None:
    histogram, minimum, maximum = extremes(np.full(7, 0.7, np.float32))
    found = moments(histogram, minimum, maximum)
    assert (found.mean, found.deviation, found.kurtosis) == (pytest.approx(0.7), 0, None)
    params = QuantParams.per_tensor("int8", 0.5, 0)
    # 0.7 becomes 1 * 0.5: an error of 0.2.
    assert estimated_sqnr_db(histogram, minimum, maximum, params) == pytest.approx(20 * math.log10(0.7 / 0.2), abs=1e-4)
    assert share_outside(histogram, minimum, maximum, 0.0, 0.6) == 1
    assert share_outside(histogram, minimum, maximum, 0.0, 0.8) == 0


def test_zeros_are_exact_and_lose_nothing() -> None:
    histogram, minimum, maximum = extremes(np.zeros(9, np.float32))
    low, high = spans(histogram, minimum, maximum)
    assert (low.tolist(), high.tolist()) == ([0], [0])
    assert estimated_sqnr_db(histogram, minimum, maximum, asymmetric_params(0, 0, "int8")) == math.inf


def test_no_values() -> None:
    assert share_outside(Histogram.empty(), 0, 0, -1, 1) == 0
    with pytest.raises(ValueError, match="no moments"):
        moments(Histogram.empty(), 0, 0)
