"""Give activations whose rounding costs the outputs most ranges with which it costs less. Nothing stays float here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..ranges import QuantScheme, Range, range_of
from ..recipe import AUTO, Recipe
from ..referee import Referee
from .evidence import Evidence
from .step import Step

_MARGIN_DB = 3.0
"""Above what outputs must have: with less, other samples may have less than they must."""

_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.45, 0.3)
"""Of a range that clips nothing: what is tried. Less would clip what other samples, or a recurrent state, may need."""
_MOST = 4
"""Groups of activations whose ranges are looked for: what others cost is little beside these."""
_MIN_SHARE = 0.02
"""A tensor whose rounding makes less than this share of the error keeps its range."""
_WORTH = 0.9
"""A range must leave less than this share of a tensor's own error to be worth clipping for."""
_FINE = "int16"
"""Integers that show what clipping alone costs: they round next to nothing."""

_Group = tuple[TensorId, ...]
"""Activations that share parameters."""


def costly(plan: QuantizationPlan, effects: Mapping[TensorId, float]) -> list[_Group]:
    """Return the activations whose rounding costs most, the worst first, each with those that have its parameters."""
    groups = {member: tuple(group) for group in plan.shared for member in group}
    least = _MIN_SHARE * sum(min(effect, 1.0) for effect in effects.values())
    worst = sorted((name for name in effects if effects[name] >= least), key=lambda name: (-effects[name], name))
    return list(dict.fromkeys(tuple(each for each in groups.get(name, (name,)) if each in effects) for name in worst))


def better_ranges(plan: QuantizationPlan, referee: Referee, effects: Mapping[TensorId, float]) -> dict[TensorId, Range]:
    """Return other ranges of the activations whose rounding costs most, each as if it were rounded alone.

    What rounding costs goes with the square of the range, and is measured once, for all that was observed; what clipping costs is
    measured for each range, on all samples, without any rounding: single samples decide how an error of both comes out, so that
    the least of many would be one by chance.

    Parameters
    ----------
    effects
        Of the plan's activations; see `Referee.effects`.
    """
    rounding, groups = referee.rounding(plan), costly(plan, effects)[:_MOST]
    shared = {member: group for group in plan.shared for member in group}
    observed = referee.ranges([name for group in groups for name in group], rounding.factors)
    found: dict[TensorId, Range] = {}
    for group in groups:
        params = plan.activations[group[0]]
        known = range_of(params)
        low, high = _union([known, *(observed[name] for name in group)])
        ranges = [(low * share, high * share) for share in _SHARES]
        scheme, fine = QuantScheme.of(params), QuantScheme(dtype=_FINE)
        tried = [params, scheme.params(low, high), *(fine.params(*ends) for ends in ranges[1:])]
        alone = [rounding.only().with_params(dict.fromkeys(group, each)) for each in tried]
        own, rounded, *clipped = (score.error for score in referee.scores_of(alone))
        costs = [share * share * rounded + error for share, error in zip(_SHARES, [0.0, *clipped], strict=True)]
        if min(costs) < _WORTH * own:
            found |= dict.fromkeys(shared.get(group[0], group), ranges[costs.index(min(costs))])
    return found


def _union(ranges: Iterable[Range]) -> Range:
    low, high = zip(*ranges, strict=True)
    return min(low), max(high)


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRanges(Step):
    """Other ranges for activations whose rounding costs most, where outputs have less than a signal to noise ratio in dB."""

    name: ClassVar = "tune ranges"
    measures_each: ClassVar = True
    below_db: float

    @classmethod
    def of(cls, recipe: Recipe) -> list[TuneRanges]:
        """Return it where outputs have little more than they must, or the recipe tries ranges."""
        if recipe.range_estimator == AUTO:
            return [cls(below_db=inf)]
        goal = recipe.min_sqnr
        return [] if goal is None or not recipe.corrects else [cls(below_db=goal + _MARGIN_DB)]

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with these ranges."""
        referee = evidence.referee(planned.plan)
        if referee is None:
            return None
        ranges = better_ranges(planned.plan, referee, referee.effects(referee.rounding(planned.plan)))
        return planned.choices.with_more(Choices(ranges=ranges)).uncorrected if ranges else None
