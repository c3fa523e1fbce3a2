"""Roundings one by one in float, and what `quantize` does where a few of them ruin a model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from octavo.quantizer.simulation.mean_shifts import channel_axes
from octavo.quantizer.simulation.on_all_samples import Trials
from octavo.quantizer.simulation.ranges import RangeTuning, range_of
from octavo.quantizer.simulation.simulation import measured_outputs
from tvm import relax

import octavo
from nets import model_of
from octavo.compiler.target_choice import resolve_target
from octavo.errors import QuantizationError
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize, quantize
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.referee.program import run_calls
from octavo.quantizer.simplify import simplify
from octavo.quantizer.simulation import Simulation

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", min_sqnr=None)


def mlp(rng: np.random.Generator) -> octavo.Model:
    """Two dense layers."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("s1", relax.op.add(writer.emit("_m1", relax.op.matmul(v["x"], v["w1"])), v["b1"]))
        hidden = writer.emit("h", relax.op.nn.relu(first))
        return writer.emit("y", relax.op.add(writer.emit("_m2", relax.op.matmul(hidden, v["w2"])), v["b2"]), is_output=True)

    params = {
        "w1": rng.normal(size=(16, 24)),
        "b1": rng.normal(size=24),
        "w2": rng.normal(size=(24, 5)),
        "b2": rng.normal(size=5),
    }
    return model_of({"x": ((1, 16), "float32")}, {name: value.astype(np.float32) for name, value in params.items()}, body, ("y",))


def spectrum_net(rng: np.random.Generator) -> octavo.Model:
    """What speech goes through: power of a spectrum, its logarithm, and layers behind."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        spectrum = writer.emit("spectrum", relax.op.matmul(v["x"], v["dft"]))
        power = writer.emit("power", relax.op.multiply(spectrum, spectrum))
        bands = writer.emit("bands", relax.op.matmul(power, v["mel"]))
        loud = writer.emit("loud", relax.op.log(writer.emit("_floor", relax.op.maximum(bands, relax.const(1e-6, "float32")))))
        value = loud
        for number in range(3):
            value = writer.emit(f"d{number}", relax.op.matmul(value, v[f"w{number}"]))
            value = writer.emit(f"r{number}", relax.op.nn.relu(value))
        pooled = writer.emit("pooled", relax.op.mean(value, axis=[1]))
        return writer.emit("y", relax.op.matmul(pooled, v["head"]), is_output=True)

    angles = np.outer(np.arange(64), np.arange(32)) * np.pi / 32
    params = {"dft": np.cos(angles), "mel": rng.uniform(size=(32, 16)) ** 4, "head": rng.normal(size=(16, 5)) / 4}
    params |= {f"w{number}": rng.normal(size=(16, 16)) / 4 for number in range(3)}
    return model_of(
        {"x": ((1, 8, 64), "float32")}, {name: value.astype(np.float32) for name, value in params.items()}, body, ("y",)
    )


def sounds(rng: np.random.Generator, count: int = 24) -> list[np.ndarray]:
    """Noise from very quiet to loud."""
    return [
        (10 ** rng.uniform(-3, 0, (1, 8, 1)) * rng.normal(size=(1, 8, 64)).cumsum(axis=2) / 8).astype(np.float32)
        for _ in range(count)
    ]


def outputs(model: octavo.Model, samples: list[np.ndarray]) -> np.ndarray:
    """Return what a model gives, sample by sample."""
    run = octavo.compile(model)
    return np.concatenate([next(iter(run(sample).values())) for sample in samples])


def power_ratio(error: np.ndarray, value: np.ndarray) -> float:
    """Return the power of an error as a share of a value's."""
    return float((error.astype(np.float64) ** 2).sum() / (value.astype(np.float64) ** 2).sum())


