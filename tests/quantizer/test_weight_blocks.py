"""Dense layers with 4-bit weights in blocks: from the recipe to the kernel's results, plan, explanation and ONNX."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx_nets import OnnxWriter
from tvm import relax

import octavo
from nets import model_of
from octavo.errors import QuantizationError, TargetError
from octavo.export.onnx.onnx_export import export_onnx
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import PerBlock, dequantize, quantize
from octavo.numerics.dynamic import PER_ROW, dynamic_parameters, dynamic_quantize
from octavo.numerics.quantized.block_matmul import block_integers
from octavo.numerics.statistics import ranges
from octavo.numerics.statistics.gptq import Gram, gptq_round_in_blocks
from octavo.numerics.statistics.ranges import block_params
from octavo.target import CPU, OpSupport
from reference_sessions import reference_session

PLAIN: dict[str, Any] = {"bias_correction": False, "weight_rounding": "nearest", "equalization": "none", "min_sqnr": None}
BLOCKS = octavo.Recipe(weight_bits=4, weight_block=32, **PLAIN)
BYTES_TOO = replace(BLOCKS, block_activations="int8")
PER_ROW_TOO = replace(BLOCKS, activation_dtype="uint8")
SUPPORT = CPU.support("matmul")
assert SUPPORT is not None


def gated(rng: np.random.Generator, inner: int = 96) -> octavo.Model:
    """Two layers of one input, one with a bias and a clamp, one of a transposed weight, and a third of their product."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        first = writer.emit("_q", relax.op.matmul(v["x"], v["wq"]))
        q = writer.emit("q", relax.op.nn.relu(writer.emit("_qb", relax.op.add(first, v["bq"]))))
        k = writer.emit("k", relax.op.matmul(v["x"], writer.emit("wt", relax.op.permute_dims(v["wk"]))))
        return writer.emit("y", relax.op.matmul(writer.emit("g", relax.op.multiply(q, k)), v["wo"]), is_output=True)

    sizes = {"wq": (64, inner), "wk": (inner, 64), "bq": (inner,), "wo": (inner, 7)}
    params = {name: (rng.normal(size=size) / 8).astype(np.float32) for name, size in sizes.items()}
    return model_of({"x": ((2, 3, 64), "float32")}, params, body, ("y",))


def samples_of(rng: np.random.Generator, count: int = 4) -> list[npt.NDArray[np.float32]]:
    return list(rng.normal(size=(count, 2, 3, 64)).astype(np.float32))


