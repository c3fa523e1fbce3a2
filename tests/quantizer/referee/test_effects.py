"""The effect of one rounding is what the model does with that one alone, and where all are rounded, what kernels do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import mlp, model_of, residual_net
from octavo.compiler.float_program import FloatProgram
from octavo.compiler.replaceable_constants import with_values
from octavo.compiler.target_choice import resolve_target
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.identity import TensorId
from octavo.ir.simplify import simplify
from octavo.numerics import dequantize, quantize
from octavo.numerics.dynamic import row_steps
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee import Referee, RoundedProgram, sqnr_by_result
from octavo.quantizer.referee.rounding import RowSteps
from random_nets import random_net

TARGET = resolve_target(None)
PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", min_sqnr=None, equalization="none")


def power_ratio(error: np.ndarray, value: np.ndarray) -> float:
    """Return the power of an error as a share of a value's."""
    return float((error.astype(np.float64) ** 2).sum() / (value.astype(np.float64) ** 2).sum())


def test_activations_alone_are_those_that_are_rounded_when_run_too(rng: np.random.Generator) -> None:
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(6)]
    changes = Choices(per_row={TensorId(name): "it is tried" for name in ("h", "y")})
    plan = quantize_graph(model, octavo.profile(model, samples), recipe=PLAIN, changes=changes).plan
    assert [layer.per_row for layer in plan.layers] == [("x",), ("h",)]
    score = Referee(RoundedProgram(model, [plan], TARGET), [[sample] for sample in samples]).score_of_activations(plan)

    x, p = np.concatenate(samples), model.params
    exact = np.maximum(x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]
    hidden = np.maximum(by_rows(x) @ p["w1"] + p["b1"], 0)
    assert score.error == pytest.approx(power_ratio(by_rows(hidden) @ p["w2"] + p["b2"] - exact, exact), rel=1e-3)


def by_rows(values: np.ndarray) -> np.ndarray:
    """Return what stands for values in int8, each row with a scale and a zero point of its own."""
    steps, scales = row_steps(values)
    return steps * scales


def test_one_rounding_alone_and_all_together(rng: np.random.Generator) -> None:
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(6)]
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN)
    plan, p = quantized.plan, model.params
    given = [[sample] for sample in samples]
    referee = Referee(RoundedProgram(model, [plan], TARGET), given)
    assert list(referee.few) == list(range(6))
    rounding = referee.rounding(plan)
    effects, of_layers = referee.effects(rounding), referee.layer_effects(rounding, rounding.layers)
    assert set(effects) == {"x", "h"}, "y ends in float"

    x = np.concatenate(samples).astype(np.float64)
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    exact = hidden @ p["w2"] + p["b2"]
    rounded = dequantize(quantize(hidden.astype(np.float32), plan.activations["h"]), plan.activations["h"])
    assert effects[TensorId("h")] == pytest.approx(power_ratio((rounded - hidden) @ p["w2"], exact), rel=1e-3)
    weight = dequantize(plan.weight_values["w2"], plan.weights["w2"])
    bias = dequantize(plan.weight_values["b2"], plan.biases["b2"])
    assert of_layers[TensorId("y")] == pytest.approx(power_ratio(hidden @ weight + bias - exact, exact), rel=1e-3)

    [kernels] = sqnr_by_result(DataflowView(model.module["main"]), results_of(model, samples), results_of(quantized, samples))
    assert referee.score_of(rounding, few=True).sqnr_db == pytest.approx(kernels, abs=0.05)
    assert referee.score_of(rounding.only(), few=True).error == 0
    wide = replace(plan.activations["h"], scale=plan.activations["h"].scale * 8)
    cut = referee.score_of(rounding.only().with_params({TensorId("h"): wide})).error
    coarse = dequantize(quantize(hidden.astype(np.float32), wide), wide)
    assert cut == pytest.approx(power_ratio((coarse - hidden) @ p["w2"], exact), rel=1e-3)


