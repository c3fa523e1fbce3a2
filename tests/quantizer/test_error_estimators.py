"""Estimators that judge ranges by what quantizing loses, against brute force; and those of means and of a fixed range."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import octavo
from octavo.ir.identity import TensorEntry, TensorId
from octavo.numerics.statistics.histogram import Histogram
from octavo.profiling import TensorStatistics
from octavo.profiling.buckets import BUCKETS
from octavo.profiling.statistics import constant_statistics
from octavo.quantizer.ranges import (
    Entropy,
    GlobalScale,
    Mean,
    MinMax,
    Mse,
    QuantScheme,
    RangeEstimator,
    range_estimator,
    range_estimator_help,
)
from octavo.quantizer.recipe import Recipe

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
SCHEMES = {
    "uint8": QuantScheme(dtype="uint8"),
    "symmetric int8": QuantScheme(dtype="int8", symmetric=True),
    "narrow int8": QuantScheme(dtype="int8", symmetric=True, narrow=True),
    "power of two": QuantScheme(dtype="int8", symmetric=True, power_of_two=True),
    "uint4": QuantScheme(dtype="uint4"),
    "symmetric int4": QuantScheme(dtype="int4", symmetric=True),
    "int16": QuantScheme(dtype="int16", symmetric=True),
    "uint16": QuantScheme(dtype="uint16"),
}
COUNT = 30_000


def _drawn(name: str) -> np.ndarray:
    rng = np.random.default_rng(7)
    normal = rng.standard_normal(COUNT)
    values = {
        "normal": normal,
        "laplace": rng.laplace(0, 3, COUNT),
        "relu": np.maximum(normal, 0),
        "negative": -rng.exponential(1e-3, COUNT),
        "uniform": rng.uniform(-1, 2, COUNT),
        "shifted": normal + 5,
        "spiky": np.concatenate([0.1 * normal, 10 * normal[:30], np.zeros(COUNT)]),
        "outliers": np.append(normal, [100.0, -60.0]),
        "far outlier": np.append(normal, 1e6),
    }
    return values[name].astype(np.float32)


DISTRIBUTIONS = ("normal", "laplace", "relu", "negative", "uniform", "shifted", "spiky", "outliers", "far outlier")


def statistics(values: np.ndarray) -> TensorStatistics:
    entry = TensorEntry(id=TensorId("t"), source_name="t", kind="activation", shape=values.shape, dtype="float32")
    return constant_statistics(entry, values.astype(np.float32))


def squared_error(values: np.ndarray, low: float, high: float, scheme: QuantScheme) -> float:
    params = scheme.params(low, high)
    scale, zero_point = float(params.scale), int(params.zero_point)
    integers = np.clip(np.rint(values.astype(np.float64) / scale) + zero_point, params.qmin, params.qmax)
    return float(np.square((integers - zero_point) * scale - values).mean())


def least_of_grid(values: np.ndarray, scheme: QuantScheme) -> float:
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    if scheme.symmetric or low == 0 or high == 0:
        ranges = [(low * part, high * part) for part in np.geomspace(1, 0.02, 120)]
    else:
        parts = np.append(np.geomspace(1, 0.04, 18), 0.01)
        ranges = [(low * left, high * right) for left, right in itertools.product(parts, parts)]
    return min(squared_error(values, *each, scheme) for each in ranges)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_range_of_a_grid_has_2_percent_less_error(name: str, scheme: QuantScheme) -> None:
    values = _drawn(name)
    low, high = Mse().range_of(statistics(values), scheme)
    assert squared_error(values, low, high, scheme) <= 1.02 * least_of_grid(values, scheme)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from(sorted(SCHEMES)), st.floats(0.3, 3), st.floats(-2, 2), st.floats(-30, 30))
def test_mse_loses_no_more_than_min_max(seed: int, scheme: str, power: float, shift: float, exponent: float) -> None:
    normal = np.random.default_rng(seed).standard_normal(5000)
    values = ((np.sign(normal) * np.abs(normal) ** power + shift) * 2.0**exponent).astype(np.float32)
    found = squared_error(values, *Mse().range_of(statistics(values), SCHEMES[scheme]), SCHEMES[scheme])
    assert found <= 1.02 * squared_error(values, float(values.min()), float(values.max()), SCHEMES[scheme])


def test_few_bits_take_a_narrower_range() -> None:
    found = statistics(_drawn("normal"))
    ends = [Mse().range_of(found, SCHEMES[name])[1] for name in ("int16", "symmetric int8", "symmetric int4")]
    # Of a normal distribution, published: 3.92 deviations for 8 bits, 2.51 for 4 (ACIQ, Banner et al., 2019, table 1).
    assert ends[0] > ends[1] == pytest.approx(3.92, rel=0.05)
    assert ends[2] == pytest.approx(2.51, rel=0.1)


def reference_threshold(values: np.ndarray, levels: int) -> float:
    """Return the threshold of TensorRT's slides: 2048 even bins of the magnitudes, every fourth of them tried."""
    counts, edges = np.histogram(np.abs(values[values != 0]), 2048, (0, float(np.abs(values).max())))
    best, threshold = np.inf, 0.0
    for size in range(levels, 2049, 4):
        p = counts[:size].astype(np.float64)
        p[-1] += counts[size:].sum()
        lengths = np.full(levels, size // levels) + (np.arange(levels) < size % levels)
        starts, used = np.cumsum(lengths) - lengths, counts[:size] > 0
        means = np.add.reduceat(counts[:size], starts) / np.maximum(np.add.reduceat(used, starts, dtype=np.int64), 1)
        q = np.where(used, np.repeat(means, lengths), 0.0)
        used = p > 0
        p, q = p[used] / p.sum(), q[used] / q.sum()
        divergence = np.inf if (q == 0).any() else float((p * np.log(p / q)).sum())
        if divergence < best:
            best, threshold = divergence, float(edges[size])
    return threshold


@pytest.mark.parametrize("name", ["laplace", "heavy", "exponential", "relu"])
def test_entropy_is_near_the_reference(name: str) -> None:
    rng = np.random.default_rng(3)
    values = {
        "laplace": rng.laplace(0, 1, 400_000),
        "heavy": rng.standard_t(3, 400_000),
        "exponential": rng.exponential(0.01, 400_000),
        "relu": np.maximum(rng.standard_normal(400_000), 0),
    }[name].astype(np.float32)
    found = Entropy().range_of(statistics(values), SCHEMES["symmetric int8"])
    assert found[1] == pytest.approx(reference_threshold(values, 128), rel=0.2)


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_entropy_cuts_a_far_outlier_and_keeps_a_uniform_whole(scheme: QuantScheme) -> None:
    cut = Entropy().range_of(statistics(_drawn("far outlier")), scheme)
    assert 2.4 < cut[1] < 5
    uniform = _drawn("uniform")
    low, high = Entropy().range_of(statistics(uniform), scheme)
    assert (low, high) == (float(uniform.min()), float(uniform.max()))


def test_values_that_are_noise_beside_the_others_do_not_rule_entropy() -> None:
    rng = np.random.default_rng(5)
    values = np.concatenate([rng.standard_normal(COUNT), rng.uniform(-4e-16, 4e-16, COUNT)])
    for scheme in (SCHEMES["uint8"], SCHEMES["narrow int8"]):
        assert Entropy().range_of(statistics(values), scheme)[1] > 2.5


def test_entropy_keeps_few_different_values() -> None:
    values = np.repeat(np.arange(10.0), [9000, 5000, 900, 100, 50, 20, 10, 5, 2, 1])
    for scheme in SCHEMES.values():
        assert Entropy().range_of(statistics(values), scheme) == (0.0, 9.0)


ERROR_ESTIMATORS: tuple[RangeEstimator, ...] = (Mse(), Entropy(), Mean())


@settings(max_examples=40)
@given(st.lists(FLOATS, max_size=60), st.sampled_from(sorted(SCHEMES)))
@example([], "uint8")
@example([0.0, -0.0], "int16")
@example([5.0] * 9, "uint8")
@example([-3.0] * 9, "symmetric int4")
@example([1e-45, -1e-40, 3e-39], "uint8")
@example([*np.linspace(-1, 1, 50).tolist(), 1e6], "uint4")
@example([3.4028234663852886e38, -3.4028234663852886e38, 1.0], "symmetric int8")
@example([3.4028234663852886e38, 1e-45], "uint8")
def test_ranges_are_ordered_and_within_the_observed_one(values: list[float], scheme: str) -> None:
    found = statistics(np.array(values, np.float32))
    for estimator in ERROR_ESTIMATORS:
        low, high = estimator.range_of(found, SCHEMES[scheme])
        assert found.minimum <= low <= high <= found.maximum, estimator
        SCHEMES[scheme].params(low, high)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 4999), st.sampled_from(sorted(SCHEMES)))
