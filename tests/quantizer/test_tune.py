"""The loop: what is kept, what is not and what is taken out again, by a referee that says what a test wants it to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fake_steps import WIDE, AllFloat, Clock, FakeReferee, FakeStep, First, Last, Second, taken, with_fakes, with_referee

import octavo
from nets import residual_net
from octavo.compiler.target_choice import resolve_target
from octavo.quantizer import steps, tune
from octavo.quantizer.plan.equalization import Equalization
from octavo.quantizer.plan.file import encode
from octavo.quantizer.plan.journal import Journal
from octavo.quantizer.plan.plan import QuantizationPlan
from octavo.quantizer.quantize import by_profile
from octavo.quantizer.quantize_graph import planner_of
from octavo.quantizer.steps import order
from octavo.quantizer.tune import MIN_SAMPLES, places_held_back
from random_nets import random_net

SHAPE = (1, 3, 8, 8)
SAMPLES = 12
HELD_BACK = 4
PLAIN = frozenset[str]()
R1, R2, R3 = (frozenset({name}) for name in ("r1", "r2", "r3"))


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    return model, octavo.profile(model, [rng.normal(size=SHAPE).astype(np.float32) for _ in range(SAMPLES)], keep_samples=SAMPLES)


def level(db: float) -> list[float]:
    """Errors of the samples held back, all alike, that come to a signal to noise ratio."""
    return [10 ** (-db / 10)] * HELD_BACK


def by_names(table: Mapping[frozenset[str], float]) -> Any:
    """Return the errors of plans by their steps' names, from ratios in dB; what is not named has next to none."""
    return lambda names: level(table.get(names, 0.0))


def quantized(profiled: tuple[octavo.Model, octavo.Profile], seconds: float | None = None) -> QuantizationPlan:
    model, profile = profiled
    return by_profile(resolve_target("cpu"), model, profile, None, seconds=seconds).plan


def verdicts(plan: QuantizationPlan) -> list[tuple[str, bool]]:
    return [(entry.step, entry.kept) for entry in plan.journal.entries]


@pytest.mark.parametrize(
    ("errors", "is_kept"),
    [
        ([0.005] * 4, True),
        ([0.009, 0.008, 0.0085, 0.0095], True),
        ([[0.002, 0.0118, 0.0117, 0.0119], [0.0105] * 4, [0.0105] * 4], False),
        ([0.0099] * 4, False),
        ([0.01] * 4, False),
        ([0.02] * 4, False),
        ([0.001, 0.001, 0.001, np.inf], False),
    ],
    ids=["half", "less on all", "one sample's", "next to nothing", "the same", "worse", "not finite"],
)
def test_a_step_is_kept_where_it_gains_for_certain(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, errors: Sequence[float], is_kept: bool
) -> None:
    with_fakes(monkeypatch, lambda names: errors if names else [0.01] * 4, first=[First(name="r1")])
    plan = quantized(profiled)
    assert taken(plan) == (R1 if is_kept else PLAIN)
    assert set(verdicts(plan)) == {("r1", is_kept)}
    assert plan.journal.held_back == np.size(errors)
    assert FakeReferee.samples == HELD_BACK
    assert plan.journal.plain_db == pytest.approx(20)
    assert plan.journal.sqnr_db == pytest.approx(-10 * np.log10(np.mean(errors)) if is_kept else 20)
    assert plan.journal.kept == (["r1"] if is_kept else [])


def test_where_nothing_gains_the_plan_is_the_plain_one(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 19, R2: 20, R3: 20.05}),
        first=[First(name="r1")],
        second=[Second(name="r2")],
        last=[Last(name="r3")],
    )
    plan = quantized(profiled)
    with_fakes(monkeypatch, by_names({}))
    plain = quantized(profiled)
    assert encode(replace(plan, journal=Journal())) == encode(replace(plain, journal=Journal()))
    assert not plain.journal.entries
    assert plan.journal.kept == []
    assert plan.journal.sqnr_db == plan.journal.plain_db == pytest.approx(20)
    assert plan.journal.summary == "no step kept: outputs 20.0 dB above their error on 4 samples held back"


