"""Leave activations float whose rounding costs most, where outputs gain more by it than the time that it takes is worth.

Those that products quantize per row when run are among them: a spectrum's rows have values whose logarithm is taken behind it.
Those that a function alone reads are computed in the kernel of the product that makes them: nothing else becomes float for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ...compiler.explanation import model_cycles
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..price import function_cycles, slower
from ..recipe import Recipe
from ..referee.score import in_db, said_alone
from .step import Evidence, Step

_NEAR_DB = 3.0
"""Above what outputs must have: with more, a model is not asked whose activations take long to measure."""
_MIN_GAIN_DB = 1.0
"""What float activations must gain, though they take no time."""
_PRICE = 2.0
"""What they must gain besides: so often what outputs have more than they must, in dB, for as much time again as all takes in
integers. Outputs that have just what they must gain by all; the more they have, the less time is more of it worth."""
_MAX_PRICE_DB = 20.0
"""More nobody must gain for as much time again where outputs have what they must: other steps ask for no more."""
_LITTLE = 0.1
"""Share of the time that activations may take to bring outputs nearer that are near enough for most."""
_ENOUGH_DB = 40.0
"""To come nearer is worth no time to outputs that have less than they must, and little to others."""
_NEAREST_DB = 60.0
"""Outputs as near have little to gain."""
_STEPS_DB = (3.0, 6.0, 12.0, 24.0)
"""By how much what stays float is to bring outputs nearer, or nearer than they must be: what is tried."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""
_SHARE = 0.05
"""Of the model's modelled time: more than that no functions may take."""
_MIN_SHARE = 0.002
"""Of the error that all such roundings make one by one: what makes less is not worth its time."""
_MIN_EFFECT = 1e-4
"""Of the worst output's power: what all of them make together; outputs within 40 dB have little to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepFloat(Step):
    """Float activations, as many as gain most beyond what their time is worth."""

    name: ClassVar = "keep float"
    measures_each: ClassVar = True
    goal_db: float
    below_db: float

    @property
    def min_gain_db(self) -> float:
        """What is worth an activation of four bytes."""
        return _MIN_GAIN_DB

    @property
    def below_db_if_large(self) -> float:
        """What outputs must have is worth minutes."""
        return self.goal_db

    @classmethod
    def of(cls, recipe: Recipe) -> list[KeepFloat]:
        """Return it where outputs must have so much."""
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(goal_db=goal, below_db=goal + _NEAR_DB)]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these float; None where nothing gains enough.

        Outputs that have what they must are not asked where another's hardware has its own times, where somebody speaks of single
        tensors, or where ops are float already by choice: those that chose them took what gains most.
        """
        plan, choices, planner = planned.plan, planned.choices.uncorrected, evidence.planner
        referee = evidence.runs.referee(plan)
        if referee is None:
            return None
        rounding = referee.rounding(plan)
        own, of_weights = (each.error for each in referee.scores_of([rounding, rounding.only(layers=rounding.layers)], few=True))
        has_enough, are_chosen = in_db(own) >= self.goal_db, any(each.tensor in choices.float_tensors for each in plan.float_ops)
        is_settled = planner.chosen.backends or not planner.recipe.may_leave_float or are_chosen
        if (has_enough and is_settled) or in_db(own) >= _NEAREST_DB or in_db(of_weights) < in_db(own) + _MIN_GAIN_DB:
            return None
        view, least, best = DataflowView(planner.simple.module["main"]), 0.0, None
        rows = {name for each in rounding.rows.values() for name in each} - rounding.activations.keys()
        effects = {**referee.effects(rounding), **referee.effects(rounding, sorted(rows))}
        for names in self._prefixes(effects, own, of_weights):
            found = choices.with_floats({name: said_alone(effects[name]) for name in names}, plan)
            other = planner.planned(found).plan
            time = slower(view, plan, other)
            if in_db(own) >= _ENOUGH_DB and time > _LITTLE:
                continue
            left = min(
                in_db(referee.score_of(referee.rounding(other), few=True).error), _NEAREST_DB if has_enough else _ENOUGH_DB
            )
            gain = left - in_db(own) - self._worth(in_db(own), left, time)
            if gain >= least:
                least, best = gain, found
        return best

    def again(self, planned: Planned, evidence: Evidence, before: Choices, chosen: Choices) -> Choices | None:
        """Return choices with the same float: that is what the referee found a gain of, and no number to be fitted."""
        del evidence
        floats = {name: why for name, why in chosen.float_tensors.items() if name not in before.float_tensors}
        return planned.choices.uncorrected.with_floats(floats, planned.plan) if floats else None

    def _worth(self, own: float, left: float, slower: float) -> float:
        """Return what must be gained for some time, in shares of what the model takes: none up to what outputs must have."""
        excess = max(own - self.goal_db, 0.0)
        price = min(_PRICE * excess, _MAX_PRICE_DB)
        if own < self.goal_db < left:
            price = _PRICE * (left - self.goal_db) ** 2 / (left - own) / 2  # on average on the way
        return _MIN_GAIN_DB + price * max(slower, 0.0)

    def _prefixes(self, effects: Mapping[TensorId, float], own: float, of_weights: float) -> Iterator[Sequence[TensorId]]:
        """Return the fewest activations without whose rounding outputs are so much nearer as is tried."""
        order = sorted(effects, key=lambda name: (-effects[name], name))
        most, tried = max(1, int(_MAX_FLOAT * len(order))), 0
        start = min(own, 10 ** (-self.goal_db / 10))
        for step in _STEPS_DB:
            wanted = max(start * 10 ** (-step / 10) - of_weights, 0.0)
            count = next(count for count in range(len(order) + 1) if sum(effects[name] for name in order[count:]) <= wanted)
            count = min(count, most)
            if count > tried:
                tried = count
                yield order[:count]


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseFunctions(Step):
    """Products' results that are not rounded before a function of them: else a table gives 8 bits of these 8 bits."""

    name: ClassVar = "fuse functions"

    @classmethod
    def of(cls, recipe: Recipe) -> list[FuseFunctions]:
        """Return it, unless bare rounding is wanted."""
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; where an op would become float for it, what that reads stays rounded."""
        planner, named = evidence.planner, planned.named
        supports = {layer.output: planner.support(layer) for layer in planned.plan.layers if layer.output not in named}
        able = [name for name, support in supports.items() if support is not None and support.float_function]
        chosen = _worth_their_time(planned, able, evidence) if able else {}
        while chosen:
            found = Choices(float_tensors=chosen).with_more(planned.choices.uncorrected)
            kept = {layer.output for layer in planner.planned(found).plan.layers}
            gone = {name for layer in planned.plan.layers if layer.output not in kept for name in (*layer.inputs, layer.output)}
            if not gone:
                return found
            left = {name: reason for name, reason in chosen.items() if name not in gone}
            chosen = left if len(left) < len(chosen) else {}
        return None


def _worth_their_time(planned: Planned, able: Collection[TensorId], evidence: Evidence) -> dict[TensorId, str]:
    """Return which of these products' results are best not rounded before a function of them, each with the reason."""
    plan, floats = planned.plan, evidence.planner.form(planned.choices.equalization)
    view = DataflowView(floats.exact.module["main"])
    cycles = function_cycles(view, plan.layers, [name for name in able if name in plan.activations])
    referee = evidence.runs.referee(plan) if cycles else None
    if referee is None:
        return {}
    effects = referee.effects(referee.rounding(plan), list(cycles))
    total = sum(min(effect, 1.0) for effect in effects.values())
    if total < _MIN_EFFECT:
        return {}
    room = _SHARE * model_cycles(view)
    found: dict[TensorId, str] = {}
    for name in sorted(cycles, key=lambda name: (-effects[name] / cycles[name], name)):
        if cycles[name] <= room and effects[name] >= _MIN_SHARE * total:
            room -= cycles[name]
            found[name] = said_alone(effects[name])
    return found
