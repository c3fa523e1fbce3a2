"""The time that a search is given: held, by a clock that tests move, whatever is left out for it; and the recipe's min_sqnr."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
from test_search import PLAIN, plain

import octavo
from octavo.cli.search import _table
from octavo.quantizer import tune
from octavo.quantizer.plan.plan import QuantizedModel
from octavo.quantizer.search import SearchResult, bench
from octavo.quantizer.search.bench import Bench
from octavo.quantizer.search.search import search as search_function

CORRECTED = replace(PLAIN, bias_correction=True)
PLANNING, STARTING, MEASURING, STEP, ORDERING = 10.0, 5.0, 10.0, 5.0, 15.0


class Clock:
    """Stands still but for what stages are made to take."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def slows(self, patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float) -> None:
        """Let a function take seconds."""
        original = getattr(owner, name)

        def slow(*args: Any, **options: Any) -> Any:
            self.now += seconds
            return original(*args, **options)

        patch.setattr(owner, name, slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (tune, sys.modules["octavo.quantizer.search.search"]):
        monkeypatch.setattr(module, "time", clock)
    clock.slows(monkeypatch, bench, "planned_plainly", PLANNING)
    clock.slows(monkeypatch, Bench, "start", STARTING)
    clock.slows(monkeypatch, Bench, "measure", MEASURING)
    clock.slows(monkeypatch, Bench, "order", ORDERING)
    clock.slows(monkeypatch, tune.Tuning, "_with", STEP)
    return clock


def searched(model: octavo.Model, profile: octavo.Profile, **options: Any) -> SearchResult:
    return search_function(model, profile, recipe=CORRECTED, **options)


@pytest.mark.parametrize("seconds", [0, 11, 18, 21, 30, 45, 60, 80, 90, 120])
def test_the_time_is_held(seconds: float, model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    begun = clock.now
    result = searched(model, profile, seconds=seconds)
    # What comes first is made whatever it takes: there must be something to return.
    assert clock.now - begun <= max(seconds, PLANNING)
    assert not result.finished
    assert octavo.quantize(model, plan=result.best.plan)


def test_less_time_finds_less_and_says_so(model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    unmeasured = searched(model, profile, seconds=12)
    assert [each.metric for each in unmeasured.candidates] == [None]
    one = searched(model, profile, seconds=40)
    assert [each.steps for each in one.candidates] == [()]
    assert one.cut == (
        "nothing was tried to bring the outputs nearer",
        "which activations the outputs feel was not measured",
    )
    assert "for want of time: nothing was tried to bring the outputs nearer; which activations" in _table(one)
    more = searched(model, profile, seconds=90)
    assert more.cut[0] == "not all was tried to bring the outputs nearer"


def test_time_enough_finds_all(model: octavo.Model, profile: octavo.Profile, clock: Clock) -> None:
    whole = searched(model, profile, seconds=None)
    assert whole.finished
    begun = clock.now
    assert plain(searched(model, profile, seconds=1e4)) == plain(whole)
    assert clock.now - begun < 1e4
    assert not whole.cut


def test_a_search_that_was_cut_goes_on_to_the_whole(
    model: octavo.Model, profile: octavo.Profile, clock: Clock, tmp_path: Any
) -> None:
    begun = clock.now
    whole = searched(model, profile, seconds=None)
    took = clock.now - begun
    cut = searched(model, profile, seconds=40, folder=tmp_path)
    assert len(cut.candidates) == 1
    begun = clock.now
    assert plain(searched(model, profile, seconds=None, folder=tmp_path)) == plain(whole)
    assert clock.now - begun < took, "what was measured is not measured again"


def test_candidates_must_have_the_min_sqnr_of_the_recipe(model: octavo.Model, profile: octavo.Profile) -> None:
    without = octavo.search(model, profile, recipe=replace(PLAIN, min_sqnr=None), max_drop=1.0, seconds=None)
    assert not without.best.float_tensors
    first = without.candidates[0].sqnr_db
    assert first is not None
    assert math.isfinite(first)
    wanted = math.ceil(max(each.sqnr_db for each in without.candidates if each.sqnr_db is not None)) + 1.0
    result = octavo.search(model, profile, recipe=replace(PLAIN, min_sqnr=wanted), max_drop=1.0, seconds=None)
    assert result.best.sqnr_db is not None
    assert result.best.sqnr_db >= wanted
    assert result.is_enough(result.best)
    assert not result.is_enough(result.candidates[0])
    assert result.best.float_tensors


def test_what_is_enough_without_float_ends_the_search(
    model: octavo.Model, profile: octavo.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("asked for nothing")

    monkeypatch.setattr(Bench, "order", refused)
    result = octavo.search(model, profile, recipe=PLAIN, max_drop=1.0, seconds=None)
    assert result.finished
    assert isinstance(octavo.quantize(model, plan=result.best.plan), QuantizedModel)


def test_an_own_function_alone_scores(model: octavo.Model, profile: octavo.Profile) -> None:
    recipe = replace(PLAIN, min_sqnr=100.0)
    result = octavo.search(model, profile, recipe=recipe, evaluate=lambda _: 1.0, max_drop=0.0, seconds=None, candidates=3)
    assert result.min_sqnr is None
    assert result.is_enough(result.best)