def test_steps_are_tried_beside_the_last_kind_and_applied_in_their_order(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 0, R2: 0, R3: 25, R1 | R3: 28, R2 | R3: 0, R1 | R2: 0, R1 | R2 | R3: 30}),
        first=[First(name="r1")],
        second=[Second(name="r2")],
        last=[Last(name="r3")],
    )
    plan = quantized(profiled)
    assert taken(plan) == R1 | R2 | R3
    assert verdicts(plan) == [("r3", True), ("r1", True), ("r2", True)]
    fitted = [(name, before) for name, before, count in FakeStep.seen if count == SAMPLES - HELD_BACK]
    assert fitted[:3] == [("r3", PLAIN), ("r1", PLAIN), ("r3", R1)]
    assert ("r3", R1 | R2) in fitted
    assert ("r1", R3) not in fitted, "the last kind is applied last"
    assert plan.journal.summary == "r3, r1, r2 kept: outputs 30.0 dB above their error on 4 samples held back (20.0 dB without)"


def test_another_of_a_kind_is_not_tried_that_gains_nothing_over_the_first_without_the_last(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = by_names({PLAIN: 20, R1: 20, R2: 20, R3: 25, R1 | R3: 28, R2 | R3: 30})
    with_fakes(monkeypatch, errors, first=[First(name="r1"), First(name="r2")], last=[Last(name="r3")])
    plan = quantized(profiled)
    assert taken(plan) == R1 | R3
    assert "it gains 0.00 dB where nothing is corrected" in next(each.proposal for each in plan.journal.entries if not each.kept)


@pytest.mark.parametrize(("alone_db", "whole_db", "is_tried"), [(20.3, 20, False), (20.6, 20, True), (20.0, 21, True)])
def test_what_gains_little_without_the_last_kind_is_not_tried_beside_it(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, alone_db: float, whole_db: float, is_tried: bool
) -> None:
    errors = by_names({PLAIN: 20, R1: whole_db, R2: 25, R1 | R2: 30})
    with_fakes(monkeypatch, errors, first=[First(name="r1")], last=[Last(name="r2")])
    alone = {PLAIN: 20, R1: alone_db}
    monkeypatch.setattr(FakeReferee, "promised", staticmethod(lambda plan: 10 ** (-alone[taken(plan)] / 10)))
    plan = quantized(profiled)
    assert taken(plan) == (R1 | R2 if is_tried else R2)
    assert (("r2", R1) in {(name, before) for name, before, _ in FakeStep.seen}) == is_tried
    entry = next(each for each in plan.journal.entries if each.step == "r1")
    assert ("it gains 0.30 dB where nothing is corrected" in entry.proposal) == (not is_tried)
    assert (entry.gain_db is None) == (not is_tried)


@pytest.mark.parametrize(("spread", "folds"), [(0.0015, 1), (0.004, 2)], ids=["surely too little", "may be enough"])
def test_more_folds_are_asked_of_what_may_still_gain_enough(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, spread: float, folds: int
) -> None:
    """It seems to lose a little on the first fold: by more than a standard error, or by less."""
    errors = [0.0115 - spread, 0.0115 + spread] * 2
    step = First(name="r1", below_db=100.0)
    with_fakes(monkeypatch, lambda names: [errors] * 3 if names else [[0.01] * 4] * 3, first=[step])
    plan = quantized(profiled)
    assert verdicts(plan) == [("r1", False)]
    assert plan.journal.held_back == HELD_BACK * folds


def test_a_step_that_is_presumed_is_taken_out_by_what_all_folds_say(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It surely loses on the first fold, and gains on the others."""
    errors = {PLAIN: [[0.1] * 4] * 3, R1: [[0.01] * 4] * 3}
    unclear = [[0.02] * 4, [0.002] * 4, [0.002] * 4]
    first, second = [First(name="r1")], [Second(name="r2", below_db=100.0)]
    with_fakes(monkeypatch, lambda names: errors.get(names, unclear), first=first, second=second)
    assert taken(quantized(profiled)) == R1
    monkeypatch.setattr(Second, "is_presumed", True)
    plan = quantized(profiled)
    assert taken(plan) == R1 | R2
    assert plan.journal.entries[-1].gain_db == pytest.approx(10 * np.log10(0.01 / 0.008)), "of all"


def test_the_steps_that_are_kept_are_fitted_again_to_all_samples(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 25, R2: 10, R1 | R2: 10, R3: 10, R1 | R3: 30}),
        first=[First(name="r1")],
        second=[Second(name="r2")],
        last=[Last(name="r3")],
    )
    plan = quantized(profiled)
    again = [(name, before) for name, before, count in FakeStep.seen if count == SAMPLES]
    assert again == [("r1", PLAIN), ("r3", R1)]
    for name in ("r1", "r3"):
        assert plan.activations[name].scale == pytest.approx((WIDE + SAMPLES) / 255)
    *compared, last = [max(params.scale for params in scored.activations.values()) for scored in FakeReferee.scored]
    assert max(compared) == pytest.approx((WIDE + SAMPLES - HELD_BACK) / 255), "none that is compared knows the samples held back"
    assert last == pytest.approx((WIDE + SAMPLES) / 255)


def test_of_a_large_model_each_step_is_asked_for_once_and_the_last_kind_behind_all_others(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Second(name="r2")
    unclear = [[0.002, 0.0118, 0.0117, 0.0119], [0.0105] * 4, [0.0105] * 4]
    with_fakes(
        monkeypatch,
        lambda names: {PLAIN: [[0.01] * 4] * 3, R1: [[0.001] * 4] * 3, R1 | R3: [[0.0005] * 4] * 3}.get(names, unclear),
        first=[First(name="r1")],
        second=[second],
        last=[Last(name="r3")],
    )
    monkeypatch.setattr("octavo.ir.graph.model._LARGE", profiled[0].constant_bytes - 1)
    plan = quantized(profiled)
    assert verdicts(plan) == [("r1", True), ("r2", False), ("r3", True)]
    assert [(name, before) for name, before, _ in FakeStep.seen] == [("r1", PLAIN), ("r2", R1), ("r3", R1)]
    assert plan.journal.held_back == HELD_BACK
    monkeypatch.setattr(type(second), "small_bytes", 1)
    assert verdicts(quantized(profiled)) == [("r1", True), ("r3", True)]
    monkeypatch.setattr(First, "offered", [First(name="r1"), First(name="r2")])
    assert verdicts(quantized(profiled)) == [("r1", True), ("r3", True)], "one that gains is enough of a kind"


@pytest.mark.parametrize(
    ("errors", "is_kept"),
    [([0.014, 0.008, 0.014, 0.008], True), ([0.03, 0.028, 0.031, 0.029], False), ([0.005, 0.005, 0.005, 0.1], False)],
    ids=["may lose or gain", "loses surely", "one sample loses"],
)
def test_a_step_that_is_best_by_what_was_measured_stays_unless_it_surely_loses(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, errors: list[float], is_kept: bool
) -> None:
    with_fakes(
        monkeypatch,
        lambda names: {PLAIN: [[0.1] * 4] * 3, R1: [[0.01] * 4] * 3}.get(names, [errors] * 3),
        first=[First(name="r1")],
        second=[Second(name="r2")],
    )
    assert dict(verdicts(quantized(profiled))) == {"r1": True, "r2": False}
    monkeypatch.setattr(Second, "is_presumed", True)
    assert verdicts(quantized(profiled)) == [("r1", True), ("r2", is_kept)]


def test_a_step_that_is_kept_unless_it_loses_is_not_asked_again_beside_the_others(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = by_names({PLAIN: 20, R1: 20, R2: 22, R1 | R2: 22})
    with_fakes(monkeypatch, errors, first=[First(name="r1")], second=[Second(name="r2")])
    monkeypatch.setattr(First, "is_presumed", True)
    assert verdicts(quantized(profiled)) == [("r1", True), ("r2", True)]
    assert R2 not in map(taken, FakeReferee.scored)


def test_a_step_without_a_gain_of_its_own_takes_none_away(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    unclear = [0.03, 0.2, 0.03, 0.18]
    with_fakes(
        monkeypatch,
        lambda names: {PLAIN: [[0.1] * 4] * 3, R1: [[0.08] * 4] * 3, R2: [[0.12] * 4] * 3}.get(names, [unclear] * 3),
        first=[First(name="r1")],
        second=[Second(name="r2")],
    )
    monkeypatch.setattr(Second, "is_presumed", True)
    plan = quantized(profiled)
    assert verdicts(plan) == [("r1", True), ("r2", False)]
    assert taken(plan) == R1


@pytest.mark.parametrize(("lost", "is_refitted"), [(0.3, True), (2.0, False)])
def test_steps_that_lose_when_they_are_fitted_to_all_samples_stay_as_they_were(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, lost: float, is_refitted: bool
) -> None:
    with_fakes(monkeypatch, by_names({}), first=[First(name="r1")])

    def errors(plan: QuantizationPlan) -> list[float]:
        scale = plan.activations["r1"].scale if taken(plan) else 0.0
        db = 20.0 if not taken(plan) else 30.0 if scale < (WIDE + SAMPLES - 0.5) / 255 else 30.0 - lost
        return [10 ** (-db / 10)] * HELD_BACK

    with_referee(monkeypatch, errors)
    scale = quantized(profiled).activations["r1"].scale
    assert scale == pytest.approx((WIDE + (SAMPLES if is_refitted else SAMPLES - HELD_BACK)) / 255)


def test_equal_factors_with_statistics_of_other_samples_are_another_form(profiled: Any) -> None:
    model, profile = profiled
    planner = planner_of(model, profile, resolve_target("cpu"), octavo.Recipe())
    name = next(iter(planner.simple.params))
    seen, others = (Equalization(factors={}, statistics={name: profile[each]}) for each in [*profile][:2])
    assert planner.form(seen) is planner.form(seen)
    assert planner.form(seen) is not planner.form(others)


def test_of_several_steps_of_a_kind_the_best_is_kept(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [First(name="r1"), First(name="r2"), First(name="r3")]
    with_fakes(monkeypatch, by_names({PLAIN: 20, R1: 22, R2: 26, R3: 24}), first=steps)
    plan = quantized(profiled)
    assert taken(plan) == R2
    assert verdicts(plan) == [("r1", False), ("r2", True), ("r3", False)]
    assert [entry.gain_db for entry in plan.journal.entries] == pytest.approx([2, 6, 4])
    assert [entry.standard_error_db for entry in plan.journal.entries] == pytest.approx([0, 0, 0], abs=1e-6)


def test_another_of_the_last_kind_takes_the_place_of_the_first_where_other_steps_make_it_better(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R2: 25, R3: 21, R1: 10, R1 | R2: 26, R1 | R3: 29}),
        first=[First(name="r1")],
        last=[Last(name="r2"), Last(name="r3")],
    )
    plan = quantized(profiled)
    assert taken(plan) == R1 | R3
    assert plan.journal.kept == ["r1", "r3"]


@pytest.mark.parametrize(
    ("db", "least", "expected"),
    [(33.0, 1.0, R2), (31.0, 1.0, R1), (33.0, 0.1, R1)],
    ids=["it gains more for its time", "it gains less than its time is worth", "neither leaves much float"],
)
def test_a_step_that_leaves_much_float_is_taken_back_for_one_that_it_left_nothing_to_propose(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, db: float, least: float, expected: frozenset[str]
) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 30, R2: db}),
        first=[First(name="r1", min_gain_db=least)],
        second=[Second(name="r2", min_gain_db=least, shut_out_by="r1")],
    )
    monkeypatch.setattr(tune, "worth_db", lambda view, before, after: 2.0 if taken(before) == R1 and taken(after) == R2 else 0.0)
    plan = quantized(profiled)
    assert taken(plan) == expected
    assert verdicts(plan)[:2] == [("r1", expected == R1), ("r2", False)]
    assert [(entry.proposal, entry.kept) for entry in plan.journal.entries[2:]] == (
        [("1 ranges: without r1", expected == R2)] if least > 0.5 else []
    )


def test_what_is_behind_one_that_takes_another_ones_place_is_tried_again(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 30, R2: 33, R3: 20, R1 | R3: 30, R2 | R3: 36}),
        first=[First(name="r1", min_gain_db=1.0)],
        second=[Second(name="r2", min_gain_db=1.0, shut_out_by="r1")],
        last=[Last(name="r3")],
    )
    plan = quantized(profiled)
    assert taken(plan) == R2 | R3
    assert plan.journal.kept == ["r2", "r3"]


def test_what_is_picked_by_samples_takes_no_ones_place(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Second, "small_bytes", 2**20)
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 30, R2: 50}),
        first=[First(name="r1", min_gain_db=1.0)],
        second=[Second(name="r2", min_gain_db=1.0, shut_out_by="r1")],
    )
    assert taken(quantized(profiled)) == R1


def test_a_step_that_others_make_useless_is_taken_out_again(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(
        monkeypatch,
        by_names({PLAIN: 20, R1: 22.5, R2: 30, R1 | R2: 30.05}),
        first=[First(name="r1")],
        second=[Second(name="r2")],
    )
    plan = quantized(profiled)
    assert taken(plan) == R2
    assert verdicts(plan) == [("r1", False), ("r2", True), ("r1", False)]
    last = plan.journal.entries[-1]
    assert last.proposal == "taken out again"
    assert last.gain_db == pytest.approx(-0.05)
    assert plan.journal.sqnr_db == pytest.approx(30)


def test_what_gained_much_is_not_asked_again_whether_it_is_useless(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = by_names({PLAIN: 20, R1: 23.5, R1 | R2: 30})  # and nothing is known of r2 alone
    with_fakes(monkeypatch, errors, first=[First(name="r1")], second=[Second(name="r2")])
    plan = quantized(profiled)
    assert taken(plan) == R1 | R2
    assert verdicts(plan) == [("r1", True), ("r2", True)]


def test_what_may_be_taken_out_leaves_no_plan_that_loses_against_the_plain_one(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That r3 gains beside r1 one sample alone says, and r1 on its own is worse than nothing."""
    errors = {PLAIN: [0.01] * 4, R3: [0.008] * 4, R1: [0.001, 0.001, 0.001, 0.06], R1 | R3: [0.004] * 4}
    with_fakes(monkeypatch, lambda names: errors[names], first=[First(name="r1")], last=[Last(name="r3")])
    plan = quantized(profiled)
    assert plan.journal.sqnr_db >= plan.journal.plain_db
    assert taken(plan) == R1 | R3


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_referee_says_nothing_is_kept_that_loses_against_the_plain_plan(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    known: dict[frozenset[str], list[float]] = {}
    rng = np.random.default_rng(seed)

    def errors(names: frozenset[str]) -> list[float]:
        return known.setdefault(names, list(0.01 * np.exp(2 * rng.normal(size=HELD_BACK))))

    with_fakes(
        monkeypatch,
        errors,
        first=[First(name="r1"), First(name="x")],
        second=[Second(name="r2")],
        last=[Last(name="r3"), Last(name="m")],
    )
    plan = quantized(profiled)
    assert plan.journal.plain_db == pytest.approx(-10 * np.log10(np.mean(known[PLAIN])))
    assert plan.journal.sqnr_db == pytest.approx(-10 * np.log10(np.mean(known[taken(plan)])))
    assert plan.journal.sqnr_db >= plan.journal.plain_db
    assert set(plan.journal.kept) == taken(plan) - {"f"}  # m, reshaped


@pytest.mark.parametrize(("db", "is_kept"), [(20.9, False), (21.1, True)])
def test_a_step_that_costs_time_must_gain_more(profiled: Any, monkeypatch: pytest.MonkeyPatch, db: float, is_kept: bool) -> None:
    with_fakes(monkeypatch, by_names({PLAIN: 20, R1: db}), first=[First(name="r1", min_gain_db=1.0)])
    assert taken(quantized(profiled)) == (R1 if is_kept else PLAIN)


@pytest.mark.parametrize(("plain_db", "is_tried"), [(17.9, True), (18.0, False), (25.0, False)])
def test_a_step_is_tried_below_its_own_ratio_alone(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, plain_db: float, is_tried: bool
) -> None:
    step = First(name="r1", below_db=18.0)
    with_fakes(monkeypatch, by_names({PLAIN: plain_db, R1: 30}), first=[step])
    plan = quantized(profiled)
    assert taken(plan) == (R1 if is_tried else PLAIN)
    assert bool(plan.journal.entries) == is_tried


def test_of_steps_for_a_ratio_those_behind_the_one_that_reaches_it_are_not_tried(
    profiled: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [First(name=name, below_db=18.0) for name in ("r1", "r2", "r3")]
    with_fakes(monkeypatch, by_names({PLAIN: 10, R1: 15, R2: 19, R3: 30}), first=steps)
    plan = quantized(profiled)
    assert taken(plan) == R2
    assert verdicts(plan) == [("r1", False), ("r2", True)]


@pytest.mark.parametrize(("db", "is_kept"), [(0.1, False), (-0.1, True)])
def test_products_stay_integer_unless_outputs_are_useless_then(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, db: float, is_kept: bool
) -> None:
    with_fakes(monkeypatch, by_names({}), first=[AllFloat(name="all float")])
    monkeypatch.setattr(steps, "_ORDER", [AllFloat, Last])
    monkeypatch.setattr(AllFloat, "offered", First.offered, raising=False)
    with_referee(monkeypatch, lambda plan: level(db if plan.layers else 90))
    plan = quantized(profiled)
    assert bool(plan.layers) != is_kept
    assert verdicts(plan) == [("all float", is_kept)]
    assert plan.journal.entries[0].proposal.endswith(": no product is integer")


def test_a_step_with_nothing_to_propose_is_in_the_journal(profiled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_fakes(monkeypatch, by_names({PLAIN: 20}), first=[First(name="r1", has_proposal=False)])
    plan = quantized(profiled)
    (entry,) = plan.journal.entries
    assert (entry.gain_db, entry.standard_error_db, entry.proposal, entry.kept) == (None, None, "", False)
    assert entry.said == "r1: nothing to propose"


@pytest.mark.parametrize(("seconds", "tried"), [(None, 3), (100.0, 3), (5.0, 2), (3.0, 1)])
def test_no_step_is_tried_that_would_end_too_late(
    profiled: Any, monkeypatch: pytest.MonkeyPatch, seconds: float | None, tried: int
) -> None:
    """Each takes a second, and so does fitting it again: a step is tried where as long is left as two."""
    steps = [First(name="r1"), First(name="r2"), First(name="r3")]
    with_fakes(monkeypatch, by_names({PLAIN: 20, R1: 21, R2: 22, R3: 23}), first=steps)
    clock = Clock()
    with clock.each_step_takes(monkeypatch, 1.5):
        plan = quantized(profiled, seconds)
    entries = [entry for entry in plan.journal.entries if entry.proposal != "taken out again"]
    assert len(entries) == tried
    assert taken(plan) == frozenset({f"r{tried}"})
    assert {entry.seconds for entry in entries} == {1.5}
    assert seconds is None or clock.now <= 100 + seconds


@pytest.mark.parametrize(
    ("count", "found"), [(0, "keeps no samples"), (1, "keeps 1 sample, fewer than 4"), (3, "keeps 3 samples, fewer than 4")]
)
def test_with_fewer_samples_than_can_be_held_back_the_plan_is_plain_and_a_warning_says_so(count: int, found: str) -> None:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(max(count, 1))]
    profile = octavo.profile(model, samples, keep_samples=count)
    with pytest.warns(octavo.errors.QuantizationWarning) as caught:
        plan = octavo.quantize(model, profile).plan
    (warning,) = caught
    assert str(warning.message) == (
        "nothing was tried to bring the model's outputs nearer, for nothing could be verified: "
        f'the profile {found}; profile the model with keep_samples=64 on as many samples, or say preset="fast"'
    )
    assert warning.filename == __file__
    bare = octavo.Recipe(weight_rounding="nearest", bias_correction=False, equalization="none", min_sqnr=None)
    plain = octavo.quantize(model, profile, recipe=bare).plan
    assert (plan.activations, plan.weights, plan.corrections) == (plain.activations, plain.weights, plain.corrections)
    assert not plan.corrections
    assert not plan.journal.entries
    assert plan.journal.held_back == 0
    assert plan.journal.sqnr_db is None
    assert plan.journal.summary == ""


@pytest.mark.filterwarnings("error")
def test_what_tries_nothing_needs_no_samples() -> None:
    model = residual_net()
    profile = octavo.profile(model, [np.ones(SHAPE, np.float32)], keep_samples=0)
    octavo.quantize(model, profile, preset="fast")
    bare = octavo.Recipe(weight_rounding="nearest", bias_correction=False, equalization="none")
    plan = octavo.quantize(model, profile, recipe=bare).plan
    octavo.quantize(model, plan=plan)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_samples_that_are_one_and_the_same_are_one(value: float) -> None:
    model = residual_net()
    profile = octavo.profile(model, [np.full(SHAPE, value, np.float32)] * 8, keep_samples=8)
    with pytest.warns(octavo.errors.QuantizationWarning, match="keeps 1 sample, fewer than 4"):
        plan = octavo.quantize(model, profile).plan
    assert not plan.corrections
    assert not plan.equalization
    assert not plan.journal.kept


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_samples_that_are_nearly_alike_break_nothing(value: float) -> None:
    model = residual_net()
    samples = [np.full(SHAPE, value, np.float32) + np.float32(1e-6 * number) for number in range(8)]
    plan = octavo.quantize(model, octavo.profile(model, samples, keep_samples=8)).plan
    assert plan.journal.entries
    assert plan.journal.sqnr_db >= plan.journal.plain_db


def test_each_third_sample_is_held_back_up_to_as_many_as_say_enough() -> None:
    for count in range(MIN_SAMPLES, 200):
        folds = places_held_back(count)
        assert all(0 < len(places) <= 48 for places in folds)
        assert all(len(places) in (48, count // 3, count // 3 + 1) for places in folds)
        assert len({place for places in folds for place in places}) == sum(map(len, folds)) == min(count, 3 * 48)
        assert all(len(places) <= count - len(places) for places in folds)


@pytest.mark.parametrize("seed", [1, 5, 9])
def test_real_steps_leave_random_networks_no_worse_than_they_found_them(seed: int) -> None:
    model, rng = random_net(seed), np.random.default_rng(seed)
    shape = [int(size) for size in model.module["main"].params[0].ty.shape]
    profile = octavo.profile(model, [rng.normal(size=shape).astype(np.float32) for _ in range(12)], keep_samples=12)
    plan = octavo.quantize(model, profile).plan
    assert plan.journal.entries
    assert plan.journal.sqnr_db >= plan.journal.plain_db
    kept = [entry for entry in plan.journal.entries if entry.kept]
    presumed = {kind.name for kind in order() if kind.is_presumed}
    assert all(entry.gain_db >= (-0.5 if entry.step in presumed else 0.1) for entry in kept)
    # dB are those of the worst output, which may have nothing to gain where there are several.
    assert bool(kept) == (plan.journal.sqnr_db > plan.journal.plain_db) or (kept and len(octavo.compile(model).outputs) > 1)