def test_what_is_moved_counts_once_with_what_it_is_made_of(rng: np.random.Generator) -> None:
    """Each is rounded to the same integers: one alone costs what both do."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        hidden = writer.emit("h", relax.op.matmul(v["x"], v["w"]))
        return writer.emit(
            "y", relax.op.matmul(writer.emit("moved", relax.op.permute_dims(hidden, [1, 0])), v["o"]), is_output=True
        )

    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in (("w", (16, 8)), ("o", (4, 3)))}
    model = model_of({"x": ((4, 16), "float32")}, params, body, ("y",))
    samples = [rng.normal(size=(4, 16)).astype(np.float32) for _ in range(4)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    both = (TensorId("h"), TensorId("moved"))
    assert [set(group) for group in plan.shared] == [set(both)]
    referee = Referee(RoundedProgram(model, [plan], TARGET), [[sample] for sample in samples])
    rounding = referee.rounding(plan)
    found = referee.group_effects(rounding, [both, (TensorId("x"),)])
    alone = referee.effects(rounding)
    assert found[both] == pytest.approx(alone[both[0]], rel=1e-6)
    assert alone[both[0]] == pytest.approx(alone[both[1]], rel=1e-6)
    assert found[TensorId("x"),] == alone[TensorId("x")]


@pytest.mark.parametrize("seed", [5, 9])
def test_a_start_behind_the_first_tensor_that_changes_gives_what_a_whole_run_does(seed: int, rng: np.random.Generator) -> None:
    """Many roundings at once start from the values of the float model; alone, on all samples, each gives the same bytes."""
    model = random_net(seed)
    shape = [int(size) for size in model.module["main"].params[0].ty.shape]
    samples = [rng.normal(size=shape).astype(np.float32) for _ in range(4)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    referee = Referee(RoundedProgram(simplify(model)[0], [plan], TARGET), [[sample] for sample in samples])
    rounding = referee.rounding(plan)
    names = list(plan.activations)
    tried = [rounding.only([name]) for name in names] + [rounding.only(names[:2], [plan.layers[-1].output]), rounding]
    at_once = referee.scores_of(tried)
    for each, score in zip(tried, at_once, strict=True):
        assert referee.score_of(each).errors.tobytes() == score.errors.tobytes()


def test_constants_of_one_layer_cost_what_the_compiled_float_model_does_with_them(rng: np.random.Generator) -> None:
    model = residual_net()
    simple = simplify(model)[0]
    shape = [int(size) for size in model.module["main"].params[0].ty.shape]
    samples = [rng.normal(size=shape).astype(np.float32) for _ in range(3)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    referee = Referee(RoundedProgram(simple, [plan], TARGET), [[sample] for sample in samples])
    rounding = referee.rounding(plan)
    effects = referee.layer_effects(rounding, rounding.layers)
    exact = results_of(simple, samples)
    compared = [name for name, values in rounding.layers.items() if values]
    assert len(compared) > 1
    for name in compared:
        found = results_of(with_values(simple, rounding.layers[name]), samples)
        [ratio] = sqnr_by_result(DataflowView(simple.module["main"]), exact, found)
        assert -10 * np.log10(effects[name]) == pytest.approx(ratio, abs=0.01)


def results_of(model: octavo.Model, samples: list[np.ndarray]) -> list[list[np.ndarray]]:
    """Return the results of each sample."""
    run = octavo.compile(model)
    return [list(run(sample).values()) for sample in samples]


def test_what_comes_before_a_rounding_is_not_computed_for_each(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp(rng)
    samples = [rng.normal(size=(1, 16)).astype(np.float32) for _ in range(3)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    referee = Referee(RoundedProgram(model, [plan], TARGET), [[sample] for sample in samples])
    program: FloatProgram = referee.program.floats
    ran: list[str] = []
    for call in program.calls:
        monkeypatch.setattr(call, "run", lambda *given, run=call.run, name=call.var.name: (ran.append(name), run(*given))[1])
    rounding = referee.rounding(plan)
    referee.scores_of([rounding.only(["h"])] * 5, few=True)
    first = program.variables["h"].name
    assert ran.count(first) == len(samples), "by the float model, once a sample"
    assert ran.count(program.variables["y"].name) == len(samples) * (1 + 5)

    effects = referee.effects(rounding)
    ran.clear()
    assert referee.effects(referee.rounding(plan)) == effects
    assert not ran, "what is known is not measured again"
    wide = replace(plan.activations["h"], scale=plan.activations["h"].scale * 2)
    other = rounding.with_params({TensorId("h"): wide})
    found = referee.effects(other)
    assert ran.count(program.variables["y"].name) == len(samples)
    assert found["x"] == effects["x"]
    assert found["h"] == referee.score_of(other.only(["h"]), few=True).error != effects["h"]
    rows = {layer.output: {name: RowSteps() for name in layer.inputs if name == "h"} for layer in plan.layers}
    per_row = replace(other, rows={output: each for output, each in rows.items() if each})
    assert referee.effects(per_row, ["h"])["h"] == referee.score_of(per_row.only(["h"]), few=True).error


def test_what_hardly_matters_is_measured_on_fewer_samples_of_many_values(rng: np.random.Generator) -> None:
    """An output of so many values tells on one sample which roundings it hardly feels."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first, second = (writer.emit(name, relax.op.matmul(v[name[0]], v[name[1]])) for name in ("xw", "zu"))
        return writer.emit("y", relax.op.add(first, second), is_output=True)

    params = {"w": rng.normal(size=(16, 8)), "u": rng.normal(size=(16, 8)) / 1000}
    shapes = {"x": ((512, 16), "float32"), "z": ((512, 16), "float32")}
    model = model_of(shapes, {name: value.astype(np.float32) for name, value in params.items()}, body, ("y",))
    samples = [{name: rng.normal(size=(512, 16)).astype(np.float32) for name in shapes} for _ in range(6)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    program, given = RoundedProgram(model, [plan], TARGET), [[*each.values()] for each in samples]
    referee = Referee(program, given)
    rounding = referee.rounding(plan)
    effects = referee.effects(rounding)
    on_few, on_one = (
        {name: each.score_of(rounding.only([name]), few=True).error for name in effects}
        for each in (referee, Referee(program, given[:1]))
    )
    assert len(referee.few) > 1
    assert effects["x"] == on_few["x"] != on_one["x"]
    assert effects["z"] == on_one["z"] != on_few["z"]
    assert effects["z"] < effects["x"] / 1000


def test_every_rounding_is_felt(rng: np.random.Generator) -> None:
    """Those of what TVM's own passes fuse and rename between convolutions, too."""
    folder = Path(octavo.__file__).parent / "cli" / "demo_data"
    model = octavo.load(folder / "digits.onnx")
    samples = [rng.uniform(size=(1, 1, 8, 8)).astype(np.float32) for _ in range(2)]
    plan = octavo.quantize(model, octavo.profile(model, samples), recipe=PLAIN).plan
    referee = Referee(RoundedProgram(simplify(model)[0], [plan], TARGET), [[sample] for sample in samples])
    rounding = referee.rounding(plan)
    effects = referee.effects(rounding)
    assert effects.keys() == plan.activations.keys()
    of_weights = referee.layer_effects(rounding, [layer.output for layer in plan.layers if layer.weight])
    assert min(*effects.values(), *of_weights.values()) > 0
    together = referee.score_of(rounding.only(layers=rounding.layers), few=True).error
    assert together == pytest.approx(sum(of_weights.values()), rel=0.2), "those of layers add up"
