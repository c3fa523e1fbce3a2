"""Dense layers whose input is quantized per row when run: from the choice to the kernel's bytes, plan, explanation and ONNX."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx_nets import OnnxWriter
from tvm import relax

import octavo
from nets import model_of
from octavo.compiler.target_choice import resolve_target
from octavo.errors import QuantizationError
from octavo.export.onnx.onnx_export import export_onnx
from octavo.frontends.load import load
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, call_to
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize_accumulator
from octavo.numerics.dynamic import PER_ROW, dynamic_parameters, dynamic_quantize
from octavo.quantizer.choices import Choices
from octavo.quantizer.plan import Corrections
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee import Referee, RoundedProgram
from octavo.quantizer.steps import per_row
from octavo.target import CPU
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
SHAPES = {2: (5, 16), 3: (2, 5, 16), 4: (2, 1, 3, 16)}


def projections(rng: np.random.Generator, shape: tuple[int, ...] = (2, 5, 16)) -> octavo.Model:
    """Two dense layers of one input, one with a bias and a clamp, their product, a third layer of that."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("_q", relax.op.matmul(v["x"], v["wq"]))
        q = writer.emit("q", relax.op.nn.relu(writer.emit("_qb", relax.op.add(first, v["bq"]))))
        k = writer.emit("k", relax.op.matmul(v["x"], v["wk"]))
        gated = writer.emit("g", relax.op.multiply(q, k))
        return writer.emit("y", relax.op.matmul(gated, v["wo"]), is_output=True)

    sizes = {"wq": (16, 24), "wk": (16, 24), "bq": (24,), "wo": (24, 7)}
    params = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return model_of({"x": (shape, "float32")}, params, body, ("y",))


def samples_of(model: octavo.Model, rng: np.random.Generator, count: int = 6) -> list[np.ndarray]:
    """Rows of very unlike width: what a static scale serves badly."""
    shape = [int(size) for size in model.module["main"].params[0].ty.shape]
    widths = 10 ** rng.uniform(-1.5, 1, (count, *shape[:-1], 1))
    return list((rng.normal(size=(count, *shape)) * widths).astype(np.float32))


def chosen(*names: str) -> Choices:
    return Choices(per_row={TensorId(name): "it is tried" for name in names})


def output(executable: Any, x: np.ndarray) -> np.ndarray:
    (value,) = executable(x).values()
    return value


def oracle(x: np.ndarray, quantized: octavo.QuantizedModel, weight: str, **ends: Any) -> np.ndarray:
    """A layer's result by the definition: integers of each row, int32 sums, scaled in float32."""
    rows = x.reshape(-1, x.shape[-1])
    parameters = dynamic_parameters(rows, PER_ROW)
    centered = dynamic_quantize(rows, parameters, PER_ROW).astype(np.int32) - parameters[:, 1:].astype(np.int32)
    integers, params = quantized.plan.weight_values[TensorId(weight)], quantized.plan.weights[TensorId(weight)]
    sums = centered @ integers.astype(np.int32)
    found = dequantize_accumulator(sums, params.scale, ends.pop("bias", np.float32(0)), input_scale=parameters[:, :1], **ends)
    return found.reshape(*x.shape[:-1], -1)


@pytest.mark.parametrize("rank", SHAPES)
def test_a_layer_is_the_oracle_bit_for_bit_whatever_axes_lead(rank: int, rng: np.random.Generator) -> None:
    model = projections(rng, SHAPES[rank])
    samples = samples_of(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, samples), recipe=PLAIN, changes=chosen("q", "k", "y"))
    executable = octavo.compile(quantized)
    for x in samples:
        q = oracle(x, quantized, "wq", bias=model.params[TensorId("bq")], low=0.0)
        gated = q * oracle(x, quantized, "wk")
        np.testing.assert_array_equal(output(executable, x), oracle(gated, quantized, "wo"))


