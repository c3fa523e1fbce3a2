"""Quantize what convolutions read per sample when run: where samples are of many sizes, no static range suits the small ones.

A quiet recording has a few of the steps that a loud one needs, and its outputs may count as much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph.dataflow import DataflowView
from ..choices import Choices
from ..placement import reads_samples
from ..plan.entries import between_products
from ..planner import Planned
from ..price import worth_db
from ..recipe import Recipe
from ..referee.score import in_db
from .step import ENOUGH_DB, Evidence, Step

_REASON = "each sample has the scale of its own values"
_PRICE = 0.6
"""Of what time is worth elsewhere: small convolutions are further from what machines can do than passes over memory are."""
_BETWEEN = "it lies between convolutions that read and leave float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerSample(Step):
    """Inputs of convolutions whose scale and zero point are found when the model runs, sample by sample."""

    name: ClassVar = "per sample"
    below_db: float = ENOUGH_DB

    @property
    def min_gain_db(self) -> float:
        """What is worth that all ops between convolutions become float: more than half of the error."""
        return 4.0

    @classmethod
    def of(cls, recipe: Recipe) -> list[PerSample]:
        """Return it, unless bare rounding is wanted, or that nothing is float by choice."""
        return [cls()] if recipe.corrects and recipe.may_leave_float else []

    def demanded_db(self, worth: float) -> float:
        """Return what it must gain for time that is worth as much: whoever takes twice the time gains by all that it is worth."""
        return max(self.min_gain_db, _PRICE * worth)

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with all convolutions per sample that can be; what no other product reads or makes is float.

        None where somebody else's hardware has its own times, or less is gained than is asked for.
        """
        planner, named, plan = evidence.planner, planned.named, planned.plan
        able = [
            layer.output
            for layer in plan.layers
            if reads_samples(planner.support(layer)) and not layer.reads_reals and named.isdisjoint((*layer.inputs, layer.output))
        ]
        if not able or planner.chosen.backends:
            return None
        left = [layer for layer in plan.layers if layer.output not in able and not layer.reads_reals]
        between = [name for name in between_products(left) if name not in named]
        more = Choices(per_row=dict.fromkeys(able, _REASON), float_tensors=dict.fromkeys(between, _BETWEEN))
        found = planned.choices.with_more(more).uncorrected
        other = planner.planned(found).plan
        referees = ((each, evidence.runs.referee(each)) for each in (plan, other))
        before, after = (in_db(referee.error(referee.rounding(each).of_activations)) for each, referee in referees)
        worth = worth_db(DataflowView(planner.simple.module["main"]), plan, other)
        return found if after - before >= self.demanded_db(worth) else None
