"""Give activations whose rounding costs the outputs most ranges with which it costs less. Nothing stays float here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..ranges.of_params import Range, range_of, scheme_of
from ..recipe import AUTO, Recipe
from ..referee import Referee
from ..referee.rounding import Rounding
from .evidence import Evidence
from .step import Step

_MARGIN_DB = 3.0
"""Above what outputs must have: with less, other samples may have less than they must."""

_SHARES = (0.9, 0.75, 0.6, 0.45, 0.3)
"""Of one end of a range: what is tried in its place. Less would clip what other samples, or a recurrent state, may need."""
_INTERPOLATION = (0.0, 0.5, 1.0)
"""Of the way from a plan's range to the one that a few samples found: what is tried on all of them."""
_MIN_SHARE = 0.02
"""A tensor whose rounding makes less than this share of the error, or another range of which takes less away, keeps its range."""
_WORTH = 0.8
"""A range must leave less than this share of a tensor's own error to be worth clipping for."""

_Group = tuple[TensorId, ...]
"""Activations that share parameters."""


def costly(plan: QuantizationPlan, effects: Mapping[TensorId, float]) -> list[_Group]:
    """Return the activations whose rounding costs most, the worst first, each with those that have its parameters."""
    groups = {member: tuple(group) for group in plan.shared for member in group}
    least = _MIN_SHARE * sum(min(effect, 1.0) for effect in effects.values())
    worst = sorted((name for name in effects if effects[name] >= least), key=lambda name: (-effects[name], name))
    return list(dict.fromkeys(tuple(each for each in groups.get(name, (name,)) if each in effects) for name in worst))


def better_ranges(plan: QuantizationPlan, referee: Referee, effects: Mapping[TensorId, float]) -> dict[TensorId, Range]:
    """Return other ranges of the activations whose rounding costs most.

    Each must be better alone, on all samples, for what single ones have beyond it counts; and with all the rest: what clips is
    no noise, and adds up otherwise.

    Parameters
    ----------
    effects
        Of the plan's activations; see `Referee.effects`.
    """
    rounding, groups = referee.rounding(plan), costly(plan, effects)
    shared = {member: group for group in plan.shared for member in group}
    tries = _Tries(referee=referee, rounding=rounding, plan=plan)
    found: dict[TensorId, Range] = {}
    noise = referee.score_of(rounding, few=True).error
    for group, ends in tries.on_all(tries.on_few(groups)).items():
        tried = rounding.with_params(tries.params(group, ends))
        together = referee.score_of(tried, few=True).error
        if together < (1 - _MIN_SHARE) * noise:
            rounding, noise = tried, together
            found |= dict.fromkeys(shared.get(group[0], group), ends)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Tries:
    """Ranges of groups of activations that are tried, each group alone, those of all groups at once."""

    referee: Referee
    rounding: Rounding
    plan: QuantizationPlan

    def params(self, group: _Group, ends: Range) -> dict[TensorId, QuantParams]:
        """Return the parameters that a range gives a group."""
        return dict.fromkeys(group, scheme_of(self.plan.activations[group[0]]).params(*ends))

    def on_few(self, groups: Sequence[_Group]) -> dict[_Group, Range]:
        """Return the ranges with which groups cost less on few samples; those for which there are such."""
        best = {group: range_of(self.plan.activations[group[0]]) for group in groups}
        first = self._effects({group: [ends] for group, ends in best.items()}, few=True)
        least = {group: effect for group, [effect] in first.items()}
        observed = self.referee.ranges([name for group in groups for name in group], self.rounding.factors)
        self._look({group: [_union(observed[name] for name in group)] for group in groups}, best, least)
        for end in (1, 0):
            ranges = {group: [_cut(ends, end, share) for share in _SHARES] for group, ends in best.items() if ends[end]}
            self._look(ranges, best, least)
        return {group: best[group] for group, [effect] in first.items() if least[group] < _WORTH * effect}

    def on_all(self, groups: Mapping[_Group, Range]) -> dict[_Group, Range]:
        """Return ranges between the plan's and these with which groups cost less on all samples, if any."""
        ranges: dict[_Group, list[Range]] = {}
        for group, (low, high) in groups.items():
            first = range_of(self.plan.activations[group[0]])
            ranges[group] = [(first[0] + (low - first[0]) * by, first[1] + (high - first[1]) * by) for by in _INTERPOLATION]
        effects = self._effects(ranges, few=False)
        best = {group: min(each) for group, each in effects.items()}
        return {
            group: ranges[group][each.index(best[group])] for group, each in effects.items() if best[group] < _WORTH * each[0]
        }

    def _look(self, ranges: Mapping[_Group, Sequence[Range]], best: dict[_Group, Range], least: dict[_Group, float]) -> None:
        """Try ranges of groups, and put those with which they cost less than the least in place of the best."""
        for group, effects in self._effects(ranges, few=True).items():
            for ends, effect in zip(ranges[group], effects, strict=True):
                if effect < least[group]:
                    best[group], least[group] = ends, effect

    def _effects(self, ranges: Mapping[_Group, Sequence[Range]], *, few: bool) -> dict[_Group, list[float]]:
        """Return what each of several ranges of groups costs the outputs alone."""
        tried = [self.rounding.only().with_params(self.params(group, ends)) for group in ranges for ends in ranges[group]]
        errors = iter([score.error for score in self.referee.scores_of(tried, few=few)])
        return {group: [next(errors) for _ in ranges[group]] for group in ranges}


def _union(ranges: Iterable[Range]) -> Range:
    low, high = zip(*ranges, strict=True)
    return min(low), max(high)


def _cut(ends: Range, end: int, share: float) -> Range:
    """Return a range of which one end has this share of its distance from 0."""
    return (ends[0], ends[1] * share) if end else (ends[0] * share, ends[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class TuneRanges(Step):
    """Other ranges for activations whose rounding costs most, where outputs have less than a signal to noise ratio in dB."""

    name: ClassVar = "tune ranges"
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
