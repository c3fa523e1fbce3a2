"""Which of several quantized models is taken: the nearest one, unless single samples alone say that it is nearer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from fake_runs import FakeRuns

import octavo
from nets import residual_net
from octavo.numerics.statistics.metrics import ratio_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan.corrections import Corrections
from octavo.quantizer.plan.nearness import Nearness
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe

SHAPE = (1, 3, 8, 8)
SAMPLES = 16


def near(errors: Sequence[float]) -> Nearness:
    return Nearness(sqnr_db=ratio_db(1.0, float(np.mean(errors))), errors=tuple(errors))


def test_what_one_sample_decides_is_not_sure() -> None:
    even, one_better, all_better = near([0.01] * SAMPLES), near([0.0] + [0.01] * 15), near([0.008, 0.009] * 8)
    assert all_better.is_surely_nearer(even)
    assert not one_better.is_surely_nearer(even)
    assert one_better.sqnr_db > even.sqnr_db
    assert not even.is_surely_nearer(even)


@pytest.mark.parametrize("error", [math.inf, math.nan])
def test_what_is_not_finite_is_never_as_near(error: float) -> None:
    broken = Nearness(sqnr_db=-error, errors=(0.01, error, 0.01))
    assert near([0.01] * 3).is_surely_nearer(broken)
    assert Nearness(sqnr_db=20.0).is_surely_nearer(Nearness(sqnr_db=19.0)), "nothing is known of single samples"


class FakeSimulation:
    """Finds models by the range estimator of their recipe as near as it is given; corrects nothing."""

    def __init__(self, errors: dict[str, list[float]]) -> None:
        self.errors = errors

    def corrections(self, quantized: QuantizedModel, kept: object) -> Corrections:
        return Corrections()

    def nearness(self, quantized: QuantizedModel) -> Nearness:
        return near(self.errors.get(quantized.plan.recipe.range_estimator, [0.1] * SAMPLES))


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    return model, octavo.profile(model, [rng.normal(size=SHAPE).astype(np.float32) for _ in range(4)])


@pytest.mark.parametrize(
    ("mse", "taken"),
    [([0.001, 0.014, 0.005, 0.013] * 4, "min_max"), ([0.006, 0.008] * 8, "mse")],
    ids=["some samples are nearer", "all samples are nearer"],
)
def test_ranges_that_clip_are_taken_where_they_are_surely_nearer(profiled, mse: list[float], taken: str) -> None:
    model, profile = profiled
    simulation = FakeSimulation({"min_max": [0.0085, 0.0095] * 8, "mse": mse})
    plan = quantize_graph(model, profile, recipe=Recipe(range_estimator="auto"), runs=FakeRuns(simulation)).plan
    assert max(plan.corrections.tried, key=lambda name: plan.corrections.tried[name]) == "mse"
    assert plan.recipe.range_estimator == taken


@pytest.mark.parametrize(("error", "asked"), [(0.0125, [(21.0, True)]), (0.0063, [])], ids=["19 dB", "22 dB"])
def test_ranges_are_tuned_once_where_outputs_are_little_better_than_they_must_be(
    profiled, error: float, asked: list[tuple[float, bool]]
) -> None:
    model, profile = profiled
    goals: list[tuple[float, bool]] = []

    def find(simple: octavo.Model, quantized: QuantizedModel, goal_db: float, replan: object, *, only_ranges: bool) -> Choices:
        goals.append((goal_db, only_ranges))
        return Choices()

    simulation = FakeSimulation({"min_max": [error] * SAMPLES})
    quantize_graph(model, profile, recipe=Recipe(min_sqnr=18.0), runs=FakeRuns(simulation, find))
    assert goals == asked