def output(executable: Any, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    (value,) = executable(x).values()
    return value


def real(quantized: octavo.QuantizedModel, name: str) -> npt.NDArray[np.float64]:
    plan = quantized.plan
    return dequantize(plan.weight_values[TensorId(name)], plan.weights[TensorId(name)]).astype(np.float64)


def rounded_rows(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
    parameters = dynamic_parameters(rows, PER_ROW).astype(np.float64)
    steps = dynamic_quantize(rows, parameters.astype(np.float32), PER_ROW) - parameters[:, 1:]
    return (steps * parameters[:, :1]).reshape(x.shape)


def rounded_blocks(x: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    rows = x.reshape(-1, x.shape[-1]).astype(np.float32)
    integers, scale = block_integers(rows, 32, 1)
    return (integers * np.repeat(scale.astype(np.float64), 32, axis=1)).reshape(x.shape)


def expected(model: octavo.Model, quantized: octavo.QuantizedModel, x: npt.NDArray[Any], rows: Any) -> npt.NDArray[np.float64]:
    q = np.maximum(rows(x) @ real(quantized, "wq") + model.params[TensorId("bq")], 0)
    return rows(q * (rows(x) @ real(quantized, "wk").T)) @ real(quantized, "wo")


@pytest.mark.parametrize("recipe", [BLOCKS, BYTES_TOO, PER_ROW_TOO])
def test_a_model_computes_what_its_plan_says(recipe: octavo.Recipe, rng: np.random.Generator) -> None:
    model, samples = gated(rng), samples_of(rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=recipe)
    is_dynamic = recipe is PER_ROW_TOO
    layers = [layer for layer in quantized.plan.layers if layer.weight]
    assert [(layer.block, bool(layer.per_row)) for layer in layers] == [(32, is_dynamic)] * 3
    assert not quantized.plan.activations
    kernels = [op.kernel for op in octavo.explain(quantized).ops if op.integer]
    kind = "int16" if is_dynamic else "int8" if recipe is BYTES_TOO else "float32"
    assert kernels == [f"block_matmul.{kind} 32"] * 3
    executable = octavo.compile(quantized)
    for x in samples:
        wanted = expected(model, quantized, x, {"int16": rounded_rows, "int8": rounded_blocks}.get(kind, np.asarray))
        # A row's integer may be its neighbour where float32 sums differ in the last digit.
        tolerance = 2e-6 if kind == "float32" else 1e-2
        np.testing.assert_allclose(output(executable, x), wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


def test_the_executable_holds_weights_of_4_bits(rng: np.random.Generator, tmp_path: Path) -> None:
    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.matmul(v["x"], v["w"]), is_output=True)

    weight = rng.normal(size=(1024, 1024)).astype(np.float32)
    model = model_of({"x": ((1, 1024), "float32")}, {"w": weight}, body, ("y",))
    samples = [rng.normal(size=(1, 1024)).astype(np.float32)]
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=replace(BLOCKS, weight_block=128))
    executable = octavo.compile(quantized)
    executable.save(tmp_path / "y.so")
    assert (tmp_path / "y.so").stat().st_size < weight.size * 0.75
    np.testing.assert_array_equal(output(octavo.load_executable(tmp_path / "y.so"), samples[0]), output(executable, samples[0]))


def test_a_module_is_loaded_as_what_it_is(rng: np.random.Generator) -> None:
    model, samples = gated(rng), samples_of(rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=BLOCKS)
    again = octavo.load(quantized.bound())
    assert [op.kernel for op in octavo.explain(again).ops] == [op.kernel for op in octavo.explain(quantized).ops]
    parts = octavo.partition(quantized)
    np.testing.assert_array_equal(
        output(octavo.compile(octavo.load(parts)), samples[0]), output(octavo.compile(quantized), samples[0])
    )


@pytest.mark.parametrize("recipe", [BLOCKS, PER_ROW_TOO])
def test_a_plan_is_saved_and_makes_the_same_bytes(recipe: octavo.Recipe, rng: np.random.Generator, tmp_path: Path) -> None:
    model = gated(rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples_of(rng)), recipe=recipe)
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    assert str(again.module) == str(quantized.module)
    assert again.plan.weights == quantized.plan.weights


def test_a_file_from_before_has_no_blocks(rng: np.random.Generator, tmp_path: Path) -> None:
    model, path = gated(rng), tmp_path / "plan.json"
    quantized = octavo.quantize(model, octavo.profile(model, samples_of(rng)), recipe=octavo.Recipe(**PLAIN))
    quantized.plan.save(path)
    data = json.loads(path.read_text())
    for layer in data["layers"]:
        layer.pop("block")
    data["recipe"].pop("weight_block")
    path.write_text(json.dumps(data))
    assert octavo.quantize(model, plan=path).fingerprint == quantized.fingerprint


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda weight: weight.update(axis=None), "weights: wq: block needs the axis"),
        (lambda weight: weight.update(block=0), r"weights: wq: block must be a whole number in \[1;"),
        (
            lambda weight: weight.update(block=64),
            "the plan has matmul .* in blocks of 32 for cpu, the model has .* in blocks of 64",
        ),
        (lambda weight: weight["scale"].pop(), "scale.*zero_point|scales"),
        (lambda weight: weight["scale"][0].pop(), "lists of as many numbers"),
        (lambda weight: weight.update(qmin=-9), r"gives it integers in \[-9; 7\] of int8, expected \[-8; 7\]"),
    ],
)
def test_a_plan_with_other_blocks_than_the_weight_has(edit: Any, message: str, rng: np.random.Generator, tmp_path: Path) -> None:
    model, path = gated(rng), tmp_path / "plan.json"
    octavo.quantize(model, octavo.profile(model, samples_of(rng)), recipe=BLOCKS).plan.save(path)
    data = json.loads(path.read_text())
    edit(data["weights"]["wq"])
    path.write_text(json.dumps(data))
    with pytest.raises(QuantizationError, match=message):
        octavo.quantize(model, plan=path)


def test_a_layer_that_the_block_does_not_divide_keeps_8_bits_per_axis(rng: np.random.Generator) -> None:
    model = gated(rng, inner=80)
    quantized = octavo.quantize(model, octavo.profile(model, samples_of(rng)), recipe=BLOCKS)
    found = {layer.output: layer.block for layer in quantized.plan.layers if layer.weight}
    assert found == {"q": 32, "k": 32, "y": 0}
    assert quantized.plan.weights[TensorId("wo")].qmax == 127
    reasons = {op.tensor: op.reason for op in octavo.explain(quantized).ops}
    assert reasons["y"] == "its weights keep 8 bits, per axis: it has 80 inputs, which blocks of 32 do not divide"


