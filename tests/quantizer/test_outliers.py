"""Ranges that single samples make much wider: taken in where that brings the outputs nearer, and noted in the plan."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest
from fake_runs import FakeRuns

import octavo
from nets import residual_net
from octavo.quantizer.plan.corrections import Corrections
from octavo.quantizer.plan.nearness import Nearness
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.recipe import Recipe
from octavo.quantizer.steps.narrow_ranges import ranges_without_outliers


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


class FakeSimulation:
    """Finds the model with ranges that were taken in so near to the float one, and the other at 20 dB; corrects nothing."""

    def __init__(self, sqnr_db: float) -> None:
        self.narrower = sqnr_db

    def corrections(self, quantized: QuantizedModel, kept: Collection[str]) -> Corrections:
        return Corrections()

    def nearness(self, quantized: QuantizedModel) -> Nearness:
        return Nearness(sqnr_db=self.narrower if quantized.plan.adjustments else 20.0)


@pytest.mark.parametrize(("sqnr_db", "is_taken"), [(21.5, True), (20.5, False), (19.0, False)])
def test_they_are_taken_where_outputs_come_nearer(profiled, sqnr_db: float, is_taken: bool) -> None:
    model, profile = profiled
    found = quantize_graph(model, profile, runs=FakeRuns(FakeSimulation(sqnr_db))).plan
    assert found.corrections.sqnr_db == (sqnr_db if is_taken else 20.0)
    assert bool(found.adjustments) == is_taken
    assert all("its range is" in each.message for each in found.adjustments)


@pytest.mark.parametrize("recipe", [Recipe(min_sqnr=25.0), Recipe(range_estimator="percentile")])
def test_they_are_not_tried_where_others_choose_ranges(profiled, recipe: Recipe) -> None:
    model, profile = profiled
    assert not quantize_graph(model, profile, recipe=recipe, runs=FakeRuns(FakeSimulation(24.0))).plan.adjustments


class Shifter(FakeSimulation):
    """Shifts a bias as well, with which the model is 2 dB worse where ranges were taken in."""

    def corrections(self, quantized: QuantizedModel, kept: Collection[str]) -> Corrections:
        layer = next(layer for layer in quantized.plan.layers if layer.bias is not None)
        shifts = {layer.output: np.full(8, 1e-3, np.float32)}
        return Corrections(bias_shifts=shifts, nearness=self.of(is_narrow=False, shifts=True))

    def nearness(self, quantized: QuantizedModel) -> Nearness:
        return self.of(is_narrow=bool(quantized.plan.adjustments), shifts=bool(quantized.plan.corrections.bias_shifts))

    def of(self, *, is_narrow: bool, shifts: bool) -> Nearness:
        sqnr_db = (self.narrower - 2.0 * shifts if is_narrow else 20.0) if shifts or is_narrow else 19.0
        return Nearness(sqnr_db=sqnr_db)


@pytest.mark.parametrize(("sqnr_db", "is_taken"), [(21.5, True), (20.5, False)])
def test_biases_stay_where_their_corrections_do_not_suit_narrower_ranges(profiled, sqnr_db: float, is_taken: bool) -> None:
    model, profile = profiled
    found = quantize_graph(model, profile, runs=FakeRuns(Shifter(sqnr_db))).plan
    assert bool(found.adjustments) == is_taken
    assert bool(found.corrections.bias_shifts) != is_taken
    assert found.corrections.sqnr_db == (sqnr_db if is_taken else 20.0)