def test_what_several_layers_read_is_quantized_once(rng: np.random.Generator) -> None:
    model = projections(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN, changes=chosen("q", "k"))
    view = DataflowView(quantized.module["main"])
    found = [binding for binding in view.bindings if call_to(binding.value, "min") is not None]
    assert len(found) == 1
    assert TensorId("x") not in quantized.plan.activations
    assert {layer.output: layer.per_row for layer in quantized.plan.layers if layer.weight} == {
        "q": ("x",),
        "k": ("x",),
        "y": (),
    }


def test_its_module_is_loaded_as_what_it_is(rng: np.random.Generator) -> None:
    model = projections(rng)
    samples = samples_of(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, samples), recipe=PLAIN, changes=chosen("q", "k", "y"))
    again = octavo.load(quantized.bound())
    assert [op.kernel for op in octavo.explain(again).ops] == [op.kernel for op in octavo.explain(quantized).ops]
    np.testing.assert_array_equal(output(octavo.compile(again), samples[0]), output(octavo.compile(quantized), samples[0]))


def test_rows_of_unlike_width_keep_their_precision(rng: np.random.Generator) -> None:
    model = projections(rng)
    samples = samples_of(model, rng, 24)
    profile, fresh = octavo.profile(model, samples[:16]), samples[16:]
    exact = octavo.compile(model)

    def worst_row_db(quantized: octavo.QuantizedModel) -> float:
        run = octavo.compile(quantized)
        pairs = [(output(exact, x).reshape(-1, 7), output(run, x).reshape(-1, 7)) for x in fresh]
        return min(float(10 * np.log10((a**2).sum(1) / ((a - b) ** 2).sum(1)).min()) for a, b in pairs)

    plain = quantize_graph(model, profile, recipe=PLAIN)
    assert worst_row_db(quantize_graph(model, profile, recipe=PLAIN, changes=chosen("q", "k", "y"))) > worst_row_db(plain) + 10


