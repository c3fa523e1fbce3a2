"""Look for a range of each activation whose rounding costs much. Chosen by simulation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ..choices import Choices
from ..planner import Planned
from ..recipe import AUTO, Recipe
from . import keep_float
from .evidence import Evidence

_FEW_DB = 3.0
"""Above what outputs must have: with less, other samples may have less than they must."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRanges:
    """Other ranges for activations whose rounding costs most, until outputs have a signal to noise ratio in dB."""

    name: ClassVar = "tune ranges"
    wanted_db: float
    below_db: float

    @property
    def detail(self) -> str:
        """Nothing more."""
        return ""

    @classmethod
    def of(cls, recipe: Recipe) -> list[TuneRanges]:
        """Return it where outputs have little more than they must, or the recipe tries ranges."""
        if recipe.range_estimator == AUTO:
            return [cls(wanted_db=inf, below_db=inf)]
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(wanted_db=goal + _FEW_DB, below_db=goal + _FEW_DB)]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these ranges."""
        return keep_float.propose(planned, planned.choices, evidence, self.wanted_db, only_ranges=True)
