"""What planning keeps of weights: found once for the same array and the same parameters, and no weight held for it."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import octavo
from nets import mlp
from octavo.compiler.target_choice import resolve_target
from octavo.ir.identity import TensorId
from octavo.numerics import QuantParams, quantize
from octavo.numerics.statistics.ranges import symmetric_params
from octavo.quantizer.plan.equalization import Equalization
from octavo.quantizer.quantize_graph import planner_of
from octavo.quantizer.weights import WeightNumbers

NAME = TensorId("w")


def test_integers_are_found_anew_only_for_other_parameters_or_another_array(rng: np.random.Generator) -> None:
    numbers, weight = WeightNumbers(), rng.standard_normal((5, 4)).astype(np.float32)
    params, wider = (symmetric_params(weight * factor, "int8", axis=1) for factor in (1, 2))
    first = numbers.integers(NAME, weight, params)
    np.testing.assert_array_equal(first, quantize(weight, params))
    assert numbers.integers(NAME, weight, symmetric_params(weight, "int8", axis=1)) is first  # equal parameters
    np.testing.assert_array_equal(numbers.integers(NAME, weight, wider), quantize(weight, wider))
    other = -weight
    np.testing.assert_array_equal(numbers.integers(NAME, other, params), -first)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_magnitudes_are_sums_along_all_other_axes(rng: np.random.Generator, axis: int) -> None:
    weight = np.append(rng.standard_normal((40, 4, 2)), -np.ones((9, 4, 2)), 0).astype(np.float32)
    params = QuantParams.per_tensor("int8", 2**-7, 0)  # whose least integer is -128
    sums = WeightNumbers().magnitudes(NAME, weight, params, axis)
    channels = np.moveaxis(np.abs(quantize(weight, params).astype(np.int64)), axis, 0)
    np.testing.assert_array_equal(sums, channels.reshape(len(channels), -1).sum(axis=1))


def test_no_weight_is_kept(rng: np.random.Generator) -> None:
    numbers, weight = WeightNumbers(), rng.standard_normal((5, 4)).astype(np.float32)
    numbers.magnitudes(NAME, weight, symmetric_params(weight, "int8", axis=1), 1)
    alive = weakref.ref(weight)
    del weight
    gc.collect()
    assert alive() is None


def test_a_model_that_is_let_go_of_is_made_anew(rng: np.random.Generator) -> None:
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)])
    planner = planner_of(model, profile, resolve_target(None), octavo.Recipe())
    halved, plain = Equalization(factors={TensorId("h"): np.full((1, 1), 2, np.float32)}), Equalization()
    first, own = planner.form(halved), planner.form(plain)
    planner.forget(but=halved)
    assert planner.form(halved) is first
    planner.forget(but=plain)
    assert planner.form(halved) is not first
    assert planner.form(plain) is own
