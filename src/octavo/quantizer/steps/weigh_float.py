"""Leave activations float where outputs gain much for the time that it takes; how much they must have is no matter here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...compiler.explanation import FLOAT_BYTES, FLOAT_MACS, INT8_MACS, memory_cycles, model_cycles
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.graph.macs import float_macs
from ...ir.identity import TensorId
from ...runtime.shapes import typical
from ...target import ELEMENTWISE
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import Recipe
from ..referee.score import in_db, said_alone
from .evidence import Evidence
from .step import Step

_NEAR_DB = 3.0
"""Above what outputs must have: with more, a large model is not asked, for each of its activations is measured."""
_MIN_GAIN_DB = 1.0
"""What float activations must gain, though they take no time."""
_PRICE = 2.0
"""What they must gain besides: so often what outputs have more than they must, in dB, for as much time again as all takes in
integers. Outputs that have just what they must gain by all; the more they have, the less time is more of it worth."""
_ENOUGH_DB = 40.0
"""Outputs as near have little to gain."""
_STEPS_DB = (3.0, 6.0, 12.0, 24.0)
"""By how much what stays float is to bring outputs nearer: what is tried."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeighFloat(Step):
    """Float activations, as many as gain most beyond what their time is worth."""

    name: ClassVar = "weigh float"
    measures_each: ClassVar = True
    min_gain_db: ClassVar = _MIN_GAIN_DB
    goal_db: float
    below_db: float

    @classmethod
    def of(cls, recipe: Recipe) -> list[WeighFloat]:
        """Return it where activations may stay float at all."""
        goal = recipe.min_sqnr
        return [cls(goal_db=goal, below_db=goal + _NEAR_DB)] if goal is not None and recipe.may_leave_float else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these float; None where nothing gains enough, or another's hardware has its own times.

        None, too, where ops are float already by choice: those that chose them asked what outputs need, and took what gains most.
        """
        is_asked = not evidence.planner.chosen.backends and _floats(planned.plan).isdisjoint(planned.choices.float_tensors)
        referee = evidence.referee(planned.plan) if is_asked else None
        if referee is None:
            return None
        rounding, plan, choices = referee.rounding(planned.plan), planned.plan, planned.choices.uncorrected
        own, of_weights = (referee.score_of(each, few=True).error for each in (rounding, rounding.only(layers=rounding.layers)))
        if in_db(own) >= _ENOUGH_DB or in_db(of_weights) < in_db(own) + _MIN_GAIN_DB:
            return None
        view, fused = DataflowView(evidence.exact.module["main"]), _before_functions(planned, evidence)
        before, least, best = _cycles(view, plan), 0.0, None
        effects = {name: effect for name, effect in evidence.effects(referee, plan).items() if name not in fused}
        for names in _prefixes(effects, own, of_weights):
            found = choices.with_more(Choices(float_tensors={name: said_alone(effects[name]) for name in names}))
            other = evidence.planner.planned(found).plan
            left = in_db(referee.score_of(referee.rounding(other), few=True).error)
            slower = _cycles(view, other) / before - 1.0
            gain = min(left, _ENOUGH_DB) - in_db(own) - self._worth(in_db(own), slower)
            if gain >= least:
                least, best = gain, found
        return best

    def _worth(self, db: float, slower: float) -> float:
        """Return what must be gained for some time, in shares of what the model takes, where outputs have so much."""
        return _MIN_GAIN_DB + _PRICE * max(db - self.goal_db, 0.0) * max(slower, 0.0)


def _floats(plan: QuantizationPlan) -> set[TensorId]:
    return {each.tensor for each in plan.float_ops}


def _before_functions(planned: Planned, evidence: Evidence) -> set[TensorId]:
    """Return the sums that the kernel of their product can give to a function unrounded: nothing becomes float for these."""
    layers = planned.plan.layers
    supports = {layer.output: evidence.planner.support(layer) for layer in layers}
    able = {name for name, support in supports.items() if support is not None and support.float_function}
    return {layer.inputs[0] for layer in layers if layer.op == ELEMENTWISE and len(layer.inputs) == 1} & able


def _prefixes(effects: Mapping[TensorId, float], own: float, of_weights: float) -> Iterator[Sequence[TensorId]]:
    """Return the fewest activations without whose rounding outputs are so much nearer as is tried."""
    order = sorted(effects, key=lambda name: (-effects[name], name))
    most, tried = max(1, int(_MAX_FLOAT * len(order))), 0
    for step in _STEPS_DB:
        wanted = max(own * 10 ** (-step / 10) - of_weights, 0.0)
        count = next(count for count in range(len(order) + 1) if sum(effects[name] for name in order[count:]) <= wanted)
        count = min(count, most)
        if count > tried:
            tried = count
            yield order[:count]


def _cycles(view: DataflowView, plan: QuantizationPlan) -> float:
    """Return the modelled cycles of a float model where all is integer but what a plan leaves float."""
    floats = _floats(plan)
    more = 1 / FLOAT_MACS - 1 / INT8_MACS
    return model_cycles(view) + sum(
        float_macs(binding.value) * more
        + (FLOAT_BYTES - 1) * memory_cycles(typical(math.prod(static_shape(binding.var) or (0,))))
        for binding in view.bindings
        if binding.var.name in floats
    )
