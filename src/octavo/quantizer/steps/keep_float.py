"""Leave activations float whose rounding costs most, as many as it takes."""

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
from ..referee.score import said_alone
from .evidence import Evidence
from .step import Step

_MORE_DB = (0.0, 3.0, 6.0)

_MARGINS = (2.0, 4.0, 8.0)
"""The errors that are left add up to less than what is allowed by these factors: they are not quite independent."""
_WORTH = 10 ** (-2.0 / 10)
"""Float activations must leave less than this share of the error."""
_MIN_SHARE = 0.002
"""Of the error that all activations make one by one: what makes less is rounded between a product and a function."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepFloat(Step):
    """Float activations, as many as it takes for a signal to noise ratio in dB on few samples."""

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

        rounding = referee.rounding(planned.plan)
        scores = referee.scores_of([rounding.only(layers=rounding.layers), rounding], few=True)
        of_weights, of_all = (each.error for each in scores)
        if of_weights >= of_all * _WORTH:  # all activations float gain no more: what each of them costs takes many runs
            return None
        found = _Search(
            referee=referee,
            plan=planned.plan,
            of_weights=of_weights,
            of_all=of_all,
            effects=evidence.effects(referee, planned.plan),
            replan=replan,
            goal_db=self.wanted_db,
        ).run()
        return choices.with_more(found).uncorrected if found.float_tensors else None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Search:
    referee: Referee
    plan: QuantizationPlan
    of_weights: float
    of_all: float
    effects: Mapping[TensorId, float]
    replan: Callable[[Choices], QuantizationPlan]
    goal_db: float

    @property
    def goal(self) -> float:
        """The error that is allowed."""
        return 10 ** (-self.goal_db / 10)

    def run(self) -> Choices:
        """Return what stays float."""
        fused = self._without_functions()
        least = self._noise(fused)
        if least <= self.goal:
            return fused
        found, noise = self._floats(fused)
        return found if noise < least * _WORTH else fused

    def _noise(self, choices: Choices) -> float:
        if not choices.float_tensors:
            return self.of_all
        return self.referee.score_of(self.referee.rounding(self.replan(choices)), few=True).error

    def _without_functions(self) -> Choices:
        """Return what need not be rounded at all: what lies between a product and a function of it.

        The product's kernel computes the function then, and no op becomes float: where one would, its operand stays rounded.
        """
        least = _MIN_SHARE * sum(min(effect, 1.0) for effect in self.effects.values())
        functions = (layer for layer in self.plan.layers if layer.op in (ELEMENTWISE, ELEMENTWISE_PAIR))
        inputs = (layer.inputs[0] for layer in functions if len(layer.inputs) == 1)
        chosen = {name: self._reason(self.effects[name]) for name in inputs if self.effects.get(name, 0.0) >= least}
        return float_without_loss(chosen, Choices(), self.plan, self.replan) or Choices()

    def _floats(self, fused: Choices) -> tuple[Choices, float]:
        """Return what must stay float besides, and the noise that is left."""
        order = sorted(self.effects, key=lambda name: (-self.effects[name], name))
        best, least = fused, math.inf
        tried: set[int] = set()
        for margin in _MARGINS:
            left = max(self.goal / margin, self.of_weights)
            count = next(count for count in range(len(order) + 1) if sum(self.effects[name] for name in order[count:]) <= left)
            count = min(count, max(1, int(_MAX_FLOAT * len(order))))
            if count in tried:
                continue
            tried.add(count)
            chosen = {name: self._reason(self.effects[name]) for name in order[:count]}
            found = fused.with_more(Choices(float_tensors=chosen))
            noise = self._noise(found)
            if noise < least:
                best, least = found, noise
            if noise <= self.goal:
                break
        return best, least

    def _reason(self, effect: float) -> str:
        return f"{said_alone(effect)}; {self.goal_db:g} dB were asked for"