def test_one_rounding_alone_and_all_together(rng: np.random.Generator) -> None:
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(6)]
    profile = octavo.profile(model, samples)
    quantized = octavo.quantize(model, profile, recipe=PLAIN)
    plan, p = quantized.plan, model.params
    simulation = Simulation(model, plan, [[sample] for sample in samples], resolve_target(None))
    assert simulation.samples == len(samples)
    assert set(simulation.activations) == {"x", "h"}, "y ends in float"
    assert set(simulation.weights) == {"h", "y"}

    x = np.concatenate(samples).astype(np.float64)
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    exact = hidden @ p["w2"] + p["b2"]
    rounded = dequantize(quantize(hidden.astype(np.float32), plan.activations["h"]), plan.activations["h"])
    alone = simulation.alone({TensorId("h"): plan.activations["h"]})
    assert alone == pytest.approx(power_ratio((rounded - hidden) @ p["w2"], exact), rel=0.02)
    weight = dequantize(plan.weight_values["w2"], plan.weights["w2"])
    bias = dequantize(plan.weight_values["b2"], plan.biases["y"] if "y" in plan.biases else plan.biases["b2"])
    of_weights = simulation.alone({}, [TensorId("y")])
    assert of_weights == pytest.approx(power_ratio(hidden @ weight + bias - exact, exact), rel=0.02)

    together = simulation.together(plan.activations, simulation.weights)
    integers = sqnr_db(exact, outputs(quantized, samples).astype(np.float64))
    assert -10 * np.log10(together) == pytest.approx(integers, abs=0.5), "the kernels do what is simulated"
    assert simulation.together({}, []) == 0
    effects = simulation.effects()
    assert effects.together == together
    assert effects.activations.keys() == set(simulation.activations)


def test_what_corrected_biases_take_out_again(rng: np.random.Generator) -> None:
    """Of what the second product reads, its mean shift, sample by sample of all; of what the first reads, that too."""
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(12)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    plain, centred = (
        Simulation(model, plan, [[sample] for sample in samples], resolve_target(None), is_centred=each) for each in (False, True)
    )
    assert plain.samples == centred.samples == 8, "not all are kept"
    x, p = np.concatenate(samples).astype(np.float64), model.params
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    cut = replace(plan.activations["h"], scale=np.float32(hidden.max() / 2 / 255))
    off = dequantize(quantize(hidden.astype(np.float32), cut), cut) - hidden
    exact, moved = hidden @ p["w2"] + p["b2"], off @ p["w2"]
    left = moved - moved.mean(axis=0)
    for simulation, expected in ((plain, moved), (centred, left)):
        [[found]] = simulation.alone_on_all([[{TensorId("h"): cut}]])
        assert found == pytest.approx(power_ratio(expected, exact), rel=1e-3)
    kept = moved[:8] - moved[:8].mean(axis=0)
    assert centred.alone({TensorId("h"): cut}) == pytest.approx(power_ratio(kept, exact[:8]), rel=1e-3)
    assert centred.together({TensorId("h"): cut}, []) == pytest.approx(power_ratio(kept, exact[:8]), rel=1e-3)
    assert plain.together({TensorId("h"): cut}, []) == pytest.approx(power_ratio(moved[:8], exact[:8]), rel=1e-3)


def test_samples_are_computed_to_their_end_where_a_range_moves_most(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(12)]
    for number in range(8, 12):
        samples[number] *= 8 if number == 10 else 0.5
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    simulated = Simulation(model, plan, [[sample] for sample in samples], resolve_target(None), is_centred=True)
    results: list[Any] = []

    def counting(calls: Any, state: dict[Any, Any], constants: Any) -> None:
        run_calls(calls, state, constants)
        results.extend(var for var in state if var.same_as(simulated._program.variables["y"]))

    monkeypatch.setattr("octavo.quantizer.simulation.simulation.run_calls", counting)
    monkeypatch.setattr("octavo.quantizer.simulation.simulation._MANY_VALUES", 8)
    whole, cut = plan.activations["h"], replace(plan.activations["h"], scale=plan.activations["h"].scale / 8)
    [[least, most]] = simulated.alone_on_all([[{TensorId("h"): whole}, {TensorId("h"): cut}]])
    assert len(results) == 2 * (8 + 1) + 1, "of each kept sample, and of the loud one, which is computed as it is, too"
    assert most > 10 * least, "the loud sample counts"


