"""Fixing: what is planted is repaired, what is kept helps by the kernels' own measure, and the plan says and repeats it."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from test_root_causes import PLAIN, net, pictures, scaled, shifted_bias, swapped_scales, weights
from tvm import relax

import octavo
import profile_bytes
from apply_steps import with_steps
from nets import model_of
from octavo.cli.main import main
from octavo.errors import ProfileError, QuantizationError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.causes import FixResult
from octavo.quantizer.corrections import correct as corrections
from octavo.quantizer.plan.plan import QuantizedModel
from small_file import digits, write_small_net


def fixed(model: octavo.Model, quantized: QuantizedModel, profile: octavo.Profile, **options: Any) -> FixResult:
    """Fix, and hold the result against what is promised of any."""
    result = octavo.fix(model, quantized, profile, **options)
    kept = [entry for entry in result.entries if entry.kept]
    gains = [entry.gain_db for entry in kept if entry.gain_db is not None]
    assert len(gains) == len(kept)
    assert min(gains, default=1) > 0
    assert result.after_db == pytest.approx(result.before_db + sum(gains))
    if not kept:
        assert result.quantized is quantized
        return result
    journal = result.quantized.plan.journal
    assert journal.entries == (*quantized.plan.journal.entries, *result.entries)
    assert journal.sqnr_db == pytest.approx(result.after_db)
    return result


def assert_plan_repeats(model: octavo.Model, result: FixResult, folder: Path) -> None:
    first, second = folder / "plan.json", folder / "again.json"
    result.quantized.plan.save(first)
    again = octavo.quantize(model, plan=first)
    again.plan.save(second)
    assert first.read_bytes() == second.read_bytes()
    assert again.fingerprint == result.quantized.fingerprint
    tvm.ir.assert_structural_equal(again.module, result.quantized.module)
    assert {name: value.tobytes() for name, value in again.params.items()} == {
        name: value.tobytes() for name, value in result.quantized.params.items()
    }


@pytest.fixture(scope="module")
def left_alone(sound_ones: dict[str, Any]) -> dict[str, FixResult]:
    """What fixing makes of models in which nothing is to be repaired: it rounds weights anew at most, which costs nothing."""
    results = {
        recipe: octavo.fix(sound.model, sound.quantized, sound.profile, min_gain_db=20) for recipe, sound in sound_ones.items()
    }
    assert {entry.step for result in results.values() for entry in result.entries if entry.kept} <= {"equalize"}
    return results


@pytest.mark.parametrize(
    ("plant", "part", "cause", "recipe"),
    [
        (scaled(4), "activation", "coarse scale", "plain"),
        (scaled(1 / 4), "activation", "clipping", "corrected"),
        (swapped_scales, "weights", "weight scale", "plain"),
        (swapped_scales, "weights", "weight scale", "corrected"),
        (shifted_bias, "weights", "bias", "corrected"),
    ],
    ids=["scale x4", "scale /4", "swapped scales", "swapped scales, corrected", "shifted bias"],
)
def test_a_planted_fault_is_repaired(
    rng: np.random.Generator,
    tmp_path: Path,
    plant: Callable[..., Any],
    part: str,
    cause: str,
    recipe: str,
    sound_ones: dict[str, Any],
    left_alone: dict[str, FixResult],
) -> None:
    sound, without = sound_ones[recipe], left_alone[recipe]
    faulty, name = plant(sound.model, sound.quantized, rng)
    # With this limit nothing is done but repairs.
    result = fixed(sound.model, faulty, sound.profile, min_gain_db=20)
    first = result.entries[0].proposal
    assert first.startswith(f"net/{name}:0: ")
    assert f", against {cause}" in first
    assert ("of its weights" in first) == (part == "weights")
    # Where weights were rounded by what their layer reads, new scales round them to nearest.
    assert result.after_db > without.before_db - (3 if cause == "weight scale" and recipe == "corrected" else 0.5)
    assert_plan_repeats(sound.model, result, tmp_path)


def test_unlike_channels_are_evened_out(rng: np.random.Generator, tmp_path: Path) -> None:
    params, samples = weights(rng), pictures(rng)
    factors = np.float32(2) ** rng.permutation(np.arange(-4, 4)).astype(np.float32)
    for name in ("w1", "b1"):
        params[name] = params[name] * factors.reshape(-1, *[1] * (params[name].ndim - 1))
    params["w2"] = params["w2"] / factors.reshape(-1, 1, 1, 1)
    model = net(params)
    profile = octavo.profile(model, samples, keep_samples=24)
    recipe = replace(PLAIN, equalization="none", min_sqnr=None)
    result = fixed(model, octavo.quantize(model, profile, recipe=recipe), profile, recipe=recipe)
    [evened] = [entry for entry in result.entries if entry.step == "equalize"]
    assert evened.kept
    assert (evened.gain_db or 0) > 1
    assert result.quantized.plan.equalization
    assert_plan_repeats(model, result, tmp_path)


@pytest.fixture(scope="module")
def rooted() -> tuple[octavo.Model, octavo.Profile]:
    """A net whose sum under a root has too few steps, and its profile."""
    rng = np.random.default_rng(4)

    def body(writer: BodyWriter, **v: Any) -> Any:
        squares = writer.emit("squares", relax.op.multiply(v["x"], v["x"]))
        both = writer.emit("both", relax.op.add(squares, writer.emit("turned", relax.op.flip(squares, axis=1))))
        return writer.emit("y", relax.op.matmul(writer.emit("root", relax.op.sqrt(both)), v["w"]), is_output=True)

    model = model_of({"x": ((1, 32), "float32")}, {"w": rng.normal(size=(32, 12)).astype(np.float32)}, body, ("y",))
    samples = [(rng.normal(0, 0.1, (1, 32)) + 3 * np.eye(1, 32)).astype(np.float32) for _ in range(24)]
    return model, octavo.profile(model, samples, keep_samples=24)


@pytest.fixture(scope="module")
def rooted_in_integers(rooted: tuple[octavo.Model, octavo.Profile]) -> QuantizedModel:
    """That net as its ranges say."""
    model, profile = rooted
    return octavo.quantize(model, profile, recipe=PLAIN)


@pytest.fixture(scope="module")
def rooted_fixed(rooted: tuple[octavo.Model, octavo.Profile], rooted_in_integers: QuantizedModel) -> FixResult:
    """What fixing makes of it."""
    model, profile = rooted
    return fixed(model, rooted_in_integers, profile, recipe=PLAIN)


def test_what_has_too_few_bits_gets_more(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_fixed: FixResult, tmp_path: Path
) -> None:
    model, result = rooted[0], rooted_fixed
    wide = [entry for entry in result.entries if entry.kept and "against rounding" in entry.proposal]
    assert wide
    assert all("it has 16 bits" in entry.proposal or "it stays float" in entry.proposal for entry in wide)
    assert result.after_db > result.before_db + 1
    names = {entry.proposal.partition(":")[0] for entry in wide}
    left = {
        model.tensors[name].source_name for name, params in result.quantized.plan.activations.items() if params.dtype != "int16"
    }
    assert not names & left
    assert_plan_repeats(model, result, tmp_path)


def test_a_remedy_of_an_activation_is_tried_on_the_plan(
    rooted: tuple[octavo.Model, octavo.Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float model is run once for all trials and once for all samples, and nothing is decided by the profile again."""
    model, profile = rooted
    recipe = replace(octavo.Recipe(), min_sqnr=None)
    quantized = with_steps(model, profile, recipe=recipe)
    runs: list[octavo.Model] = []
    run = corrections.run_float

    def counted(simple: octavo.Model, *rest: Any) -> Any:
        runs.append(simple)
        return run(simple, *rest)

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("quantized by the profile")

    monkeypatch.setattr(corrections, "run_float", counted)
    monkeypatch.setattr(sys.modules["octavo.quantizer.causes.fix"], "by_profile", refused)
    result = fixed(model, quantized, profile, recipe=recipe)
    assert [entry for entry in result.entries if entry.kept]
    assert len(runs) == 2


