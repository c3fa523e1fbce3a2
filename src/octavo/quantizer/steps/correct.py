"""Round weights anew and correct biases, by what running the model tells of each layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..ranges import Range
from ..recipe import WIDEST, Recipe
from .step import Evidence, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Correct(Step):
    """Weights rounded so that layers' sums change least, and biases that take back what these are off on average.

    Ranges hold all that was observed while that is fitted. Clipping moves means, too: by what outliers are beyond the range. A
    bias that made up for it would move all other values.
    """

    name: ClassVar = "correct"

    @classmethod
    def of(cls, recipe: Recipe) -> list[Correct]:
        """Return what the recipe corrects."""
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with weights and biases corrected."""
        choices, ranges = planned.choices, _wide_ranges(planned, evidence)
        if choices.range_estimator or not evidence.planner.recipe.has_plain_ranges or ranges != choices.ranges:
            planned = evidence.planner.planned(replace(choices, range_estimator=WIDEST, ranges=ranges))
        found = evidence.runs.corrections(planned.plan, choices.requests)
        return replace(choices, corrections=found) if found else None


def _wide_ranges(planned: Planned, evidence: Evidence) -> dict[TensorId, Range]:
    """Return the chosen ranges that hold all that was observed."""
    chosen = planned.choices.ranges
    known = evidence.planner.tensor_choices(planned) if chosen else {}
    observed = {name: each.statistics for name, each in known.items() if name in chosen}
    return {
        name: chosen[name]
        for name, seen in observed.items()
        if seen is not None and chosen[name][0] <= seen.minimum and seen.maximum <= chosen[name][1]
    }
