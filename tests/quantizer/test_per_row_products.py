"""Products of two activations whose rows and columns are quantized when run: choice, kernels, plan, explanation and ONNX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_nets import OnnxWriter
from plan_edits import edited
from tvm import relax

import octavo
from nets import model_of
from octavo.errors import QuantizationError
from octavo.export.onnx.onnx_export import export_onnx
from octavo.frontends.load import load
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics.quantized.matmul import row_batch_matmul
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.target import BATCH_MATMUL, CPU
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
CHOSEN = Choices(per_row={TensorId("y"): "it is tried"})
SHAPES = [((5, 20), (20, 7)), ((2, 3, 5, 20), (2, 3, 20, 33)), ((3, 9, 17), (2, 1, 17, 16)), ((4, 18), (3, 18, 40))]


def product(*shapes: tuple[int, ...]) -> octavo.Model:
    """A product of two inputs, clamped."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.clip(writer.emit("s", relax.op.matmul(v["a"], v["b"])), -30, 30), is_output=True)

    return model_of({name: (shape, "float32") for name, shape in zip("ab", shapes, strict=True)}, {}, body, ("y",))


def attention(rng: np.random.Generator, **heads: int) -> octavo.Model:
    """Scores and values of two heads, of projections of one input; one product reads its second operand transposed."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        def head(name: str, axes: tuple[int, ...]) -> Any:
            made = writer.emit(f"{name}p", relax.op.matmul(v["x"], v[f"w{name}"]))
            split = writer.emit(f"{name}s", relax.op.reshape(made, (1, 6, 2, 8)))
            return writer.emit(name, relax.op.permute_dims(split, axes))

        q, k, values = head("q", (0, 2, 1, 3)), head("k", (0, 2, 3, 1)), head("v", (0, 2, 1, 3))
        shares = writer.emit("p", relax.op.nn.softmax(writer.emit("s", relax.op.matmul(q, k))))
        return writer.emit("y", relax.op.matmul(shares, values), is_output=True)

    params = {f"w{name}": rng.normal(size=(16, 16)).astype(np.float32) for name in "qkv"}
    return model_of({"x": ((1, 6, 16), "float32")}, params, body, ("y",))


def pair_of(rng: np.random.Generator, *shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Rows of a and columns of b of very unlike width."""
    widths = [10 ** rng.uniform(-1.5, 1, shape) for shape in ((*shapes[0][:-1], 1), (*shapes[1][:-2], 1, shapes[1][-1]))]
    values = (rng.normal(size=shape) * width for shape, width in zip(shapes, widths, strict=True))
    return {name: value.astype(np.float32) for name, value in zip("ab", values, strict=True)}


def output(executable: octavo.Executable, feed: Any) -> np.ndarray:
    (value,) = executable(feed).values()
    return value


@pytest.mark.parametrize("shapes", SHAPES)
def test_a_product_is_the_oracle_bit_for_bit_whatever_axes_lead(shapes: Any, rng: np.random.Generator) -> None:
    model, feed = product(*shapes), pair_of(rng, *shapes)
    quantized = quantize_graph(model, octavo.profile(model, [feed]), recipe=PLAIN, changes=CHOSEN)
    assert [layer.per_row for layer in quantized.plan.layers] == [("a", "b")]
    assert not quantized.plan.activations
    expected = row_batch_matmul(feed["a"], feed["b"], low=-30, high=30)
    np.testing.assert_array_equal(output(octavo.compile(quantized), feed), expected)
    again = octavo.load(quantized.bound())
    assert [op.kernel for op in octavo.explain(again).ops] == [op.kernel for op in octavo.explain(quantized).ops]
    np.testing.assert_array_equal(output(octavo.compile(again), feed), expected)


def test_rows_and_columns_of_unlike_width_keep_their_precision(rng: np.random.Generator) -> None:
    model, feeds = product(*SHAPES[1]), [pair_of(rng, *SHAPES[1]) for _ in range(8)]
    profile = octavo.profile(model, feeds)
    exact, *found = (
        np.stack([output(octavo.compile(each), feed) for feed in feeds]).reshape(-1, 33)
        for each in (
            model,
            quantize_graph(model, profile, recipe=PLAIN),
            quantize_graph(model, profile, recipe=PLAIN, changes=CHOSEN),
        )
    )
    static, rows = (min(sqnr_db(*pair) for pair in zip(exact, each, strict=True)) for each in found)
    assert rows > static + 10