def test_outputs_that_come_near_enough_end_it(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_fixed: FixResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, profile = rooted
    quantized = octavo.quantize(model, profile, recipe=PLAIN)
    module, tables = sys.modules["octavo.quantizer.causes.fix"], []
    made = module.table

    def counted(*args: Any) -> Any:
        tables.append(made(*args))
        return tables[-1]

    monkeypatch.setattr(module, "table", counted)
    whole = fixed(model, quantized, profile, recipe=PLAIN)
    assert len(tables) > 1
    assert whole.entries == rooted_fixed.entries, "another time it comes to the same"
    assert whole.quantized.fingerprint == rooted_fixed.quantized.fingerprint
    tables.clear()
    monkeypatch.setattr(module, "ENOUGH_DB", whole.before_db + 0.1)
    result = fixed(model, quantized, profile, recipe=PLAIN)
    assert len(tables) == 1
    assert [entry.kept for entry in result.entries].count(True) == 1
    assert result.entries[-1].kept


def test_no_remedy_makes_the_whole_model_float(rooted: tuple[octavo.Model, octavo.Profile]) -> None:
    model, profile = rooted
    recipe = replace(PLAIN, activation_dtype="int8", min_sqnr=None)
    result = fixed(model, octavo.quantize(model, profile, recipe=recipe), profile, recipe=recipe)
    assert [entry for entry in result.entries if "no op would be integer" in entry.said]
    assert result.quantized.plan.layers


def test_what_a_profile_alone_said_of_biases_stays(rooted: tuple[octavo.Model, octavo.Profile]) -> None:
    model, profile = rooted
    recipe = replace(octavo.Recipe(), min_sqnr=None).with_preset("fast")
    quantized = octavo.quantize(model, profile, recipe=recipe)
    full = replace(recipe, bias_correction=True, weight_rounding="gram", equalization="auto")
    result = fixed(model, quantized, profile, recipe=full)  # which leaves nothing out
    assert [entry for entry in result.entries if entry.kept]
    assert result.quantized.plan.corrections == quantized.plan.corrections


def test_a_group_that_shares_parameters_is_tried_once(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_in_integers: QuantizedModel
) -> None:
    (model, profile), quantized = rooted, rooted_in_integers
    entries = fixed(model, quantized, profile, recipe=PLAIN, min_gain_db=0.0).entries
    groups = {str(name): group for group in quantized.plan.shared for name in group}
    said = [entry.proposal.partition(", against")[0].partition(": ") for entry in entries]
    tried = [(groups.get(name.removeprefix("net/").removesuffix(":0"), name), action) for name, _, action in said]
    assert len(tried) == len(set(tried))


def test_what_the_recipe_says_of_a_tensor_stays(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_in_integers: QuantizedModel
) -> None:
    (model, profile), quantized = rooted, rooted_in_integers
    coarse = {str(name): replace(params, scale=params.scale * 8) for name, params in quantized.plan.activations.items()}
    recipe = replace(PLAIN, tensors=coarse)
    given = octavo.quantize(model, profile, recipe=recipe)
    assert not [each for each in fixed(model, given, profile, recipe=recipe).entries if "of its weights" not in each.proposal]
    assert [each for each in fixed(model, given, profile).entries if "against coarse scale" in each.proposal]


@pytest.mark.parametrize("options", [{"min_gain_db": -1}, {"min_gain_db": "1"}, {"rounds": 0}, {"rounds": 1.5}, {"rounds": True}])
def test_limits_are_checked(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_in_integers: QuantizedModel, options: dict[str, Any]
) -> None:
    model, profile = rooted
    with pytest.raises(QuantizationError, match=f"{next(iter(options))} must be a number"):
        octavo.fix(model, rooted_in_integers, profile, **options)


def test_without_samples_nothing_can_be_measured(
    rooted: tuple[octavo.Model, octavo.Profile], rooted_in_integers: QuantizedModel
) -> None:
    model, profile = rooted
    with pytest.raises(ProfileError, match="keeps no samples to measure with"):
        octavo.fix(model, rooted_in_integers, replace(profile, kept_samples=(), kept_results=()))


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_net(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=digits(0, 24))
    model, profile, plan = str(tmp_path / "m.onnx"), str(tmp_path / "p.json"), str(tmp_path / "plan.json")
    assert main(["profile", model, "--data", str(tmp_path / "x.npz"), "-o", profile]) == 0
    options = ["--no-corrections", "--min-sqnr", "none", "--weight-bits", "4", "--fix", "--save-plan", plan]
    capsys.readouterr()
    assert main(["quantize", model, "--profile", profile, *options, "-o", str(tmp_path / "a.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (summary,) = (line for line in lines if line.startswith("--fix: "))
    steps = [line for line in lines if line.startswith(("kept: ", "left out: "))]
    assert f"of {len(steps)} remedies kept" in summary
    kept = [line for line in steps if line.startswith("kept: ")]
    assert kept
    proposals = [each["proposal"] for each in json.loads(Path(plan).read_text())["journal"]["entries"] if each["kept"]]
    assert all(any(proposal in line for proposal in proposals) for line in kept)
    assert main(["quantize", model, "--plan", plan, "-o", str(tmp_path / "b.onnx")]) == 0
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert main(["quantize", model, "--plan", plan, "--fix", "-o", str(tmp_path / "d.onnx")]) == 2
    assert "--fix measures on the samples that a profile keeps" in capsys.readouterr().err


def test_the_command_line_fixes_what_a_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile_bytes.small_network(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32))
    model, profile, plan = str(tmp_path / "m.onnx"), str(tmp_path / "p.json"), str(tmp_path / "plan.json")
    assert main(["profile", model, "--data", str(tmp_path / "x.npz"), "-o", profile]) == 0
    made = ["--no-corrections", "--weight-bits", "4", "--save-plan", plan, "-o", str(tmp_path / "a.onnx")]
    assert main(["quantize", model, "--profile", profile, *made]) == 0
    capsys.readouterr()
    assert main(["quantize", model, "--plan", plan, "--profile", profile, "--fix", "-o", str(tmp_path / "b.onnx")]) == 0
    assert "--fix: " in capsys.readouterr().out
