"""Which ranges are taken: the nearest of several estimators', unless single samples alone say so; what is tuned, and how far."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_steps import with_referee

import octavo
from nets import residual_net
from octavo.quantizer.recipe import Recipe
from octavo.quantizer.steps import Step
from octavo.quantizer.steps.keep_float import KeepFloat
from octavo.quantizer.steps.ranges import TuneRanges

SHAPE = (1, 3, 8, 8)
SAMPLES = 24
HELD_BACK = 8
AUTO = Recipe(range_estimator="auto", weight_rounding="nearest", bias_correction=False, equalization="none", min_sqnr=None)


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(SAMPLES)]
    return model, octavo.profile(model, samples, keep_samples=SAMPLES)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps for a ratio that are asked what to choose; they find nothing."""
    found: list[Step] = []
    for kind in (TuneRanges, KeepFloat):
        monkeypatch.setattr(kind, "propose", lambda self, planned, evidence: found.append(self))
    return found


@pytest.mark.parametrize(
    ("mse", "taken"),
    [([0.001, 0.0098, 0.0097, 0.0099, 0.0098, 0.0097, 0.0099, 0.0098], "auto"), ([0.006, 0.008] * 4, "mse")],
    ids=["one sample is nearer", "all samples are nearer"],
)
def test_ranges_that_clip_are_taken_where_they_are_surely_nearer(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, asked: list[Step], mse: list[float], taken: str
) -> None:
    model, profile = profiled
    errors = {"auto": [0.0085, 0.0095] * 4, "mse": [mse, mse[1:] + mse[1:2], mse[1:] + mse[1:2]]}
    with_referee(monkeypatch, lambda plan: errors.get(plan.recipe.range_estimator, [0.1] * HELD_BACK))
    plan = octavo.quantize(model, profile, recipe=AUTO).plan
    tried = [entry for entry in plan.journal.entries if entry.step == "ranges" and "again" not in entry.proposal]
    best = max(tried, key=lambda entry: entry.gain_db)
    assert best.proposal == "mse: ranges by mse"
    taken_out = [entry.proposal for entry in plan.journal.entries if entry.proposal.endswith("taken out again")]
    assert taken_out == ([] if taken == "mse" else ["mse: taken out again"]), "the samples of two more folds say otherwise"
    assert [entry.proposal.rpartition(" ")[2] for entry in tried] == ["mean", "mse", "percentile:99.99"]
    assert plan.recipe.range_estimator == taken
    assert plan.journal.kept == ([] if taken == "auto" else ["ranges"])
    assert [type(each) for each in asked] == [TuneRanges], "single ranges are looked for, too, as far as that gains"


@pytest.mark.parametrize(
    ("error", "is_asked"),
    [
        (0.02, True),
        (0.0125, True),
        (0.0063, False),
    ],
    ids=["17 dB", "19 dB", "22 dB"],
)
def test_ranges_are_tuned_where_outputs_are_little_better_than_they_must_be_and_less_is_rounded_below(
    profiled: Any,
    monkeypatch: pytest.MonkeyPatch,
    asked: list[Step],
    error: float,
    is_asked: bool,
) -> None:
    model, profile = profiled
    with_referee(monkeypatch, lambda plan: [error] * HELD_BACK)
    recipe = Recipe(min_sqnr=18.0, equalization="none")
    octavo.quantize(model, profile, recipe=recipe)
    expected = [TuneRanges(below_db=21.0), KeepFloat(goal_db=18.0, below_db=21.0)]
    assert asked == expected, "samples are small: it is quick"
    asked.clear()
    for kind in (TuneRanges, KeepFloat):
        monkeypatch.setattr(kind, "small_bytes", 1)
    octavo.quantize(model, profile, recipe=recipe)
    assert asked == (expected if is_asked else [])
    monkeypatch.setattr("octavo.ir.graph.model._LARGE", 0)
    asked.clear()
    octavo.quantize(model, profile, recipe=recipe)
    assert asked == (expected[1:] if error > 0.0158 else []), "to measure all of a large model takes minutes"


@pytest.mark.parametrize("recipe", [Recipe(min_sqnr=None), Recipe(bias_correction=False, weight_rounding="nearest")])
def test_what_asks_for_no_ratio_has_none_looked_for_where_samples_are_large(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, asked: list[Step], recipe: Recipe
) -> None:
    model, profile = profiled
    with_referee(monkeypatch, lambda plan: [0.5] * HELD_BACK)
    for kind in (TuneRanges, KeepFloat):
        monkeypatch.setattr(kind, "small_bytes", 1)
    assert octavo.quantize(model, profile, recipe=recipe).plan.journal.entries
    assert asked == []
