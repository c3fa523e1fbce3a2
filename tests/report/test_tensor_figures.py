"""Figures of a tensor whose values are known."""

import numpy as np
import pytest

from octavo.ir.identity import TensorEntry, TensorId, TensorKind
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling import silent_channels
from octavo.profiling.statistics import TensorStatistics, constant_statistics
from octavo.report.tensor_figures import figures_of


def statistics(values: np.ndarray, axis: int | None = None, kind: TensorKind = "constant") -> TensorStatistics:
    entry = TensorEntry(id=TensorId("t"), source_name="t", kind=kind, shape=values.shape, dtype="float32")
    return constant_statistics(entry, values.astype(np.float32), axis)


def test_the_spread_compares_the_largest_channel_with_the_median_one() -> None:
    values = np.array([[1, -2], [3, 0.5], [-30, 4], [0, 0]])
    figures = figures_of(statistics(values, axis=0))
    assert figures.spread == pytest.approx(30 / 3)
    assert silent_channels(statistics(values, axis=0)) == (3,)


def test_without_channels_there_is_no_spread() -> None:
    alone = statistics(np.arange(5.0))
    assert (figures_of(alone).spread, silent_channels(alone)) == (None, ())


def test_a_channel_without_a_finite_value_is_silent() -> None:
    broken = statistics(np.array([[np.nan, np.nan], [1, 2]]), axis=0)
    assert (figures_of(broken).spread, silent_channels(broken)) == (1, (0,))


def test_outliers_lengthen_the_tail() -> None:
    values = np.linspace(-1, 1, 200_001)
    assert figures_of(statistics(values)).tail == pytest.approx(1, abs=1e-3)
    values[[0, -1]] = -20, 20
    figures = figures_of(statistics(values))
    assert figures.tail == pytest.approx(20, rel=0.02)
    assert 0 < figures.outliers <= 1.1e-4


def test_previews_start_with_the_whole_range() -> None:
    values = np.random.default_rng(2).normal(0, 1, 100_000)
    previews = figures_of(statistics(values, kind="activation")).previews
    percentiles = [f"percentile:{each}" for each in ("99.99", "99.9", "99")]
    spelled = [preview.range_estimator for preview in previews]
    assert spelled == ["min_max", *percentiles, "mse", "entropy", "mean", "global_scale"]
    assert (previews[0].low, previews[0].high) == (values.astype(np.float32).min(), values.astype(np.float32).max())
    assert previews[0].saturated == 0
    assert [round(preview.saturated, 3) for preview in previews[2:4]] == pytest.approx([0.001, 0.01], abs=1.5e-3)
    assert previews[0].scale > previews[1].scale > previews[2].scale > previews[3].scale


def test_constants_are_previewed_symmetric_and_activations_not() -> None:
    values = np.linspace(0, 12.7, 1000)
    [weight, activation] = [figures_of(statistics(values, kind=kind)).previews[0] for kind in ("constant", "activation")]
    assert (weight.scale, weight.zero_point) == (pytest.approx(0.1), 0)
    assert (activation.scale, activation.zero_point) == (pytest.approx(12.7 / 255), -128)


def test_nothing_finite_leaves_nothing_to_derive() -> None:
    figures = figures_of(statistics(np.array([np.nan, np.inf])))
    assert (figures.moments, figures.tail, figures.previews, figures.outliers) == (None, None, (), 0)


def test_a_constant_without_values() -> None:
    figures = figures_of(statistics(np.zeros((0, 4)), axis=1))
    assert (figures.moments, figures.spread, figures.previews) == (None, None, ())


def test_a_constant_of_one_value() -> None:
    figures = figures_of(statistics(np.full(4, -3.0)))
    assert figures.tail is None
    assert figures.previews[0].sqnr_db is None or figures.previews[0].sqnr_db > 100


def test_weights_are_measured_with_a_scale_for_each_channel() -> None:
    rng = np.random.default_rng(5)
    values = (rng.normal(0, 1, (16, 32, 3, 3)) * np.geomspace(0.01, 3, 16)[:, None, None, None]).astype(np.float32)
    values[3] = 0
    values[:, :4] = 0
    found = figures_of(statistics(values, axis=0)).previews
    scales = np.abs(values).max(axis=(1, 2, 3)) / 127
    scale = np.where(scales > 0, scales, 1)[:, None, None, None]
    exact = sqnr_db(values, (np.rint(values / scale) * scale).astype(np.float32))
    assert [each.range_estimator for each in found[:2]] == ["min_max by channel", "min_max"]
    assert (found[0].least_scale, found[0].scale) == pytest.approx((scales[scales > 0].min(), scales.max()), rel=1e-5)
    assert found[0].sqnr_db == pytest.approx(exact, abs=0.2)
    assert found[1].sqnr_db is not None
    assert found[1].sqnr_db < exact - 3
    assert figures_of(statistics(values)).previews[0].range_estimator == "min_max", "no weight: one scale"
