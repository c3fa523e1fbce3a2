"""What outputs must gain for time: nothing where none is taken, and the more, the more of the model a plan leaves float."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import octavo
from apply_steps import with_steps
from nets import mlp
from octavo.compiler.explanation import model_cycles
from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.identity import TensorId
from octavo.quantizer.plan.entries import FloatOp
from octavo.quantizer.price import cycles_in_float, slower, worth_db
from octavo.quantizer.steps import FloatTensors, PerSample, Rotate


def test_more_time_must_gain_more(rng: np.random.Generator) -> None:
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)])
    plan = octavo.quantize(model, profile, preset="fast").plan
    view = DataflowView(model.module["main"])
    assert {str(layer.output) for layer in plan.layers} == {"h", "y"}
    floats = [FloatOp(op="", tensor=TensorId(binding.var.name), reason="") for binding in view.bindings]
    first = next(place for place, each in enumerate(floats, 1) if each.tensor == "h")
    one, both = (
        replace(plan, layers=plan.layers[left:], float_ops=tuple(floats[:count]))
        for left, count in ((1, first), (2, len(floats)))
    )
    assert slower(view, plan, plan) == worth_db(view, plan, plan) == worth_db(view, both, plan) == 0
    assert 0 < slower(view, plan, one) < slower(view, plan, both)
    assert slower(view, plan, one) > slower(view, both, both) == 0

    by_rows = replace(plan, layers=(replace(plan.layers[0], per_row=plan.layers[0].inputs), *plan.layers[1:]))
    assert 0 < slower(view, plan, by_rows) < slower(view, plan, one)
    worth = worth_db(view, plan, both)
    assert Rotate().demanded_db(worth) == pytest.approx(1.0)
    assert 1 < PerSample().demanded_db(worth) < worth, "some ask for more"
    assert Rotate().demanded_db(0.0) == Rotate().min_gain_db


def test_one_activation_takes_in_float_what_the_plan_with_it_does_more(rng: np.random.Generator) -> None:
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)], keep_samples=1)
    plain, kept = (
        with_steps(model, profile, steps).plan for steps in ([], [FloatTensors(names=(TensorId("h"),), reasons=("",))])
    )
    assert [str(layer.output) for layer in kept.layers] == ["h"]
    view = DataflowView(model.module["main"])
    cycles = cycles_in_float(view, plain, [TensorId("x"), TensorId("h")])
    assert cycles["h"] == {"y": pytest.approx(slower(view, plain, kept) * model_cycles(view))}
    assert cycles["x"].keys() == {"h"}
    assert cycles["x"]["h"] > cycles["h"]["y"], "the first layer is the larger one"
