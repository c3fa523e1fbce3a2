"""Presets and the range estimator "auto": what they try, that the best is taken, and what is said of it."""

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.cli.main import main
from octavo.errors import QuantizationError

SHAPE = (1, 3, 8, 8)


@pytest.fixture(scope="module")
def profiled() -> tuple[octavo.Model, octavo.Profile]:
    model, rng = residual_net(), np.random.default_rng(4)
    samples = [rng.normal(size=SHAPE).astype(np.float32) for _ in range(12)]
    samples[5][0, 1, 3, 3] = 20  # which the mean of ranges cuts: too much
    return model, octavo.profile(model, samples, keep_samples=12)


def test_best_takes_the_ranges_with_the_least_error(profiled):
    model, profile = profiled
    fast, balanced, best = (octavo.quantize(model, profile, preset=preset) for preset in ("fast", "balanced", "best"))
    errors = [each.plan.corrections.sqnr_db for each in (fast, balanced, best)]
    tried = best.plan.corrections.tried
    assert errors[1] < errors[2] > max(tried.values()) - 1, "what is nearer is so by chance"
    assert tried["min_max"] == errors[1]
    assert tried["mean, tuned"] > tried["mean"] + 10, "single ranges are chosen by simulation"
    assert not fast.plan.corrections.weight_values
    assert fast.plan.corrections.bias_shifts
    name = next(name for name, sqnr_db in tried.items() if sqnr_db == errors[2])
    assert best.plan.recipe.range_estimator == name.removesuffix(", tuned")
    assert f"{name} ({errors[2]:.1f} dB)" in best.plan.corrections.summary
    again = octavo.quantize(model, plan=best.plan)
    assert again.fingerprint == best.fingerprint


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
    assert not auto.plan.corrections.tried


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
