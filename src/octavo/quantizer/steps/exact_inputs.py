"""Give inputs whose values were integers of another scale that scale: rounding them loses nothing then, whatever was observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..choices import Choices
from ..planner import Planned
from ..ranges.grid import range_on_grid
from ..recipe import AUTO, WIDEST, Recipe
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactInputs(Step):
    """The scale that a sensor, an image or another model gave the values of inputs; it runs nothing."""

    name: ClassVar = "exact inputs"
    is_presumed: ClassVar = True

    @classmethod
    def of(cls, recipe: Recipe) -> list[ExactInputs]:
        """Return it, unless the recipe names an estimator, or bare rounding is wanted."""
        return [cls()] if recipe.range_estimator in (AUTO, WIDEST) and recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with ranges of such inputs of which nobody says anything, and whose scale is another."""
        activations, taken = planned.plan.activations, planned.named | planned.choices.equalization.factors.keys()
        ranges = {
            name: ends
            for place, name in enumerate(evidence.planner.simple.input_ids)
            if name in activations
            and name not in taken
            and (ends := range_on_grid((each[place] for each in evidence.runs.samples), activations[name])) is not None
        }
        return planned.choices.with_more(Choices(ranges=ranges)).uncorrected if ranges else None