def test_what_few_samples_say_of_all() -> None:
    """What samples like those that are kept add is in proportion to how far they are moved."""
    trials = Trials(params=[{}, {}])
    trials.tensor_errors = [[1.0, 1.0, 2.0, 0.5], [4.0, 4.0, 2.0, 9.0]]
    trials.add(0, np.array([[0.1, 0.2], [0.4, 0.4]]), np.array([1.0, 2.0]))
    trials.add(1, np.array([[0.3, 0.2], [0.4, 0.4]]), np.array([3.0, 2.0]))
    assert [trials.is_far(sample, 2) for sample in (2, 3)] == [False, True]
    trials.add(3, np.array([[0.2, 0.2], [7.0, 8.0]]), np.array([5.0, 5.0]))
    errors, powers = zip(*trials.on_all(2), strict=True)
    assert np.allclose(errors, [[0.6 + 0.4, 0.6 + 0.4], [7.8 + 0.2, 8.8 + 0.2]])
    assert np.allclose(powers, [[9.0 + 2.0, 9.0 + 2.0]] * 2)


def test_a_range_for_few_samples_is_none_for_all(rng: np.random.Generator) -> None:
    """What only the last sample has counts, though few samples are kept."""
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) / 8 for _ in range(16)]
    samples[-1] *= 80
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN)
    given = [[sample] for sample in samples]
    few, every = (Simulation(model, quantized.plan, each, resolve_target(None)) for each in (given[:8], given))
    ends = [
        RangeTuning(simulation=each, plan=quantized.plan, effects=each.effects()).run()[0].get(TensorId("h"))
        for each in (few, every)
    ]
    assert ends[0] is not None, "the range of all samples is too wide for the first"
    assert ends[0][1] < range_of(quantized.plan.activations["h"])[1] / 3
    assert ends[1] is None or ends[1][1] > 1.5 * ends[0][1]


