"""Ranges that single samples make much wider: taken in where that brings the outputs nearer, and noted in the plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fake_steps import with_referee

import octavo
from nets import residual_net
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.steps.ranges import ranges_without_outliers


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    """A network, and samples of which one in eight has a pixel far beyond the rest."""
    model = residual_net(3)
    (shape,) = (model.tensors[name].shape for name in model.input_ids)
    random = np.random.default_rng(4)
    samples = [random.standard_normal(shape).astype(np.float32) for _ in range(24)]
    for sample in samples[::8]:
        sample.reshape(-1)[0] = 100
    return model, octavo.profile(model, samples, keep_samples=24)


def test_mean_ranges_are_offered_where_most_of_a_range_is_outliers(profiled) -> None:
    model, profile = profiled
    asked = []
    octavo.quantize(model, profile, params=lambda choice: asked.append(choice))
    found = ranges_without_outliers(asked)
    activations = [choice for choice in asked if choice.kind != "weight"]
    assert len(found) >= 3
    for choice in activations:
        if choice.id in found:
            low, high = found[choice.id]
            seen = choice.statistics
            assert seen.minimum <= low <= high <= seen.maximum
            assert max(high, 0) - min(low, 0) < 0.67 * (max(seen.maximum, 0) - min(seen.minimum, 0))
    assert ranges_without_outliers(replace(choice, params=replace(choice.params, dtype="int16")) for choice in activations) == {}


def is_narrow(plan: QuantizationPlan) -> bool:
    return any("its range is" in each.message for each in plan.adjustments)


def level(db: float) -> list[float]:
    return [10 ** (-db / 10)] * 8


@pytest.mark.parametrize(("sqnr_db", "is_taken"), [(21.5, True), (20.05, False), (19.0, False)])
def test_they_are_taken_where_outputs_come_nearer(
    profiled, monkeypatch: pytest.MonkeyPatch, sqnr_db: float, is_taken: bool
) -> None:
    model, profile = profiled
    with_referee(monkeypatch, lambda plan: level(sqnr_db if is_narrow(plan) else 20.0))
    found = octavo.quantize(model, profile, recipe=octavo.Recipe(equalization="none")).plan
    assert found.journal.sqnr_db == pytest.approx(sqnr_db if is_taken else 20.0)
    assert is_narrow(found) == is_taken
    # Single rows are presumed to gain.
    assert all("its range is" in each.message or "a single row" in each.message for each in found.adjustments)
    assert ("narrow ranges" in found.journal.kept) == is_taken
    assert "narrow ranges" in [entry.step for entry in found.journal.entries]


def test_they_are_not_tried_where_others_choose_ranges(profiled, monkeypatch: pytest.MonkeyPatch) -> None:
    model, profile = profiled
    with_referee(monkeypatch, lambda plan: level(24.0))
    found = octavo.quantize(model, profile, recipe=octavo.Recipe(range_estimator="percentile")).plan
    assert found.journal.entries
    assert "narrow ranges" not in [entry.step for entry in found.journal.entries]
    assert not found.adjustments
