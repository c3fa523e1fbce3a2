"""Take ranges of activations from another estimator. It runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..choices import Choices
from ..planner import Planned
from ..recipe import AUTO, Recipe
from .evidence import Evidence
from .step import Step

_TRIED = ("mean", "mse", "percentile:99.99")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges(Step):
    """Ranges of all activations by one estimator of `octavo.quantizer.ranges`, its argument behind a colon."""

    name: ClassVar = "ranges"
    estimator: str

    @property
    def detail(self) -> str:
        """The estimator."""
        return self.estimator

    @classmethod
    def of(cls, recipe: Recipe) -> list[Ranges]:
        """Return other estimators where the recipe names none."""
        return [cls(estimator=name) for name in _TRIED] if recipe.range_estimator == AUTO else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with that estimator."""
        return replace(planned.choices, range_estimator=self.estimator)