def test_a_row_that_is_not_finite_gives_nan_and_one_of_zeros_the_bias(rng: np.random.Generator) -> None:
    """The logarithm makes such rows: inputs of a model must be finite."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        product = writer.emit("p", relax.op.matmul(writer.emit("z", relax.op.log(v["x"])), v["m"]))
        return writer.emit("y", relax.op.clip(writer.emit("s", relax.op.add(product, v["b"])), -3, 3), is_output=True)

    params = {"m": rng.normal(size=(16, 7)).astype(np.float32), "b": rng.normal(size=7).astype(np.float32)}
    model = model_of({"x": ((2, 5, 16), "float32")}, params, body, ("y",))
    x = np.exp(rng.normal(size=(2, 5, 16))).astype(np.float32)
    quantized = quantize_graph(model, octavo.profile(model, [x]), recipe=PLAIN, changes=chosen("y"))
    assert quantized.plan.layers[-1].per_row == ("z",)
    executable, strange = octavo.compile(quantized), x.copy()
    strange[0, 1, 3], strange[0, 3, 0], strange[1, 4, 15], strange[1, 0] = -1, 0, -1, 1
    found, plain = output(executable, strange), output(executable, x)
    bad = np.zeros((2, 5), bool)
    bad[0, 1] = bad[0, 3] = bad[1, 4] = True
    assert np.isnan(found[bad]).all()
    np.testing.assert_array_equal(found[1, 0], np.clip(params["b"], -3, 3))
    bad[1, 0] = True
    np.testing.assert_array_equal(found[~bad], plain[~bad])


def test_a_plan_is_saved_and_makes_the_same_bytes(rng: np.random.Generator, tmp_path: Path) -> None:
    model = projections(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN, changes=chosen("q", "y"))
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    assert str(again.module) == str(quantized.module)
    assert again.plan.layers == quantized.plan.layers
    assert again.plan.adjustments == quantized.plan.adjustments


def edited(path: Path, change: Any) -> Path:
    data = json.loads(path.read_text())
    for layer in data["layers"]:
        change(layer)
    path.write_text(json.dumps(data))
    return path


def test_a_file_from_before_has_static_layers(rng: np.random.Generator, tmp_path: Path) -> None:
    model = projections(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN)
    quantized.plan.save(tmp_path / "plan.json")
    old = edited(tmp_path / "plan.json", lambda layer: layer.pop("per_row"))
    assert octavo.quantize(model, plan=old).fingerprint == quantized.fingerprint


def test_a_plan_that_makes_a_layer_static_without_parameters(rng: np.random.Generator, tmp_path: Path) -> None:
    model = projections(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN, changes=chosen("q", "k", "y"))
    quantized.plan.save(tmp_path / "plan.json")
    path = edited(tmp_path / "plan.json", lambda layer: layer.update(per_row=[]))
    with pytest.raises(QuantizationError, match="reads x, which has no parameters in the plan"):
        octavo.quantize(model, plan=path)


def test_explain_names_it_and_its_reason(rng: np.random.Generator) -> None:
    model = projections(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN, changes=chosen("q"))
    reasons = {op.tensor: op.reason for op in octavo.explain(quantized).ops if op.op == "matmul"}
    assert reasons["q"] == "its input is quantized per row, when run: it is tried"
    assert reasons["y"] == ""


def test_a_target_that_does_not_take_it_gets_static_parameters(rng: np.random.Generator) -> None:
    static = replace(CPU, ops=tuple(replace(op, per_row_input=False) for op in CPU.ops))
    model = projections(rng)
    profile = octavo.profile(model, samples_of(model, rng))
    quantized = quantize_graph(model, profile, target=static, recipe=PLAIN, changes=chosen("q", "k", "y"))
    plain = octavo.quantize(model, profile, target=static, recipe=PLAIN)
    assert quantized.plan.activations == plain.plan.activations
    assert not any(layer.per_row for layer in quantized.plan.layers)
    reasons = {op.tensor: op.reason for op in octavo.explain(quantized, target=static).ops}
    assert "target cpu quantizes no input of matmul per row when run (it is tried)" in reasons["y"]


def test_what_follows_is_quantized_statically_where_an_integer_op_reads_it(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        q, k = (writer.emit(name, relax.op.matmul(v["x"], v[f"w{name}"])) for name in "qk")
        turned = writer.emit("t", relax.op.permute_dims(k, [0, 2, 1]))
        return writer.emit("y", relax.op.matmul(q, turned), is_output=True)

    params = {name: rng.normal(size=(16, 8)).astype(np.float32) for name in ("wq", "wk")}
    model = model_of({"x": ((2, 5, 16), "float32")}, params, body, ("y",))
    samples = samples_of(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, samples), recipe=PLAIN, changes=chosen("q", "k"))
    assert {"q", "t"} <= quantized.plan.activations.keys()
    assert all(op.integer for op in octavo.explain(quantized).ops)


def test_a_shift_of_the_bias_is_added_in_float(rng: np.random.Generator, tmp_path: Path) -> None:
    model = projections(rng)
    samples = samples_of(model, rng)
    profile = octavo.profile(model, samples)
    shift = rng.normal(size=24).astype(np.float32)
    changes = replace(chosen("q", "k", "y"), corrections=Corrections(bias_shifts={TensorId("q"): shift}))
    quantized = quantize_graph(model, profile, recipe=PLAIN, changes=changes)
    bias = model.params[TensorId("bq")] + shift
    for x in samples:
        gated = oracle(x, quantized, "wq", bias=bias, low=0.0) * oracle(x, quantized, "wk")
        np.testing.assert_array_equal(output(octavo.compile(quantized), x), oracle(gated, quantized, "wo"))
    quantized.plan.save(tmp_path / "plan.json")
    assert octavo.quantize(model, plan=tmp_path / "plan.json").fingerprint == quantized.fingerprint


class Planning:
    """What the step reads of its evidence."""

    def __init__(self, supports: Mapping[str, Any]) -> None:
        self.planner = self
        self._supports = supports

    def support(self, layer: Any) -> Any:
        return self._supports.get(layer.op)


class Planned:
    """A model as the step sees it."""

    def __init__(self, quantized: octavo.QuantizedModel, named: set[str]) -> None:
        self.plan, self.named, self.choices = (
            quantized.plan,
            named,
            Choices(corrections=Corrections(bias_shifts={TensorId("q"): np.zeros(24, np.float32)})),
        )


def scores(rng: np.random.Generator) -> octavo.Model:
    """Two dense layers, the product of what they give, a third layer of that."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        q, k = (writer.emit(name, relax.op.matmul(v["x"], v[f"w{name}"])) for name in "qk")
        product = writer.emit("s", relax.op.matmul(q, writer.emit("t", relax.op.permute_dims(k, [0, 2, 1]))))
        return writer.emit("y", relax.op.matmul(product, v["wo"]), is_output=True)

    params = {name: rng.normal(size=size).astype(np.float32) for name, size in (("wq", (16, 8)), ("wk", (16, 8)), ("wo", (5, 7)))}
    return model_of({"x": ((2, 5, 16), "float32")}, params, body, ("y",))


