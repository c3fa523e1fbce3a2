"""Give activations whose rounding costs most other ranges, or leave them float, as many as it takes. Chosen by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import Recipe
from .evidence import Evidence

_MORE_DB = (0.0, 3.0, 6.0)


def propose(planned: Planned, choices: Choices, evidence: Evidence, wanted_db: float, *, only_ranges: bool) -> Choices | None:
    """Return choices with which outputs have a signal to noise ratio in dB, as they are simulated; None where there are none.

    Parameters
    ----------
    planned
        What is simulated.
    choices
        To which others are added; what corrections make of these counts while they are looked for, and is then of another model.
    only_ranges
        Whether nothing more may stay float.
    """

    def replan(more: Choices) -> QuantizationPlan:
        return evidence.planner.planned(choices.with_more(more)).plan

    more = evidence.runs.less_rounding(evidence.exact, planned.quantized, wanted_db, replan, only_ranges=only_ranges)
    found = choices.with_more(more).uncorrected
    is_same = found.ranges == choices.ranges and found.float_tensors == choices.float_tensors
    return None if is_same else found


@dataclass(frozen=True, kw_only=True, slots=True)
class KeepFloat:
    """Other ranges and float activations, as many as it takes for outputs to have a signal to noise ratio in dB."""

    name: ClassVar = "keep float"
    wanted_db: float
    below_db: float

    @property
    def detail(self) -> str:
        """What outputs are to have, as they are simulated."""
        return f"for {self.wanted_db:g} dB"

    @classmethod
    def of(cls, recipe: Recipe) -> list[KeepFloat]:
        """Return those with more and more float, where outputs must have so much: simulated errors leave some out."""
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(wanted_db=goal + more, below_db=goal) for more in _MORE_DB]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them."""
        return propose(planned, planned.choices, evidence, self.wanted_db, only_ranges=False)
