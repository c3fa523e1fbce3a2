"""Round weights anew and correct biases, by what running the model tells of each layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..ranges.of_params import Range
from ..recipe import WIDEST, Recipe
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Correct(Step):
    """Weights rounded so that layers' sums change least, and biases that take back what these are off on average.

    Parameters
    ----------
    shifts
        Whether biases are corrected.
    clipped
        What becomes of ranges that clip while that is fitted: they hold all that was observed, they clip, so that biases make up
        for it, or they hold all and biases stay as they are. The latter two are for models with such ranges alone.
    """

    name: ClassVar = "correct"
    shifts: bool = True
    clipped: Literal["", "clipped", "weights alone"] = ""

    @property
    def detail(self) -> str:
        """What it does about clipping."""
        return self.clipped

    @classmethod
    def of(cls, recipe: Recipe) -> list[Correct]:
        """Return what the recipe corrects."""
        if not recipe.corrects:
            return []
        shifts = recipe.bias_correction is True
        kinds: tuple[Literal["", "clipped", "weights alone"], ...] = ("", "clipped", "weights alone")
        return [cls(shifts=shifts, clipped=kind) for kind in (kinds if shifts else kinds[:1])]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with weights and biases corrected."""
        if self.clipped and not _clips(planned, evidence):
            return None
        unclipped = planned if self.clipped == "clipped" else _unclipped(planned, evidence)
        found = evidence.corrections(unclipped.plan, planned.choices.requests)
        if self.clipped == "weights alone":
            found = replace(found, bias_shifts={})
        return replace(planned.choices, corrections=found) if found else None


def _clips(planned: Planned, evidence: Evidence) -> bool:
    """Return whether any range may hold less than was observed."""
    choices, recipe = planned.choices, evidence.planner.recipe
    return bool(choices.range_estimator) or not recipe.has_plain_ranges or _wide_ranges(planned, evidence) != choices.ranges


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


def _unclipped(planned: Planned, evidence: Evidence) -> Planned:
    """Return the model with ranges that hold all that was observed.

    Clipping moves means, too: by what outliers are beyond the range. A bias that made up for it would move all other values.
    """
    if not _clips(planned, evidence):
        return planned
    ranges = _wide_ranges(planned, evidence)
    return evidence.planner.planned(replace(planned.choices, range_estimator=WIDEST, ranges=ranges))