def test_a_target_that_takes_no_blocks_gets_8_bits_per_axis(rng: np.random.Generator) -> None:
    vendor = replace(CPU, ops=tuple(replace(op, weight_blocks=()) for op in CPU.ops))
    model = gated(rng)
    profile = octavo.profile(model, samples_of(rng))
    quantized = octavo.quantize(model, profile, recipe=BLOCKS, target=vendor)
    assert {layer.block for layer in quantized.plan.layers} == {0}
    assert {params.qmax for params in quantized.plan.weights.values()} == {127}
    reasons = {op.tensor: op.reason for op in octavo.explain(quantized, target=vendor).ops}
    assert reasons["q"] == "its weights keep 8 bits, per axis: target cpu takes no blocks of 32 inputs of matmul"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_block": 48, "weight_bits": 4}, "weight_block must be one of 16, 32, 64, 128 or None, got 48"),
        ({"weight_block": True, "weight_bits": 4}, "weight_block must be one of 16, 32, 64, 128 or None, got True"),
        ({"weight_block": 32}, "weight_block is of weights of 4 bits and fewer: set weight_bits, too, got 8"),
    ],
)
def test_a_recipe_says_what_blocks_may_be(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(QuantizationError, match=message):
        octavo.Recipe(**fields)


def test_a_description_says_which_blocks_it_takes() -> None:
    with pytest.raises(TargetError, match="op 'matmul': weight_blocks: expected a list of 16, 32, 64, 128, got"):
        OpSupport(op="matmul", weights=("int8",), weight_blocks=(48,))


def onnx_net(path: Path) -> Path:
    net = OnnxWriter()
    net.node("Add", [net.node("MatMul", ["x", net.constant("w1", 64, 30)], "d"), net.constant("b", 30)], "e")
    net.node("MatMul", ["x", net.constant("w2", 64, 30)], "g")
    flat = net.node("Reshape", ["x", net.value("sizes", np.array([6, 64]))], "r")
    net.node("Gemm", [flat, net.constant("w3", 12, 64), net.constant("c", 12)], "y", transB=1, alpha=0.5)
    onnx.save(net.model({"x": [2, 3, 64]}, {"e": [2, 3, 30], "g": [2, 3, 30], "y": [6, 12]}, 17), path)
    return path


@pytest.mark.parametrize("recipe", [BLOCKS, PER_ROW_TOO])
def test_onnx_runtime_computes_the_file(recipe: octavo.Recipe, rng: np.random.Generator, tmp_path: Path) -> None:
    model, samples = octavo.load(onnx_net(tmp_path / "float.onnx")), samples_of(rng)
    quantized = octavo.quantize(model, octavo.profile(model, samples), recipe=recipe)
    assert [layer.block for layer in quantized.plan.layers if layer.weight] == [32] * 3
    export_onnx(quantized, tmp_path / "int4.onnx")
    proto = onnx.load(tmp_path / "int4.onnx")
    assert sum(tensor.data_type == onnx.TensorProto.INT4 for tensor in proto.graph.initializer) >= 3
    assert {node.domain for node in proto.graph.node} == {""}
    session, ours = reference_session(tmp_path / "int4.onnx"), octavo.compile(quantized)
    again = octavo.load(tmp_path / "int4.onnx")
    assert sum("block_matmul" in op.kernel for op in octavo.explain(again).ops) == 3
    imported = octavo.compile(again)
    for x in samples:
        want, back = ours(x), imported(x)
        found = dict(zip(want, session.run(list(want), {"x": x}), strict=True))
        for name, value in want.items():
            assert value.tobytes() == back[name].tobytes()
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5 * float(np.abs(value).max()))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_parameters_of_blocks_are_those_of_each(
    axis: int, asymmetric: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = rng.normal(size=(64, 64)).astype(np.float32)
    weight[:32, 0] = 0
    blocks, kind = PerBlock(axis, 32), {"bits": 4, "asymmetric": asymmetric}
    params = block_params(weight, blocks, **kind)
    again = block_params(np.ascontiguousarray(weight.T), PerBlock(1 - axis, 32), **kind)
    np.testing.assert_array_equal(params.scale, again.scale.T)
    monkeypatch.setattr(ranges, "_AT_ONCE", 64 * (3 if axis else 32))  # three rows at once
    assert block_params(weight, blocks, **kind) == params
    part = block_params(weight[:32, 4:5] if axis == 0 else weight[4:5, :32], blocks, **kind)
    assert part.scale.item() == params.scale[(0, 4) if axis == 0 else (4, 0)]
    assert params.is_symmetric != asymmetric
    errors = [
        float(np.square(dequantize(quantize(weight, each), each) - weight).sum())
        for each in (params, block_params(weight, blocks, **kind, least_error=False))
    ]
    assert errors[0] < errors[1]


def test_scales_of_blocks_are_float16_where_that_loses_nothing(rng: np.random.Generator) -> None:
    weight = rng.normal(size=(64, 64)).astype(np.float32)
    weight[:32, 0] = 0

    def scales(factor: float) -> npt.NDArray[np.float32]:
        return block_params(weight * np.float32(factor), PerBlock(0, 32), bits=4).scale

    exact, found = scales(2.0**-40) * np.float32(2.0**40), scales(1)
    assert not np.array_equal(exact, exact.astype(np.float16))
    np.testing.assert_array_equal(found, found.astype(np.float16))
    alive = exact > 1e-3
    assert (~alive).sum() == 1
    np.testing.assert_allclose(found[alive], exact[alive], rtol=2.0**-11)
    with np.errstate(over="ignore"):
        assert not np.array_equal(scales(1e6), scales(1e6).astype(np.float16))


def correlated(rng: np.random.Generator) -> tuple[octavo.Model, list[npt.NDArray[np.float32]]]:
    """One layer, and inputs that vary together and have a mean, which no bias takes back."""

    def body(writer: BodyWriter, **v: Any) -> Any:
        return writer.emit("y", relax.op.matmul(v["x"], v["w"]), is_output=True)

    model = model_of({"x": ((16, 64), "float32")}, {"w": rng.normal(size=(64, 24)).astype(np.float32)}, body, ("y",))
    mixing = rng.normal(size=(12, 64))
    inputs = rng.normal(size=(48, 16, 12)) @ mixing + 0.2 * rng.normal(size=(48, 16, 64)) + rng.normal(size=64)
    return model, list(inputs.astype(np.float32))


@pytest.mark.parametrize("dtype", [None, "uint8"])
def test_weights_make_up_for_each_other_s_errors(dtype: Any, rng: np.random.Generator, tmp_path: Path) -> None:
    model, samples = correlated(rng)
    profile, fresh = octavo.profile(model, samples[:32], keep_samples=32), samples[32:]

    def error(recipe: octavo.Recipe) -> tuple[float, octavo.QuantizedModel]:
        quantized = octavo.quantize(model, profile, recipe=replace(recipe, activation_dtype=dtype))
        run, exact = octavo.compile(quantized), model.params[TensorId("w")]
        return sum(float(np.square(output(run, x) - x @ exact).sum()) for x in fresh), quantized

    plain, _ = error(BLOCKS)
    found, quantized = error(replace(BLOCKS, weight_rounding="gram"))
    assert found < plain / 4
    quantized.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == quantized.fingerprint
    np.testing.assert_array_equal(output(octavo.compile(again), fresh[0]), output(octavo.compile(quantized), fresh[0]))


def test_scales_fitted_to_integers_leave_less(rng: np.random.Generator) -> None:
    inputs = rng.normal(size=(512, 20)) @ rng.normal(size=(20, 64)) + 0.1 * rng.normal(size=(512, 64))
    weight = rng.normal(size=(1, 8, 64))
    params = block_params(weight[0].astype(np.float32), PerBlock(1, 32), bits=4)
    scale, points = params.scale[np.newaxis].astype(np.float64), params.zero_point[np.newaxis]

    def power(refits: int) -> npt.NDArray[np.float64]:
        gram = inputs.T @ inputs / 512
        found, scales = gptq_round_in_blocks(weight, Gram.of(gram[np.newaxis]), scale, points, qmin=-8, qmax=7, refits=refits)
        assert found.min() >= -8
        assert found.max() <= 7
        error = (found - np.repeat(points, 32, axis=2)) * np.repeat(scales, 32, axis=2) - weight
        return np.square(inputs @ error[0].T).sum(axis=0)

    rounded, fitted = power(0), power(4)
    assert (fitted <= rounded * 1.02).all()
    assert fitted.sum() < rounded.sum() * 0.95