def test_what_is_not_finite_gives_nan_and_zeros_give_zero(rng: np.random.Generator) -> None:
    """The logarithm makes such rows: inputs of a model must be finite."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        a, b = (writer.emit(f"l{name}", relax.op.log(v[name])) for name in "ab")
        return writer.emit("y", relax.op.matmul(a, b), is_output=True)

    model = model_of({"a": ((2, 5, 20), "float32"), "b": ((2, 20, 18), "float32")}, {}, body, ("y",))
    feed = {name: np.exp(value) for name, value in pair_of(rng, (2, 5, 20), (2, 20, 18)).items()}
    run = octavo.compile(quantize_graph(model, octavo.profile(model, [feed]), recipe=PLAIN, changes=CHOSEN))
    plain = output(run, feed)
    strange = {name: value.copy() for name, value in feed.items()}
    strange["a"][0, 1, 3], strange["a"][1, 4, 0], strange["b"][1, 7, 17] = -1, 0, -1
    strange["a"][0, 2], strange["b"][0, :, 5] = 1, 1
    found, bad = output(run, strange), np.zeros((2, 5, 18), bool)
    bad[0, 1] = bad[1, 4] = bad[1, :, 17] = True
    assert np.isnan(found[bad]).all()
    assert (found[0, 2] == 0).all()
    assert (np.delete(found[0, :, 5], 1) == 0).all()
    bad[0, 2] = bad[0, :, 5] = True
    np.testing.assert_array_equal(found[~bad], plain[~bad])


def test_attention_in_float_between_integer_products(rng: np.random.Generator, tmp_path: Path) -> None:
    """All products per row, the plan saved and applied; scores and shares have no static parameters left."""
    model = attention(rng)
    samples = [rng.normal(size=(1, 6, 16)).astype(np.float32) for _ in range(6)]
    profile = octavo.profile(model, samples)
    plain = quantize_graph(model, profile, recipe=PLAIN)
    changes = Choices(per_row={layer.output: "it is tried" for layer in plain.plan.layers if "matmul" in layer.op})
    quantized = quantize_graph(model, profile, recipe=PLAIN, changes=changes)
    assert not quantized.plan.activations
    reasons = {op.tensor: op.reason for op in octavo.explain(quantized).ops if op.op == "batch_matmul"}
    assert reasons == dict.fromkeys("sy", "its inputs are quantized per row and per column, when run: it is tried")
    assert octavo.explain(octavo.load(quantized.bound())).ops[-1].reason.endswith("per row and per column, when run")
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    assert str(again.module) == str(quantized.module)
    edited(tmp_path / "plan.json", lambda data: data["layers"][-1].update(per_row=["p"]))
    with pytest.raises(QuantizationError, match="which has no parameters in the plan"):
        octavo.quantize(model, plan=tmp_path / "plan.json")


def test_a_target_that_does_not_take_it_gets_static_parameters(rng: np.random.Generator) -> None:
    static = replace(CPU, ops=tuple(replace(op, per_row_input=op.per_row_input and op.op != BATCH_MATMUL) for op in CPU.ops))
    model = product(*SHAPES[0])
    profile = octavo.profile(model, [pair_of(rng, *SHAPES[0])])
    quantized = quantize_graph(model, profile, target=static, recipe=PLAIN, changes=CHOSEN)
    assert quantized.plan.activations.keys() >= {"a", "b"}
    assert not quantized.plan.layers[0].per_row
    reasons = [op.reason for op in octavo.explain(quantized, target=static).ops]
    assert any("target cpu quantizes no input of batch_matmul per row when run (it is tried)" in each for each in reasons)
    rows = quantize_graph(model, profile, recipe=PLAIN, changes=CHOSEN)
    (reason,) = (op.reason for op in octavo.explain(rows, target=static).ops if op.op == "matmul")
    assert reason == "input a is quantized per row when run, which the target does not take"


def test_a_product_of_a_tensor_with_itself_stays_static(rng: np.random.Generator) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.matmul(v["x"], v["x"]), is_output=True)

    model = model_of({"x": ((2, 8, 8), "float32")}, {}, body, ("y",))
    quantized = quantize_graph(
        model, octavo.profile(model, [rng.normal(size=(2, 8, 8)).astype(np.float32)]), recipe=PLAIN, changes=CHOSEN
    )
    assert [layer.per_row for layer in quantized.plan.layers] == [()]


@pytest.mark.parametrize("opset", [13, 18])
def test_onnx_runtime_computes_the_file(opset: int, rng: np.random.Generator, tmp_path: Path) -> None:
    """Standard ops alone, whose integers are ours; one tensor is read by rows, and as columns twice."""
    net = OnnxWriter()
    net.node("MatMul", ["a", "b"], "y")
    net.node("MatMul", ["y", "b2"], "z")
    net.node("Gemm", ["c", "d"], "g", transB=1)
    inputs = {"a": [2, 3, 4, 20], "b": [3, 20, 9], "b2": [3, 9, 20], "c": [6, 12], "d": [5, 12]}
    outputs = {"y": [2, 3, 4, 9], "z": [2, 3, 4, 20], "g": [6, 5]}
    onnx.save(net.model(inputs, outputs, opset), tmp_path / "float.onnx")
    model = load(tmp_path / "float.onnx")

    def feed() -> dict[str, np.ndarray]:
        return {name: rng.normal(size=shape).astype(np.float32) for name, shape in inputs.items()}

    changes = Choices(per_row={TensorId(name): "it is tried" for name in outputs})
    quantized = quantize_graph(model, octavo.profile(model, [feed()]), recipe=PLAIN, changes=changes)
    assert all(layer.per_row for layer in quantized.plan.layers if layer.op == "batch_matmul")
    assert sum(layer.op == "batch_matmul" for layer in quantized.plan.layers) == len(outputs)
    export_onnx(quantized, tmp_path / "int8.onnx")
    nodes = onnx.load(tmp_path / "int8.onnx").graph.node
    assert {node.domain for node in nodes} == {""}
    assert sum(node.op_type == "MatMulInteger" for node in nodes) == len(outputs)
    session, ours = reference_session(tmp_path / "int8.onnx"), octavo.compile(quantized)
    again = octavo.compile(load(tmp_path / "int8.onnx"))
    for given in (feed(), feed(), {name: np.zeros(shape, np.float32) for name, shape in inputs.items()}):
        want, back = ours(given), again(given)
        found = dict(zip(outputs, session.run(list(outputs), given), strict=True))
        for name, value in want.items():
            assert value.tobytes() == back[name].tobytes()
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6 * max(1.0, float(np.abs(value).max())))
