"""The order in which steps are asked what to choose, and what is kept: what brings outputs nearer on the profile's samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import count

from .choices import Choices
from .constraints import Request, Requests
from .plan import QuantizedModel
from .plan.nearness import Nearness
from .planner import Planned, Planner
from .recipe import AUTO, WIDEST, Recipe
from .sample_runs import SampleRuns
from .steps import Evidence, correct, equalize, fuse_functions, keep_float, narrow_ranges, widen, widen_weights
from .tensor_choice import ParamsOf, ask

_NEAR_DB = 30.0
"""Outputs as near as that have little to gain from narrower ranges."""
_LEEWAY_DB = 3.0
"""Outputs with less than that above what they must have are little better."""
_ROUNDS = 3
"""Of ranges and what stays float: each finds what the one before it made visible."""
_WORTH_DB = 1.0
"""A round that brings less is the last; narrower ranges that do are left."""


_CANDIDATES = (
    ("min_max", False),
    ("min_max", True),
    ("mean", False),
    ("mean", True),
    ("mse", False),
    ("percentile:99.99", False),
)
"""Estimators, and whether what they give is tuned: first those that clip less; the first is the default."""


def tuned(planner: Planner, runs: SampleRuns | None, params: ParamsOf | None, changes: Choices) -> QuantizedModel:
    """Return the model with all that is wanted; a plan that is followed to the letter needs none of it.

    Parameters
    ----------
    runs
        Without it nothing is corrected, evened out or looked for.
    params
        Asked for each tensor's parameters once all are chosen.
    changes
        Choices that are known from the start.
    """
    if planner.applied is not None:
        planned = _planned(planner, replace(planner.first_choices.with_more(changes), wide_activations={}))
        return planned.quantized if runs is None else _corrected(planned, planner, runs, tunes_ranges=False).quantized
    plain = widen_weights.plain_recipe(planner.recipe)
    if runs is not None and plain is not None:
        bare = replace(planner, recipe=plain)
        found = _by_profile(bare, runs, None, Choices())
        evidence = Evidence(planner=bare, runs=runs, equalization=found.choices.equalization)
        changes = widen_weights.propose(found, evidence, planner.recipe.wide_weights).with_more(changes)
    if runs is not None and planner.recipe.range_estimator == AUTO:
        return _with_best_ranges(planner, runs, params, changes)
    return _by_profile(planner, runs, params, changes).quantized


def _with_best_ranges(planner: Planner, runs: SampleRuns, params: ParamsOf | None, changes: Choices) -> QuantizedModel:
    """Return the model quantized with the ranges that leave the least error on the samples that the profile keeps.

    Ranges and weights were fitted to these samples, and what is clipped costs others more: of those that are no more than one
    standard error from the best the first is taken (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
    Its plan names the estimator, and its corrections the signal to noise ratio of each that was tried.
    """
    found: dict[str, QuantizedModel] = {}
    for name, tunes in _CANDIDATES:
        other = replace(planner, recipe=replace(planner.recipe, range_estimator=name))
        found[f"{name}, tuned" if tunes else name] = _by_profile(other, runs, params, changes, tunes_ranges=tunes).quantized
    measured = {name: each.plan.corrections.nearness for name, each in found.items()}
    best = max(measured.values(), key=lambda each: each.sqnr_db)
    chosen = found[next(name for name, each in measured.items() if not best.is_surely_nearer(each))]
    tried = {name: each.sqnr_db for name, each in measured.items()}
    return replace(chosen, plan=replace(chosen.plan, corrections=replace(chosen.plan.corrections, tried=tried)))


def _by_profile(
    planner: Planner, runs: SampleRuns | None, params: ParamsOf | None, changes: Choices, *, tunes_ranges: bool = False
) -> Planned:
    """Return the model by one recipe.

    Parameters
    ----------
    tunes_ranges
        Whether ranges are chosen by simulation wherever that brings the outputs nearer, not only where they are too far off.
    """
    first = planner.first_choices.with_more(changes)
    wide, first = first.wide_activations, replace(first, wide_activations={})
    equalizer = None if runs is None or params is not None or planner.recipe.equalization == "none" else runs.equalizer
    for attempt in count():
        choices = first if equalizer is None else equalize.propose(first, planner, equalizer, attempt)
        planned = _planned(planner, choices)
        planned = _with_requests(planned, planner, _of_overrides(planned))
        if params is not None:
            planned = _with_requests(planned, planner, ask(params, planner.tensor_choices(planned)))
        if wide:
            planned = _unless_fewer_layers(widen.propose(planned, planner, wide), planned, planner)
        if runs is not None and (most := planner.recipe.wide_activations):
            evidence = Evidence(planner=planner, runs=runs, equalization=planned.choices.equalization)
            planned = _unless_fewer_layers(widen.propose_worst(planned, evidence, most), planned, planner)
        if runs is not None and (planner.recipe.corrects or tunes_ranges):
            planned = _corrected(planned, planner, runs, tunes_ranges=tunes_ranges)
        if equalizer is None or equalizer.holds():
            return planned
    raise AssertionError("an equalization without factors holds")


def _planned(planner: Planner, choices: Choices) -> Planned:
    """Return the model without factors that need a clip where integers don't saturate."""
    planned = planner.planned(choices)
    while (fewer := equalize.without_clips(planned)) is not None:
        planned = planner.planned(fewer)
    return planned


def _of_overrides(planned: Planned) -> Requests:
    """Return what overrides want of activations that were placed, where nothing that comes before them does."""
    asked = {name: entry for name, said in planned.overridden.items() if (entry := said.activation) is not None}
    known = planned.choices.requests
    return {name: Request(who="an override", tensor=entry) for name, entry in asked.items() if name not in known}


def _with_requests(planned: Planned, planner: Planner, requests: Requests) -> Planned:
    return _planned(planner, planned.choices.with_more(Choices(requests=requests))) if requests else planned


def _unless_fewer_layers(choices: Choices | None, planned: Planned, planner: Planner) -> Planned:
    """Return the model of other choices, but where an op would be float for them."""
    found = planned if choices is None else _planned(planner, choices)
    return found if len(found.plan.layers) >= len(planned.plan.layers) else planned


def _corrected(planned: Planned, planner: Planner, runs: SampleRuns, *, tunes_ranges: bool) -> Planned:
    """Return the model with what running it tells, and with less that is rounded where its outputs are too far off."""
    while True:
        evidence = Evidence(planner=planner, runs=runs, equalization=planned.choices.equalization)
        best = _Correcting(evidence=evidence, tunes_ranges=tunes_ranges).run(planned)
        fewer = equalize.without_clips(best.planned)
        if fewer is None:
            plan = best.planned.plan
            plan = replace(plan, corrections=replace(plan.corrections, nearness=best.nearness))
            return replace(best.planned, quantized=replace(best.planned.quantized, plan=plan))
        planned = _planned(planner, fewer)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Scored:
    """A model as choices make it, and how near its outputs come to the float model's."""

    planned: Planned
    nearness: Nearness

    @property
    def sqnr_db(self) -> float:
        """Of its worst output."""
        return self.nearness.sqnr_db


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Correcting:
    """The steps that run a quantized model, of one equalization."""

    evidence: Evidence
    tunes_ranges: bool

    @property
    def planner(self) -> Planner:
        """What makes models of choices."""
        return self.evidence.planner

    @property
    def recipe(self) -> Recipe:
        """The user's."""
        return self.planner.recipe

    def run(self, planned: Planned) -> _Scored:
        """Return the best model.

        What corrections make of large errors says nothing of their cause: what is better not rounded is first looked for without
        them, then with what they leave of the errors.
        """
        equalizer, best = self.evidence.runs.equalizer, self._corrected(planned)
        if equalizer is not None and not equalizer.holds():
            return best
        if self.planner.applied is not None:
            return self._with_narrower_ranges(best)
        best = self._with_functions(best)
        is_close = self._is_close(best)
        if not is_close:
            best = self._with_narrower_ranges(best)
        found = self._with_less_rounding(best, planned)
        return self._with_narrower_ranges(best) if found is best and is_close else found

    def _score(self, planned: Planned) -> _Scored:
        return _Scored(planned=planned, nearness=self.evidence.corrector.nearness(planned.quantized))

    def _corrected(self, planned: Planned, *, has_own_ranges: bool = False) -> _Scored:
        """Return the model with weights and biases corrected."""
        choices, nearness = correct.propose(planned, self.evidence, has_own_ranges=has_own_ranges)
        found = planned if choices is planned.choices else self.planner.planned(choices)
        return self._score(found) if nearness is None else _Scored(planned=found, nearness=nearness)

    def _with_functions(self, best: _Scored) -> _Scored:
        """Return the model with functions in the kernels of products, if it comes nearer so.

        Not where more is due: that leaves as many as it takes.
        """
        if self.recipe.min_sqnr is None or best.sqnr_db < self.recipe.min_sqnr:
            return best
        choices = fuse_functions.propose(best.planned, self.evidence)
        return best if choices is None else _nearer(self._corrected(self.planner.planned(choices)), best)

    def _with_less_rounding(self, best: _Scored, uncorrected: Planned) -> _Scored:
        """Return the model with other ranges and float activations, where its outputs are too far off, if it comes nearer so.

        Ranges are tuned once, too, where outputs are little better than they must be: other samples may have less.
        """
        goal, is_close = self.recipe.min_sqnr, self._is_close(best)
        for number in range(_ROUNDS):
            is_near = goal is None or best.sqnr_db >= goal
            if is_near and not (self.tunes_ranges or (is_close and not number)):
                break
            # What simulation leaves out made the round before fall short: the next asks for as much more.
            if goal is None or is_near:
                wanted = math.inf if goal is None or not is_close else goal + _LEEWAY_DB
            else:
                wanted = goal + (goal - best.sqnr_db if number else 0.0)
            known = best.planned.choices
            start, base = (best.planned, known) if number else (uncorrected, known.uncorrected)
            choices = keep_float.propose(start, base, self.evidence, wanted, only_ranges=is_near)
            before = best
            if choices is not None:
                best = _nearer(self._corrected_anew(choices, best.sqnr_db), best)
            if (number and best is before) or before.sqnr_db < best.sqnr_db < before.sqnr_db + _WORTH_DB:
                break
        return best

    def _corrected_anew(self, choices: Choices, least_db: float) -> _Scored:
        """Return the model of other choices, corrected with the ranges that these have, or with observed ones."""
        planned = self.planner.planned(choices)
        found = self._corrected(planned, has_own_ranges=True)
        return found if found.sqnr_db > least_db or not choices.ranges else self._corrected(planned)

    def _is_close(self, scored: _Scored) -> bool:
        """Return whether outputs are as near as they must be, but little nearer, with ranges as they were observed."""
        goal = self.recipe.min_sqnr
        if goal is None or self.tunes_ranges or not self.recipe.has_plain_ranges:
            return False
        return goal <= scored.sqnr_db < goal + _LEEWAY_DB

    def _with_narrower_ranges(self, best: _Scored) -> _Scored:
        """Return the model with narrower ranges where outliers of single samples make them, if it comes nearer so.

        Not where more is due, or ranges were tuned: those look at each range.
        """
        if self.recipe.range_estimator != WIDEST or not (self.recipe.min_sqnr or 0.0) <= best.sqnr_db < _NEAR_DB:
            return best
        choices = narrow_ranges.propose(best.planned, self.planner)
        if choices is None:
            return best
        found = self._corrected(self.planner.planned(choices))
        without = correct.propose_without_shifts(found.planned)
        if without is not None:
            found = _nearer(self._score(self.planner.planned(without)), found)
        return found if found.sqnr_db >= best.sqnr_db + _WORTH_DB else best


def _nearer(found: _Scored, best: _Scored) -> _Scored:
    """Return what was found last if it is nearer to the float model than the best, else the best."""
    return found if found.sqnr_db > best.sqnr_db else best
