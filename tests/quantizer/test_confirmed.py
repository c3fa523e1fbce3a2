"""What targets take of a plan: their rules are asked once, about its very numbers, and may reject what descriptions take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_steps import FakeReferee, First, taken, with_fakes, with_referee

import octavo
from nets import residual_net
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph.rules import Claims
from octavo.ir.identity import TensorId
from octavo.quantizer import planner as planner_module
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.quantize import by_profile
from octavo.quantizer.quantize_graph import planner_of


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    return model, octavo.profile(model, [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(12)], keep_samples=12)


def quantized(profiled: tuple[octavo.Model, octavo.Profile]) -> QuantizationPlan:
    return by_profile(resolve_target("cpu"), *profiled, None).plan


def test_targets_are_asked_only_about_what_is_not_only_compared(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(*profiled, resolve_target("cpu"), octavo.Recipe())
    asked: list[Any] = []
    own = planner_module.integer_claims
    monkeypatch.setattr(planner_module, "integer_claims", lambda *args, **named: [asked.append(args), own(*args, **named)][1])
    first = planner.planned(Choices())
    other = planner.planned(Choices(ranges={next(iter(first.plan.activations)): (-0.5, 9.0)}))
    assert not asked
    assert planner.confirmed(other).plan == other.plan != first.plan
    assert len(asked) == 1
    assert quantized(profiled)
    assert len(asked) == 2, "one model comes of it, however many are compared"


def without_last(monkeypatch: pytest.MonkeyPatch, last: TensorId) -> None:
    """Let the rules of targets reject a layer, which their descriptions take."""
    own = planner_module.integer_claims

    def claims(*args: Any, **named: Any) -> Claims:
        found = own(*args, **named)
        regions = {key: each for key, each in found.regions.items() if all(var.name != last for var in each.members)}
        return replace(found, regions=regions)

    monkeypatch.setattr(planner_module, "integer_claims", claims)


def test_what_targets_do_not_take_stays_float_once_they_are_asked(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    planner = planner_of(*profiled, resolve_target("cpu"), octavo.Recipe())
    planned = planner.planned(Choices())
    last = planned.plan.layers[-1].output
    without_last(monkeypatch, last)
    sure = planner.confirmed(planned)
    assert last not in {layer.output for layer in sure.plan.layers}
    assert sure.plan.layers
    assert {op.tensor: op.reason for op in sure.plan.float_ops}[last].endswith("no rule takes it")


def test_the_journal_has_the_score_of_what_targets_take(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(monkeypatch, lambda names: [1.0], first=[First(name="r1")])
    last = quantized(profiled).layers[-1].output

    def error(plan: QuantizationPlan) -> float:
        return 0.1 if last not in {layer.output for layer in plan.layers} else 0.01

    with_referee(monkeypatch, lambda plan: [error(plan) / 2 ** len(taken(plan))] * 4)
    plan = quantized(profiled)
    assert [plan.journal.plain_db, plan.journal.sqnr_db] == pytest.approx([20, 23.01], abs=0.01)
    scored = len(FakeReferee.scored)
    without_last(monkeypatch, last)
    plan = quantized(profiled)
    assert last not in {layer.output for layer in plan.layers}
    assert [plan.journal.plain_db, plan.journal.sqnr_db] == pytest.approx([10, 13.01], abs=0.01)
    assert len(FakeReferee.scored) == 2 * scored + 2, "once more each"