def test_how_a_profile_was_merged_does_not_count(seed: int, split: int, scheme: str) -> None:
    values = np.random.default_rng(seed).standard_t(3, 5000).astype(np.float32)
    whole = statistics(values)
    histogram = Histogram.of(values[split:]).merge(Histogram.of(values[:split]))
    for estimator in (Mse(), Entropy()):
        merged = estimator.range_of(replace(whole, histogram=histogram), SCHEMES[scheme])
        assert merged == estimator.range_of(whole, SCHEMES[scheme])


def test_the_mean_is_of_the_buckets_that_have_values() -> None:
    low, high = np.full(BUCKETS, np.inf, np.float32), np.full(BUCKETS, -np.inf, np.float32)
    low[[1, 5, 30]], high[[1, 5, 30]] = (-1, -2, -6), (1, 2, 30)
    values = np.array([-6, 30], np.float32)
    entry = TensorEntry(id=TensorId("t"), source_name="t", kind="activation", shape=(2,), dtype="float32")
    found = replace(constant_statistics(entry, values), bucket_minimum=low, bucket_maximum=high)
    assert Mean().range_of(found, SCHEMES["uint8"]) == (-3.0, 11.0)
    unknown = statistics(values)
    assert Mean().range_of(unknown, SCHEMES["uint8"]) == MinMax().range_of(unknown, SCHEMES["uint8"])


def test_a_global_scale_looks_at_no_value() -> None:
    estimator = range_estimator("global_scale:4")
    assert estimator == GlobalScale(4.0)
    assert estimator.range_of(statistics(np.ones(3)), SCHEMES["uint8"]) == (-4.0, 4.0)
    assert GlobalScale() == GlobalScale(8.0)
    assert float(SCHEMES["symmetric int8"].params(*estimator.range_of(statistics(np.zeros(0)), UINT8)).scale) == np.float32(
        4 / 127
    )


UINT8 = SCHEMES["uint8"]


@pytest.mark.parametrize("argument", ["0", "-8", "nan", "inf", "1e39", "1e-40"])
def test_wrong_widths_are_refused(argument: str) -> None:
    with pytest.raises(octavo.OctavoError, match=r"recipe: half_width must lie in \[2\^-100; 2\^127\), got"):
        Recipe(range_estimator=f"global_scale:{argument}")


@pytest.mark.parametrize("name", ["mse", "entropy", "mean"])
def test_no_argument_is_taken(name: str) -> None:
    with pytest.raises(octavo.OctavoError, match=f"recipe: {name} takes no argument"):
        Recipe(range_estimator=f"{name}:3")
    assert f"; {name} takes the" in range_estimator_help()