def test_channels_that_products_see(rng: np.random.Generator) -> None:
    """Through sums and what leaves channels apart; not behind a function, in front of an output, or of two activations."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("first", relax.op.nn.conv2d(v["x"], v["w1"]))
        total = writer.emit("total", relax.op.add(first, first))
        bent = writer.emit("bent", relax.op.nn.relu(total))
        pooled = writer.emit("pooled", relax.op.mean(bent, axis=[2, 3]))
        flat = writer.emit("flat", relax.op.reshape(pooled, (1, 3)))
        scores = writer.emit("scores", relax.op.matmul(flat, v["w2"]))
        turned = writer.emit("turned", relax.op.permute_dims(scores))
        square = writer.emit("square", relax.op.matmul(turned, scores))
        return writer.emit("y", relax.op.matmul(square, v["w3"]), is_output=True)

    values = {"w1": rng.normal(size=(3, 2, 1, 1)), "w2": rng.normal(size=(3, 4)), "w3": rng.normal(size=(4, 2))}
    model = model_of(
        {"x": ((1, 2, 5, 5), "float32")}, {name: value.astype(np.float32) for name, value in values.items()}, body, ("y",)
    )
    axes = channel_axes(DataflowView(model.module["main"]), model.params)
    assert {name: axes[name] for name in axes if name not in values} == {"x": 1, "bent": 1, "pooled": 1, "flat": 1, "square": 1}


def test_every_rounding_is_felt(rng: np.random.Generator) -> None:
    """Those of what TVM's own passes fuse and rename between convolutions, too."""
    folder = Path(octavo.__file__).parent / "cli" / "demo_data"
    model = octavo.load(folder / "digits.onnx")
    samples = [rng.uniform(size=(1, 1, 8, 8)).astype(np.float32) for _ in range(2)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    simulation = Simulation(simplify(model)[0], plan, [[sample] for sample in samples], resolve_target(None))
    effects = simulation.effects()
    assert effects.activations.keys() == set(plan.activations)
    of_weights = simulation.weight_effects()
    assert of_weights.keys() == {layer.output for layer in plan.layers if layer.weight}
    assert min(*effects.activations.values(), *of_weights.values()) > 0
    assert effects.weights == pytest.approx(sum(of_weights.values()), rel=0.2), "those of layers add up"


def test_what_is_measured_is_in_front_of_a_softmax() -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        scores = writer.emit("scores", relax.op.matmul(v["x"], v["w"]))
        return writer.emit("y", relax.op.nn.softmax(scores, axis=-1), is_output=True)

    model = model_of({"x": ((1, 4), "float32")}, {"w": np.eye(4, dtype=np.float32)}, body, ("y",))
    assert measured_outputs(DataflowView(model.module["main"])) == ["scores"]


def test_what_rounding_ruins_stays_float(rng: np.random.Generator, tmp_path: Path) -> None:
    model, samples, unseen = spectrum_net(rng), sounds(rng), sounds(rng)
    profile = octavo.profile(model, samples, keep_samples=24)
    whatever = octavo.quantize(model, profile, recipe=octavo.Recipe(min_sqnr=None))
    quantized = octavo.quantize(model, profile)
    expected = outputs(model, unseen)
    before, after = (sqnr_db(expected, outputs(each, unseen)) for each in (whatever, quantized))
    assert before < 10
    assert after > 18
    assert quantized.plan.corrections.sqnr_db > 18
    floats = {str(op.tensor): op.reason for op in quantized.plan.float_ops}
    assert "18 dB were asked for" in floats["bands"]
    integers = {str(layer.output) for layer in quantized.plan.layers}
    assert {"r1", "r2", "y"} <= integers, "what rounding does not hurt is integer"
    assert len(integers) > len(floats) - 4

    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint


def test_ranges_that_ruin_a_model_are_others(rng: np.random.Generator) -> None:
    """A percentile that cuts what counts: the samples tell."""
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(24)]
    profile = octavo.profile(model, samples, keep_samples=24)
    cut, mended = (
        octavo.quantize(model, profile, recipe=octavo.Recipe(range_estimator="percentile:60", min_sqnr=goal))
        for goal in (None, 20.0)
    )
    expected = outputs(model, samples)
    assert sqnr_db(expected, outputs(cut, samples)) < 15
    assert sqnr_db(expected, outputs(mended, samples)) > 20
    said = {str(each.tensor): each.message for each in mended.plan.adjustments}
    assert "it costs the model's outputs least" in said["h"]
    assert {str(layer.output) for layer in mended.plan.layers} == {"h", "y"}, "nothing had to stay float"


def test_tensors_that_a_recipe_keeps_float(rng: np.random.Generator) -> None:
    model = mlp(rng)
    profile = octavo.profile(model, [rng.normal(size=(1, 16)).astype(np.float32)])
    [kept] = [model.tensors[TensorId("h")].source_name]
    plan = octavo.quantize(model, profile, recipe=octavo.Recipe(float_tensors=(kept,))).plan
    assert "h" not in plan.activations
    [first] = plan.layers
    assert (first.inputs, first.output) == (("x",), "h"), "a product can end in float"
    assert "it reads h, which stays float: the recipe says so" in {op.reason for op in plan.float_ops}
    with pytest.raises(QuantizationError, match="recipe: float_tensors: the model has no tensor 'hh'; did you mean 'h'"):
        octavo.quantize(model, profile, recipe=octavo.Recipe(float_tensors=("hh",)))


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), "18", True])
def test_a_ratio_that_is_none(value: Any) -> None:
    with pytest.raises(QuantizationError, match="recipe: min_sqnr must be a number of dB, 0 or more, or None"):
        octavo.Recipe(min_sqnr=value)
