"""Take ranges in that single samples alone make wide, to the mean of what samples have. It runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..ranges import Mean, QuantScheme, width
from ..recipe import AUTO, WIDEST, Recipe
from ..request import TensorChoice
from .evidence import Evidence
from .step import Step

_SHARE = 0.67
"""Of the observed range: a wider mean range saves less than 3.5 dB of the tensor's rounding, which clipping soon costs."""
_NARROW = ("int8", "uint8")
"""Wider integers have steps enough for outliers."""
_LEAST = 1 / 8
"""Of the activations: fewer with outliers are not what costs the outputs, unless their ranges are much too wide."""
_STRONG = 0.35
"""Share of the observed range that is such a one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NarrowRanges(Step):
    """The mean range of samples where it is much narrower than the observed one."""

    name: ClassVar = "narrow ranges"

    @classmethod
    def of(cls, recipe: Recipe) -> list[NarrowRanges]:
        """Return it, unless the recipe names an estimator, or bare rounding is wanted."""
        return [cls()] if recipe.range_estimator == AUTO or (recipe.range_estimator == WIDEST and recipe.corrects) else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with such ranges for activations of which nobody says anything."""
        named, known = planned.named, evidence.planner.tensor_choices(planned).values()
        ranges = ranges_without_outliers(each for each in known if each.id not in named)
        return planned.choices.with_more(Choices(ranges=ranges)) if ranges else None


def ranges_without_outliers(choices: Iterable[TensorChoice]) -> dict[TensorId, tuple[float, float]]:
    """Return the mean range of samples of each activation that it is much narrower for than the observed one.

    None where that can hardly bring the outputs nearer: to try it takes as long as the corrections.
    """
    found: dict[TensorId, tuple[float, float]] = {}
    shares: list[float] = []
    for choice in choices:
        seen = choice.statistics if choice.kind != "weight" and choice.params.dtype in _NARROW else None
        if seen is None:
            continue
        ends = Mean().range_of(seen, QuantScheme(dtype=choice.params.dtype))
        observed = width(float(seen.minimum), float(seen.maximum))
        shares.append(width(*ends) / observed if observed else 1.0)
        if shares[-1] < _SHARE:
            found[choice.id] = ends
    is_worth = len(found) >= _LEAST * len(shares) or min(shares, default=1.0) < _STRONG
    return found if is_worth else {}
