"""The time that a search is given: held, by a clock that tests move, whatever is left out for it; and the recipe's min_sqnr."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from test_search import PLAIN, plain

import octavo
from octavo.cli.search import _table
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.referee import Referee
from octavo.quantizer.search import SearchResult
from octavo.quantizer.search.bench import Bench
from octavo.quantizer.search.result import Change
from octavo.quantizer.search.search import search_with

CORRECTED = replace(PLAIN, bias_correction=True)
QUANTIZING, MEASURING, SCORING = 10.0, 5.0, 1.0


class Clock:
    """Stands still but for what steps are made to take."""

    now = 100.0

    def __call__(self) -> float:
        return self.now

    def slows(self, patch: pytest.MonkeyPatch, owner: type, name: str, seconds: Any) -> None:
        """Let a method take seconds, or as many as a function of its arguments says."""
        original = getattr(owner, name)

        def slow(*args: Any, **options: Any) -> Any:
            self.now += seconds(*args) if callable(seconds) else seconds
            return original(*args, **options)

        patch.setattr(owner, name, slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    clock.slows(monkeypatch, Bench, "quantized", lambda _, change: QUANTIZING * (2 if change.corrects else 1))
    clock.slows(monkeypatch, Bench, "measure", MEASURING)
    clock.slows(monkeypatch, Bench, "compare_with_float", MEASURING)
    untimed = type("Untimed", (Referee,), {"scores_of": Referee.scores_of})  # in what quantizing takes
    for module in ("tune", "steps.evidence"):
        monkeypatch.setattr(f"octavo.quantizer.{module}.Referee", untimed)
    clock.slows(monkeypatch, Referee, "scores_of", lambda _, each: SCORING * (len(each) / 2 if len(each) > 1 else 1))
    return clock


def searched(model: octavo.Model, profile: octavo.Profile, clock: Clock, **options: Any) -> SearchResult:
    given = {
        "evaluate": None,
        "max_drop": None,
        "seconds": None,
        "candidates": 24,
        "target": "cpu",
        "recipe": CORRECTED,
        "cost": None,
        "folder": None,
        "progress": None,
    }
    return search_with(None, model, profile, None, **{**given, **options}, clock=clock)


@pytest.mark.parametrize("seconds", [0, 11, 18, 21, 30, 45, 60, 80, 90, 120])
def test_the_time_is_held(seconds: float, model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    begun = clock.now
    result = searched(model, profile, clock, seconds=seconds)
    # What comes first is made whatever it takes: there must be something to return.
    assert clock.now - begun <= max(seconds, QUANTIZING)
    assert not result.finished
    assert octavo.quantize(model, plan=result.best.plan)


def test_less_time_finds_less_and_says_so(model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    unmeasured = searched(model, profile, clock, seconds=12)
    assert [each.score for each in unmeasured.candidates] == [None]
    two = searched(model, profile, clock, seconds=60)
    assert [each.change for each in two.candidates] == [Change(corrects=False), Change()]
    assert two.cut == ("which activations the outputs feel was not measured",)
    assert "for want of time: which activations the outputs feel was not measured" in _table(two)
    three = searched(model, profile, clock, seconds=105)
    assert three.cut == ("the range estimator percentile:99.99 was not tried", "ranges were not tuned")
    assert [len(each.float_tensors) for each in three.candidates] == [0, 0, 1]


def test_time_enough_finds_all(model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    whole = searched(model, profile, clock)
    assert whole.finished
    begun = clock.now
    assert plain(searched(model, profile, clock, seconds=1e4)) == plain(whole)
    assert clock.now - begun < 1e4
    assert not whole.cut


def test_a_search_that_was_cut_goes_on_to_the_whole(
    model: octavo.Model, profile: octavo.Profile, clock: Clock, tmp_path: Any
) -> None:
    whole = searched(model, profile, clock)
    cut = searched(model, profile, clock, seconds=60, folder=tmp_path)
    assert len(cut.candidates) == 2
    begun = clock.now
    assert plain(searched(model, profile, clock, folder=tmp_path)) == plain(whole)
    went_on = clock.now - begun
    begun = clock.now
    searched(model, profile, clock)
    assert went_on < clock.now - begun, "what was measured is not measured again"


def test_candidates_must_have_the_min_sqnr_of_the_recipe(model: octavo.Model, profile: octavo.Profile) -> None:
    without = octavo.search(model, profile, recipe=replace(PLAIN, min_sqnr=None), max_drop=1.0, seconds=None)
    assert not without.best.float_tensors
    first = without.candidates[0].score
    assert first is not None
    assert math.isfinite(first.sqnr_db)
    wanted = math.ceil(max(each.score.sqnr_db for each in without.candidates if each.score is not None)) + 2.0
    result = octavo.search(model, profile, recipe=replace(PLAIN, min_sqnr=wanted), max_drop=1.0, seconds=None)
    assert result.best.score is not None
    assert result.best.score.sqnr_db >= wanted
    assert result.is_enough(result.best)
    assert not result.is_enough(result.candidates[0])
    [own] = [each for each in result.candidates if each.change.keeps_min_sqnr]
    assert result.candidates.index(own) == 1, "it comes first: where time is short it is the best to be had"
    quantized = octavo.quantize(model, profile, recipe=replace(PLAIN, min_sqnr=wanted))
    assert own.plan.activations == quantized.plan.activations, "what quantize itself does for it is a candidate"
    assert isinstance(quantized, QuantizedModel)


def test_what_is_enough_without_float_ends_the_search(
    model: octavo.Model, profile: octavo.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("scored for nothing")

    monkeypatch.setattr(Referee, "scores_of", refused)
    result = octavo.search(model, profile, recipe=PLAIN, max_drop=1.0, seconds=None)
    assert result.finished
    assert [each.change for each in result.candidates] == [Change(corrects=False)]


def test_an_own_function_alone_scores(model: octavo.Model, profile: octavo.Profile) -> None:
    recipe = replace(PLAIN, min_sqnr=100.0)
    result = octavo.search(model, profile, recipe=recipe, evaluate=lambda _: 1.0, max_drop=0.0, seconds=None, candidates=3)
    assert result.min_sqnr is None
    assert result.is_enough(result.best)