@pytest.mark.parametrize(
    ("named", "takes", "products", "expected"),
    [
        (set(), "matmul", "", {"q", "k", "y"}),
        (set(), "matmul", "too", None),
        (set(), "matmul", "float", {"q", "k", "y"}),
        (set(), "matmul batch_matmul", "", {"q", "k", "y"}),
        (set(), "matmul batch_matmul", "too", {"q", "k", "s", "y"}),
        (set(), "batch_matmul", "float", None),
        ({"x", "t"}, "matmul batch_matmul", "", {"y"}),
        ({"x"}, "matmul batch_matmul", "too", {"s", "y"}),
        ({"t"}, "matmul batch_matmul", "too", None),
        ({"t"}, "matmul batch_matmul", "float", None),
        ({"y"}, "matmul", "", {"q", "k"}),
        (set(), "", "too", None),
    ],
)
def test_the_step_proposes_what_can_be_and_nobody_speaks_of(
    named: set[str], takes: str, products: Any, expected: set[str] | None, rng: np.random.Generator
) -> None:
    model = scores(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN)
    supports = {op.op: replace(op, per_row_input=op.op in takes.split()) for op in CPU.ops if "matmul" in op.op}
    evidence: Any = Planning(supports)
    planned: Any = Planned(quantized, named)
    found = per_row.PerRow(products=products).propose(planned, evidence)
    assert (None if found is None else set(found.per_row)) == expected
    assert found is None or not found.corrections  # they are another model's


@pytest.mark.parametrize(
    ("made", "products", "expected"),
    [(scores, "", set()), (scores, "too", {"k", "t"}), (scores, "float", {"k", "q", "t"}), (projections, "", {"q", "k", "g"})],
)
def test_what_no_product_takes_as_integers_stays_float(
    made: Callable[[np.random.Generator], octavo.Model], products: Any, expected: set[str], rng: np.random.Generator
) -> None:
    model = made(rng)
    quantized = quantize_graph(model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN)
    evidence: Any = Planning({op.op: replace(op, per_row_input=True) for op in CPU.ops if "matmul" in op.op})
    planned: Any = Planned(quantized, set())
    found = per_row.PerRow(products=products).propose(planned, evidence)
    assert found is not None
    assert set(found.float_tensors) == expected


