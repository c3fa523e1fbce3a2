"""Root causes: faults planted in quantized models are named first, with the right cause, and what is sound is not accused."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from apply_steps import with_steps
from nets import model_of
from octavo.cli.main import main
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.quantizer.causes import root_causes
from octavo.quantizer.plan.plan import QuantizedModel
from small_file import digits, write_small_net

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest")
CORRECTED = octavo.Recipe(min_sqnr=None)
SHAPES = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (12, 8, 1, 1), "b3": (12,), "w4": (12, 5)}


def weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights whose channels differ, none of which is much smaller than another."""
    params = {name: rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]) or 1) for name, shape in SHAPES.items()}
    for name in ("w1", "w2", "w3"):
        params[name] *= rng.uniform(0.5, 1.5, (SHAPES[name][0], 1, 1, 1))
    return {name: value.astype(np.float32) for name, value in params.items()}


def net(params: dict[str, np.ndarray]) -> octavo.Model:
    """conv, relu, depthwise, relu, conv, relu, mean, dense."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        value = v["x"]
        for number, attrs in ((1, {"padding": 1}), (2, {"padding": 1, "groups": 8}), (3, {})):
            value = writer.emit(f"c{number}", relax.op.nn.conv2d(value, v[f"w{number}"], **attrs))
            shaped = writer.emit(f"_b{number}", relax.op.reshape(v[f"b{number}"], (1, -1, 1, 1)))
            value = writer.emit(f"r{number}", relax.op.nn.relu(writer.emit(f"s{number}", relax.op.add(value, shaped))))
        pooled = writer.emit("pooled", relax.op.mean(value, axis=[2, 3]))
        return writer.emit("y", relax.op.matmul(pooled, v["w4"]), is_output=True)

    return model_of({"x": ((1, 3, 9, 9), "float32")}, params, body, ("y",))


def pictures(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.normal(size=(1, 3, 9, 9)).astype(np.float32) for _ in range(24)]


def scaled(factor: float) -> Callable[..., tuple[QuantizedModel, str]]:
    def plant(model: octavo.Model, quantized: QuantizedModel, rng: np.random.Generator) -> tuple[QuantizedModel, str]:
        name = TensorId(str(rng.choice(["r1", "r2", "r3"])))
        params = quantized.plan.activations[name]
        other = replace(params, scale=np.float32(params.scale * factor))
        return octavo.quantize(model, plan=quantized.plan.with_params({name: other})), name

    return plant


def swapped_scales(model: octavo.Model, quantized: QuantizedModel, rng: np.random.Generator) -> tuple[QuantizedModel, str]:
    number = int(rng.integers(1, 4))
    name = TensorId(f"w{number}")
    params = quantized.plan.weights[name]
    scale = np.array(params.scale)
    first, last = int(scale.argmin()), int(scale.argmax())
    scale[[first, last]] = scale[[last, first]]
    return octavo.quantize(model, plan=quantized.plan.with_params({name: replace(params, scale=scale)})), f"r{number}"


def shifted_bias(model: octavo.Model, quantized: QuantizedModel, rng: np.random.Generator) -> tuple[QuantizedModel, str]:
    del model
    number = int(rng.integers(1, 4))
    plan, bias, name = quantized.plan, TensorId(f"b{number}"), TensorId(f"b{number}_q")
    shifted = plan.weight_values[bias] + np.rint(0.5 / np.ravel(plan.biases[bias].scale)).astype(np.int32)
    plan = replace(plan, weight_values={**plan.weight_values, bias: shifted})
    return replace(quantized, params={**quantized.params, name: shifted}, plan=plan), f"r{number}"


@pytest.mark.parametrize(
    ("plant", "part", "cause", "recipe"),
    [
        pytest.param(scaled(4), "activation", "coarse scale", "corrected", id="scale x4-corrected"),
        pytest.param(scaled(1 / 4), "activation", "clipping", "plain", id="scale /4-plain"),
        pytest.param(swapped_scales, "weights", "weight scale", "plain", id="swapped scales-plain"),
        pytest.param(swapped_scales, "weights", "weight scale", "corrected", id="swapped scales-corrected"),
        pytest.param(shifted_bias, "weights", "bias", "plain", id="shifted bias-plain"),
    ],
)
def test_a_planted_fault_is_named_first(
    rng: np.random.Generator, plant: Any, part: str, cause: str, recipe: str, sound_ones: dict[str, Any]
) -> None:
    sound = sound_ones[recipe]
    model, quantized, samples = sound.model, sound.quantized, sound.samples
    assert not [row for row in sound.causes if row.cause in ("coarse scale", "clipping", "weight scale", "bias")]
    for _ in range(2):
        faulty, name = plant(model, quantized, rng)
        first = root_causes(model, faulty, samples)[0]
        assert (first.id, first.part, first.cause) == (name, part, cause)
        assert first.gain_db > 0 or plant is swapped_scales, "a channel that nothing reads may have any scale"


def test_what_the_module_has_counts_and_not_the_plan(rng: np.random.Generator, plain: Any) -> None:
    faulty, name = swapped_scales(plain.model, plain.quantized, rng)
    first = root_causes(plain.model, replace(faulty, plan=plain.quantized.plan), plain.samples)[0]
    assert (first.id, first.part, first.cause) == (name, "weights", "weight scale")


@pytest.mark.parametrize(("seed", "number"), [(2, 3), (3, 3), (10, 2)])
def test_scales_that_make_a_correction_harm_are_the_fault(seed: int, number: int) -> None:
    rng = np.random.default_rng(seed)
    model, samples = net(weights(rng)), pictures(rng)
    quantized = with_steps(model, octavo.profile(model, samples, keep_samples=24), recipe=CORRECTED)
    params = quantized.plan.weights[TensorId(f"w{number}")]
    scale = np.array(params.scale)
    ends = [int(scale.argmin()), int(scale.argmax())]
    scale[ends] = scale[ends[::-1]]
    swapped = {TensorId(f"w{number}"): replace(params, scale=scale)}
    first = root_causes(model, octavo.quantize(model, plan=quantized.plan.with_params(swapped)), samples)[0]
    assert (first.id, first.part, first.cause) == (f"r{number}", "weights", "weight scale")


def test_a_correction_that_harms_comes_behind_what_does_not_fit(corrected: Any) -> None:
    model, samples, plan = corrected.model, corrected.samples, corrected.quantized.plan
    shifts = {**plan.corrections.bias_shifts, TensorId("r3"): plan.corrections.bias_shifts[TensorId("r3")] + np.float32(0.2)}
    scale = {TensorId("r2"): replace(plan.activations[TensorId("r2")], scale=plan.activations[TensorId("r2")].scale * 4)}
    for params, named in (({}, ["r3"]), (scale, ["r2", "r3"])):
        edited = replace(plan, corrections=replace(plan.corrections, bias_shifts=shifts)).with_params(params)
        rows = root_causes(model, octavo.quantize(model, plan=edited), samples)
        assert [row.id for row in rows[: len(named)]] == named
        bias = rows[len(named) - 1]
        assert bias.cause == "bias"
        assert "the correction of its bias makes the outputs worse" in bias.remedy
        assert bias.gain_db > rows[0].gain_db or bias is rows[0]


def test_an_unequalized_pair_is_named_first(rng: np.random.Generator) -> None:
    params, samples = weights(rng), pictures(rng)
    factors = np.float32(2) ** rng.integers(-4, 4, 8).astype(np.float32)
    for name in ("w1", "b1"):
        params[name] = params[name] * factors.reshape(-1, *[1] * (params[name].ndim - 1))
    params["w2"] = params["w2"] / factors.reshape(-1, 1, 1, 1)
    model = net(params)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN)
    first = root_causes(model, quantized, samples)[0]
    assert (first.id, first.part, first.cause) == ("r1", "activation", "unlike channels")
    assert "equalization" in first.remedy


def test_rows_are_those_of_what_a_plan_rounds(plain: Any) -> None:
    model, samples, quantized, rows = plain.model, plain.samples, plain.quantized, plain.causes
    assert {(row.part, row.id) for row in rows} == {
        *(("activation", name) for name in quantized.plan.activations),
        *(("weights", layer.output) for layer in quantized.plan.layers if layer.weight),
    }
    assert sum(row.share for row in rows) == pytest.approx(1)
    assert all(row.remedy for row in rows if row.share > 0.06)
    assert root_causes(model, quantized, samples) == rows


def test_what_is_no_pair_is_refused(plain: Any) -> None:
    with pytest.raises(QuantizationError, match=r"what octavo\.quantize made of this very model"):
        root_causes(plain.model, plain.model, plain.samples)


def test_the_command_line(finished_model: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    model, profile = finished_model
    capsys.readouterr()
    assert main(["causes", str(model), "--profile", str(profile), "--no-corrections"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("| tensor")
    assert "roundings; alone: what the worst output keeps" in shown
    assert main(["causes", str(model), "--profile", str(profile), "--no-corrections", "--all", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["part"] for row in rows} == {"activation", "weights"}
    assert max(row["share"] for row in rows) == max((row["share"] for row in rows if row["cause"]), default=0)
    octavo.Profile.load(profile)
    empty = profile.with_name("empty.json")
    assert main(["profile", str(model), "--data", str(profile.with_name("x.npz")), "--keep-samples", "0", "-o", str(empty)]) == 0
    assert main(["causes", str(model), "--profile", str(empty)]) == 1
    assert "keeps no samples to experiment with; profile the model with --keep-samples 64" in capsys.readouterr().err


@pytest.fixture
def finished_model(tmp_path: Path) -> tuple[Path, Path]:
    """A small model and a profile that keeps samples."""
    model, profile = tmp_path / "m.onnx", tmp_path / "profile.json"
    write_small_net(model)
    np.savez(tmp_path / "x.npz", x=digits(0, 20))
    assert main(["profile", str(model), "--data", str(tmp_path / "x.npz"), "-o", str(profile)]) == 0
    return model, profile


def test_what_has_too_few_bits_is_named_with_the_ops_around_it(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        squares = writer.emit("squares", relax.op.multiply(v["x"], v["x"]))
        both = writer.emit("both", relax.op.add(squares, writer.emit("turned", relax.op.flip(squares, axis=1))))
        return writer.emit("y", relax.op.matmul(writer.emit("root", relax.op.sqrt(both)), v["w"]), is_output=True)

    model = model_of({"x": ((1, 32), "float32")}, {"w": rng.normal(size=(32, 12)).astype(np.float32)}, body, ("y",))
    peak = 3 * np.eye(1, 32)
    samples = [(rng.normal(0, 0.1, (1, 32)) + peak).astype(np.float32) for _ in range(24)]
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN)
    first = next(row for row in root_causes(model, quantized, samples) if row.part == "activation")
    assert (str(first.id), first.cause) == ("root", "rounding")
    assert "8 bits are too few for it (add -> sqrt -> matmul): leave it float" in first.remedy


def test_channels_without_weights_are_not_accused(rng: np.random.Generator) -> None:
    params, samples = weights(rng), pictures(rng)
    params["w1"][2] = 1e-22
    model = net(params)
    quantized = octavo.quantize(model, octavo.profile(model, samples, keep_samples=24), recipe=PLAIN)
    assert not [row for row in root_causes(model, quantized, samples) if row.cause == "weight scale"]


def test_biases_next_to_tiny_weights_are_not_accused(rng: np.random.Generator) -> None:
    params, samples = weights(rng), pictures(rng)
    for weight, bias in (("w1", "b1"), ("w2", "b2"), ("w3", "b3")):
        params[weight][1:] *= np.float32(1e-4)
        params[bias][1:] = rng.uniform(0.5, 1, params[bias].size - 1)
    model = net(params)
    recipe = replace(CORRECTED, equalization="none")
    quantized = with_steps(model, octavo.profile(model, samples, keep_samples=24), recipe=recipe)
    assert quantized.plan.corrections.bias_shifts
    steps = np.ravel(quantized.plan.biases[TensorId("b3")].scale)
    assert 4 * steps.min() < np.spacing(np.float32(0.5)), "float32 has no such steps there"
    accused = [row for row in root_causes(model, quantized, samples) if row.cause == "bias"]
    # A correction that does harm here is another matter: without it, kernels give 46.0 dB in place of 45.5 on other samples.
    assert not [row for row in accused if row.remedy.startswith("its bias is not the float one's")]


def test_means_that_biases_correct_are_not_accused(plain: Any) -> None:
    model, samples = plain.model, plain.samples
    recipe = replace(CORRECTED, weight_bits={"y": 8, "*": 3}, equalization="none")
    quantized = with_steps(model, plain.profile, recipe=recipe)
    rows = [row for row in root_causes(model, quantized, samples) if row.part == "weights" and row.cause]
    corrected = [row.cause for row in rows if row.id in quantized.plan.corrections.bias_shifts]
    assert "weight rounding" in corrected
    assert "shifted mean" not in corrected


def test_a_pass_through_tensor_is_rounded_once(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("first", relax.op.matmul(v["x"], v["w"]))
        turned = writer.emit("turned", relax.op.permute_dims(writer.emit("shaped", relax.op.reshape(first, (4, 8))), [1, 0]))
        parts = writer.emit("parts", relax.op.split(turned, 2, axis=0))
        upper, lower = (writer.emit(name, relax.TupleGetItem(parts, place)) for place, name in enumerate(("upper", "lower")))
        joined = writer.emit("joined", relax.op.concat([lower, upper], axis=0))
        return writer.emit("y", relax.op.matmul(joined, v["u"]), is_output=True)

    params = {"w": rng.normal(size=(32, 32)).astype(np.float32), "u": rng.normal(size=(4, 8)).astype(np.float32)}
    model = model_of({"x": ((1, 32), "float32")}, params, body, ("y",))
    samples = [rng.normal(size=(1, 32)).astype(np.float32) for _ in range(8)]
    quantized = octavo.quantize(model, octavo.profile(model, samples, keep_samples=8), recipe=PLAIN)
    moved = {"shaped", "turned", "upper", "lower", "joined"}
    assert moved < {str(name) for name in quantized.plan.activations}
    rows = [str(row.id) for row in root_causes(model, quantized, samples) if row.part == "activation"]
    assert "first" in rows
    assert moved.isdisjoint(rows)
    name = TensorId("joined")
    wide = replace(quantized.plan.activations[name], scale=quantized.plan.activations[name].scale * 8)
    again = octavo.quantize(model, plan=quantized.plan.with_params({name: wide}))
    rows = [str(row.id) for row in root_causes(model, again, samples) if row.part == "activation"]
    assert moved & set(rows) == {"joined"}, "with steps of its own it is rounded once more"
