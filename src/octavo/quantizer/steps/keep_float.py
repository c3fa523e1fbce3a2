"""Give activations whose rounding costs most other ranges, or leave them float, as many as it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from ...ir.identity import TensorId
from ...target import ELEMENTWISE, ELEMENTWISE_PAIR
from ..choices import Choices, float_without_loss
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import Recipe
from ..referee import Referee
from .evidence import Evidence
from .step import Step
from .tune_ranges import better_ranges, costly

_MORE_DB = (0.0, 3.0, 6.0)

_MARGINS = (2.0, 4.0, 8.0)
"""The errors that are left add up to less than what is allowed by these factors: they are not quite independent."""
_MIN_GAIN_DB = 2.0
_MIN_SHARE = 0.002
"""Of the error that all activations make one by one: what makes less is rounded between a product and a function."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepFloat(Step):
    """Other ranges and float activations, as many as it takes for a signal to noise ratio in dB on few samples."""

    name: ClassVar = "keep float"
    wanted_db: float
    below_db: float

    @property
    def detail(self) -> str:
        """What outputs are to have, as few samples tell."""
        return f"for {self.wanted_db:g} dB"

    @classmethod
    def of(cls, recipe: Recipe) -> list[KeepFloat]:
        """Return those with more and more float, where outputs must have so much: few samples tell less than all."""
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(wanted_db=goal + more, below_db=goal) for more in _MORE_DB]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with as few activations float as it takes; None where their rounding is not what costs it."""
        referee, choices = evidence.referee(planned.plan), planned.choices
        if referee is None:
            return None

        def replan(more: Choices) -> QuantizationPlan:
            return evidence.planner.planned(choices.with_more(more)).plan

        found = choices.with_more(
            _Search(referee=referee, plan=planned.plan, replan=replan, goal_db=self.wanted_db).run()
        ).uncorrected
        is_same = found.ranges == choices.ranges and found.float_tensors == choices.float_tensors
        return None if is_same else found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    referee: Referee
    plan: QuantizationPlan
    replan: Callable[[Choices], QuantizationPlan]
    goal_db: float

    @property
    def goal(self) -> float:
        """The error that is allowed."""
        return 10 ** (-self.goal_db / 10)

    def run(self) -> Choices:
        """Return ranges, and what stays float."""
        plan, tuned, noise = self.plan, Choices(), self._noise(self.plan)
        rounding = self.referee.rounding(plan)
        effects = self.referee.effects(rounding)
        of_weights = self.referee.score_of(rounding.only(layers=rounding.layers), few=True).error
        # Else something must stay float whatever ranges are, and it is what costs most.
        if noise * _share_of_cheap(plan, effects, of_weights) <= self.goal:
            tuned = Choices(ranges=better_ranges(plan, self.referee, effects))
            plan = self.replan(tuned) if tuned.ranges else plan
            if self._noise(plan) <= self.goal:
                return tuned
            effects |= self.referee.effects(self.referee.rounding(plan), tuned.ranges.keys() & plan.activations.keys())
        tuned, plan = self._without_functions(tuned, plan, effects)
        least = self._noise(plan)
        if least <= self.goal:
            return tuned
        found, noise = self._floats(tuned, effects, of_weights)
        return found if noise < least * 10 ** (-_MIN_GAIN_DB / 10) else tuned

    def _noise(self, plan: QuantizationPlan) -> float:
        return self.referee.score_of(self.referee.rounding(plan), few=True).error

    def _without_functions(
        self, tuned: Choices, plan: QuantizationPlan, effects: Mapping[TensorId, float]
    ) -> tuple[Choices, QuantizationPlan]:
        """Return what need not be rounded besides, and the plan: what lies between a product and a function of it.

        The product's kernel computes the function then, and no op becomes float: where one would, its operand stays rounded.
        """
        least = _MIN_SHARE * sum(min(effect, 1.0) for effect in effects.values())
        inputs = (
            layer.inputs[0] for layer in plan.layers if layer.op in (ELEMENTWISE, ELEMENTWISE_PAIR) and len(layer.inputs) == 1
        )
        chosen = {name: self._reason(effects[name]) for name in inputs if effects.get(name, 0.0) >= least}
        found = float_without_loss(chosen, tuned, plan, self.replan)
        return (tuned, plan) if found is None else (found, self.replan(found))

    def _floats(self, tuned: Choices, effects: Mapping[TensorId, float], of_weights: float) -> tuple[Choices, float]:
        """Return what must stay float besides, and the noise that is left."""
        order = sorted(effects, key=lambda name: (-effects[name], name))
        best, least = tuned, math.inf
        tried: set[int] = set()
        for margin in _MARGINS:
            left = max(self.goal / margin, of_weights)
            count = next(count for count in range(len(order) + 1) if sum(effects[name] for name in order[count:]) <= left)
            count = min(count, max(1, int(_MAX_FLOAT * len(order))))
            if count in tried:
                continue
            tried.add(count)
            chosen = {name: self._reason(effects[name]) for name in order[:count]}
            found = tuned.with_more(Choices(float_tensors=chosen))
            noise = self._noise(self.replan(found))
            if noise < least:
                best, least = found, noise
            if noise <= self.goal:
                break
        return best, least

    def _reason(self, effect: float) -> str:
        alone = "makes of the outputs what is not finite" if math.isinf(effect) else f"leaves {-10 * math.log10(effect):.1f} dB"
        return f"rounding it to 8 bits, and nothing else, {alone}; {self.goal_db:g} dB were asked for"


def _share_of_cheap(plan: QuantizationPlan, effects: Mapping[TensorId, float], of_weights: float) -> float:
    """Return the share of the error that no other ranges of costly activations take away."""
    known = {name: min(effect, 1.0) for name, effect in effects.items()}
    total = sum(known.values()) + of_weights
    gone = sum(known[name] for group in costly(plan, effects) for name in group)
    return 1 - gone / total if total else 1.0