@pytest.mark.parametrize("opset", [13, 17, 18])
def test_onnx_runtime_computes_the_file(opset: int, rng: np.random.Generator, tmp_path: Path) -> None:
    """Dense layers of rank 2 and 3, one input of two of them: standard ops alone, whose integers are ours."""
    net = OnnxWriter()
    net.node("Add", [net.node("MatMul", ["x", net.constant("w1", 20, 30)], "d"), net.constant("b", 30)], "e")
    net.node("MatMul", ["x", net.constant("w2", 20, 30)], "g")
    flat = net.node("Reshape", ["x", net.value("sizes", np.array([8, 20]))], "r")
    net.node("Gemm", [flat, net.constant("w3", 12, 20), net.constant("c", 12)], "y", transB=1, alpha=0.5)
    outputs = {"e": [2, 4, 30], "g": [2, 4, 30], "y": [8, 12]}
    onnx.save(net.model({"x": [2, 4, 20]}, outputs, opset), tmp_path / "float.onnx")
    model = load(tmp_path / "float.onnx")
    samples = samples_of(model, rng)
    profile = octavo.profile(model, samples)
    shift = {TensorId("e"): rng.normal(size=30).astype(np.float32)}
    changes = replace(chosen(*outputs), corrections=Corrections(bias_shifts=shift))
    quantized = quantize_graph(model, profile, recipe=PLAIN, changes=changes)
    layers = [layer for layer in quantized.plan.layers if layer.weight]
    assert len(layers) == 3
    assert all(layer.per_row for layer in layers)
    export_onnx(quantized, tmp_path / "int8.onnx")
    nodes = onnx.load(tmp_path / "int8.onnx").graph.node
    assert {node.domain for node in nodes} == {""}
    assert sum(node.op_type == "ReduceMin" for node in nodes) == 2
    session, ours = reference_session(tmp_path / "int8.onnx"), octavo.compile(quantized)
    again = octavo.compile(load(tmp_path / "int8.onnx"))
    for x in (*samples, np.zeros_like(samples[0])):
        want, back = ours(x), again(x)
        found = dict(zip(outputs, session.run(list(outputs), {"x": x}), strict=True))
        for name, value in want.items():
            assert value.tobytes() == back[name].tobytes()
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6 * max(1.0, float(np.abs(value).max())))


def test_a_tensor_behind_a_layer_per_row_has_an_effect_of_its_own(rng: np.random.Generator) -> None:
    """The layer that makes it reads what is rounded nowhere else then: it is the float model's."""
    model = projections(rng)
    feeds = samples_of(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, feeds), changes=chosen("q"), recipe=PLAIN)
    referee = Referee(RoundedProgram(model, [quantized.plan], resolve_target(None)), [[each] for each in feeds])
    effects = referee.effects(referee.rounding(quantized.plan))
    assert "q" in effects
    assert all(0 < each < 1 for each in effects.values())


@pytest.mark.parametrize("ops", ["standard", "onnxruntime"])
def test_a_weight_of_several_layers_is_in_the_file_once(
    ops: Literal["standard", "onnxruntime"], rng: np.random.Generator, tmp_path: Path
) -> None:
    """As of a recurrent layer's steps."""
    net = OnnxWriter()
    weight, state = net.constant("w", 24, 24), "x"
    for step in "abc":
        state = net.node("Tanh", [net.node("MatMul", [state, weight], f"{step}p")], step)
    onnx.save(net.model({"x": [2, 24]}, {"c": [2, 24]}), tmp_path / "float.onnx")
    model = load(tmp_path / "float.onnx")
    quantized = quantize_graph(
        model, octavo.profile(model, samples_of(model, rng)), recipe=PLAIN, changes=chosen("ap", "bp", "cp")
    )
    assert [layer.per_row for layer in quantized.plan.layers if layer.weight] == [("x",), ("a",), ("b",)]
    export_onnx(quantized, tmp_path / "int8.onnx", ops=ops)
    held = onnx.load(tmp_path / "int8.onnx").graph.initializer
    assert sum(list(each.dims) == [24, 24] for each in held) == 1
