"""Presets and the range estimator "auto": what they try, that the best is taken, and what is said of it."""

import math

import numpy as np
import pytest

import octavo
from apply_steps import with_steps
from nets import residual_net
from octavo.cli.main import main
from octavo.errors import QuantizationError
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.steps import Ranges, TuneRanges

SHAPE = (1, 3, 8, 8)


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(12)]
    samples[5][0, 1, 3, 3] = 20  # which the mean of ranges cuts: too much
    return model, octavo.profile(model, samples, keep_samples=12)


def test_best_tries_ranges_too_and_takes_what_gains():
    model, rng = residual_net(), np.random.default_rng(5)
    samples = [np.clip(rng.standard_t(2, size=SHAPE), -30, 30).astype(np.float32) for _ in range(36)]
    profile = octavo.profile(model, samples, keep_samples=36)
    fast, balanced, best = (octavo.quantize(model, profile, preset=preset) for preset in ("fast", "balanced", "best"))
    names, usual = ([entry.step for entry in each.plan.journal.entries] for each in (best, balanced))
    assert {"ranges", "tune ranges"} <= set(names)
    assert "ranges" not in usual
    tried = [entry for entry in best.plan.journal.entries if entry.step == "ranges" and "again" not in entry.proposal]
    assert [entry.proposal.split(":")[0] for entry in tried] == ["mean", "mse", "percentile"]
    assert best.plan.journal.plain_db == balanced.plan.journal.plain_db
    assert min(each.plan.journal.sqnr_db - each.plan.journal.plain_db for each in (balanced, best)) > 0.1
    kept = [entry.proposal.rpartition(" ")[2] for entry in tried if entry.kept]
    assert best.plan.recipe.range_estimator == (kept[0] if kept else "auto")
    assert ", ".join(dict.fromkeys(best.plan.journal.kept)) in best.plan.journal.summary
    assert not fast.plan.corrections.weight_values
    assert fast.plan.corrections.bias_shifts
    assert not fast.plan.journal.entries
    again = octavo.quantize(model, plan=best.plan)
    assert again.fingerprint == best.fingerprint


def test_single_ranges_are_chosen_by_simulation(profiled):
    """The mean of ranges cuts what one sample has; where that costs the outputs most ranges hold it."""
    model, profile = profiled
    samples = [arrays[0] for arrays in profile.kept_samples]
    mean, tune = Ranges(estimator="mean"), TuneRanges(below_db=math.inf)
    run, *others = (
        octavo.compile(each) for each in (model, *(with_steps(model, profile, steps) for steps in ([mean], [mean, tune])))
    )
    exact, cut, tuned = (np.concatenate([next(iter(each(x).values())) for x in samples]) for each in (run, *others))
    assert sqnr_db(exact, tuned) > sqnr_db(exact, cut) + 10


def test_best_is_the_range_estimator_auto():
    assert octavo.Recipe().with_preset("best") == octavo.Recipe(range_estimator="auto", wide_weights=0.3)


def test_what_a_recipe_says_counts_more_than_the_preset():
    recipe = octavo.Recipe(range_estimator="mse", min_sqnr=30.0, wide_weights=0.2)
    assert recipe.with_preset("best") == recipe == recipe.with_preset("balanced")
    fast = recipe.with_preset("fast")
    assert (fast.min_sqnr, fast.weight_rounding, fast.equalization) == (30.0, "nearest", "none")
    assert fast.bias_correction == "analytic"
    assert octavo.Recipe(bias_correction=False).with_preset("fast").bias_correction is False


def test_without_samples_auto_is_the_observed_range(profiled):
    model, _ = profiled
    bare = octavo.profile(model, [np.ones(SHAPE, np.float32)], keep_samples=0)
    plain, auto = (octavo.quantize(model, bare, recipe=octavo.Recipe(range_estimator=name)) for name in ("min_max", "auto"))
    assert plain.plan.activations == auto.plan.activations
    assert not auto.plan.journal.entries


def test_what_makes_no_sense_is_refused(profiled, tmp_path, capsys):
    model, profile = profiled
    with pytest.raises(QuantizationError, match="preset must be one of fast, balanced, best, got 'accurate'"):
        octavo.quantize(model, profile, preset="accurate")
    plan = octavo.quantize(model, profile, preset="fast").plan
    with pytest.raises(QuantizationError, match="a plan says all that profile, recipe, preset and params decide"):
        octavo.quantize(model, plan=plan, preset="best")
    with pytest.raises(SystemExit):
        main(["quantize", "m.onnx", "--preset", "accurate", "-o", str(tmp_path / "q.onnx")])
    assert "--preset" in capsys.readouterr().err
