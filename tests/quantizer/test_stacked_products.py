"""Products of a batch of matrices by constant weights of their own (experts): choice, kernels, plan, explanation and ONNX."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import OnnxWriter
from tvm import relax

import octavo
from nets import model_of
from octavo.frontends.load import load
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.weighted import StackedMatmulOp
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import INTEGER_RANGE, PerAxis, dequantize_accumulator, matmul_accumulate
from octavo.numerics.dynamic import centered_rows
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee.referee import score_of
from octavo.target import BATCH_MATMUL, CPU, STACKED_MATMUL
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
PER_ROW = Choices(per_row={TensorId("y"): "it is tried"})
SHAPES = [((3, 5, 20), (3, 20, 7), False), ((2, 3, 5, 20), (3, 20, 33), False), ((4, 1, 17), (1, 4, 17, 16), True)]


def product(x: tuple[int, ...], w: tuple[int, ...], rng: np.random.Generator, *, turned: bool = False) -> octavo.Model:
    """A product by constant weights, clamped; of an expert, and of a column, they are of a magnitude of their own."""
    rank = len(w)
    weights = rng.normal(size=w) * 10 ** rng.uniform(-1, 1, (*w[:-2], 1, 1)) * 10 ** rng.uniform(-0.5, 0.5, (*w[:-2], 1, w[-1]))
    axes = [*range(rank - 2), rank - 1, rank - 2]

    def body(writer: BodyWriter, **v: Any) -> Any:
        weight = writer.emit("t", relax.op.permute_dims(v["w"], axes)) if turned else v["w"]
        return writer.emit("y", relax.op.clip(writer.emit("s", relax.op.matmul(v["x"], weight)), -30, 30), is_output=True)

    stored = np.ascontiguousarray(weights.transpose(axes) if turned else weights, np.float32)
    # Broadcast leading ones make no axis of the result here: x has as many.
    return model_of({"x": (x if rank <= len(x) else (1, *x), "float32")}, {"w": stored}, body, ("y",))


def feeds(model: octavo.Model, rng: np.random.Generator, count: int = 4) -> list[dict[str, np.ndarray]]:
    shape = tuple(int(size) for size in model.tensors[TensorId("x")].shape)
    return [{"x": rng.normal(size=shape).astype(np.float32)} for _ in range(count)]


def output(executable: Any, feed: Any) -> np.ndarray:
    (value,) = executable(feed).values()
    return value


def integers_of(plan: Any, experts: int) -> tuple[np.ndarray, np.ndarray]:
    """The integers of the weights and their scales, as [experts, in, out] and [experts, 1, out]."""
    values, params = plan.weight_values[TensorId("w")], plan.weights[TensorId("w")]
    assert params.granularity == PerAxis(0)
    assert params.is_symmetric
    outputs = len(values) // experts
    return values.reshape(experts, outputs, -1).transpose(0, 2, 1), params.scale.reshape(experts, 1, outputs)


@pytest.mark.parametrize(("x", "w", "turned"), SHAPES)
def test_rows_quantized_when_run_equal_the_oracle(x: Any, w: Any, turned: bool, rng: np.random.Generator) -> None:
    model = product(x, w, rng, turned=turned)
    given = feeds(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, given), recipe=PLAIN, changes=PER_ROW)
    (layer,) = quantized.plan.layers
    assert (layer.op, layer.per_row, layer.weight) == (STACKED_MATMUL, ("x",), "w")
    integers, scale = integers_of(quantized.plan, w[-3])
    rows, row_scale = centered_rows(given[0]["x"])
    expected = dequantize_accumulator(
        rows @ integers.astype(np.int32), scale, np.float32(0), input_scale=row_scale, low=-30, high=30
    )
    np.testing.assert_array_equal(output(octavo.compile(quantized), given[0]), expected)


@pytest.mark.parametrize(("x", "w", "turned"), SHAPES)
def test_static_parameters_equal_the_oracle(x: Any, w: Any, turned: bool, rng: np.random.Generator) -> None:
    model = product(x, w, rng, turned=turned)
    given = feeds(model, rng)
    quantized = quantize_graph(model, octavo.profile(model, given), recipe=PLAIN)
    assert [layer.op for layer in quantized.plan.layers] == [STACKED_MATMUL]
    integers, scale = integers_of(quantized.plan, w[-3])
    read = quantized.plan.activations[TensorId("x")]
    low, high = INTEGER_RANGE[read.dtype]
    steps = np.clip(np.rint(given[0]["x"] / read.scale) + read.zero_point, low, high).astype(np.int16) - read.zero_point
    acc = matmul_accumulate(steps.astype(np.int16), integers.astype(np.int16))
    expected = dequantize_accumulator(acc.astype(np.int32), read.scale * scale, np.float32(0), low=-30, high=30)
    np.testing.assert_array_equal(output(octavo.compile(quantized), given[0]), expected)


def experts(rng: np.random.Generator) -> Any:
    """Three experts of two layers each on rows of their own, as MatMuls by constants, one transposed and of unlike magnitudes."""
    net, sizes = OnnxWriter(), 10.0 ** np.arange(-1, 2).reshape(3, 1, 1)
    up = net.value("up", (rng.normal(size=(3, 32, 48)) / 6).astype(np.float32))
    down = net.value("down", (rng.normal(size=(3, 16, 48)) * sizes / 7).astype(np.float32))
    kept = net.node("Relu", [net.node("MatMul", ["x", up], "raised")], "kept")
    net.node("MatMul", [kept, net.node("Transpose", [down], "turned", perm=[0, 2, 1])], "y")
    return net.model({"x": [1, 3, 6, 32]}, {"y": [1, 3, 6, 16]})


@pytest.fixture
def quantized(rng: np.random.Generator) -> tuple[octavo.Model, octavo.Profile, octavo.QuantizedModel]:
    """The experts, quantized by default."""
    model = load(experts(rng))
    profile = octavo.profile(model, feeds(model, rng, 12), keep_samples=12)
    return model, profile, octavo.quantize(model, profile)


def test_each_expert_and_output_has_its_own_scale_by_default(quantized: Any, rng: np.random.Generator) -> None:
    model, profile, made = quantized
    assert [layer.op for layer in made.plan.layers if layer.is_product] == [STACKED_MATMUL] * 2
    assert sorted(params.scale.size for params in made.plan.weights.values()) == [3 * 16, 3 * 48]
    records = [record for record in octavo.explain(made).ops if record.macs]
    assert [(record.op, record.integer, record.macs) for record in records] == [
        ("stacked_matmul", True, 3 * 6 * 32 * 48),
        ("stacked_matmul", True, 3 * 6 * 48 * 16),
    ]
    given = feeds(model, rng, 8)

    def of_each_expert(quantized: octavo.QuantizedModel) -> list[float]:
        pairs = [np.concatenate([output(octavo.compile(each), feed) for feed in given]) for each in (model, quantized)]
        return [sqnr_db(*(each[:, number] for each in pairs)) for number in range(3)]

    assert min(of_each_expert(made)) > 30
    # One scale for all of them leaves the smallest next to nothing.
    without = replace(CPU, ops=tuple(op for op in CPU.ops if op.op != STACKED_MATMUL))
    as_products = octavo.quantize(model, profile, recipe=PLAIN, target=without)
    assert [layer.op for layer in as_products.plan.layers if layer.is_product] == [BATCH_MATMUL] * 2
    assert min(of_each_expert(as_products)) < 10
    # Plans that were saved before the target had these make what they made then.
    again = octavo.quantize(model, plan=as_products.plan)
    assert again.fingerprint == as_products.fingerprint
    before, after = ([output(octavo.compile(each), feed) for feed in given] for each in (as_products, again))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("by_row", [False, True])
def test_referee_plan_and_file_say_what_runs(by_row: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    model = load(experts(rng))
    given = feeds(model, rng, 12)
    profile = octavo.profile(model, given, keep_samples=12)
    rows = Choices(per_row=dict.fromkeys(map(TensorId, ("kept", "y")), "it is tried")) if by_row else None
    made = quantize_graph(model, profile, recipe=PLAIN, **({} if rows is None else {"changes": rows}))
    assert [bool(layer.per_row) for layer in made.plan.layers if layer.is_product] == [by_row] * 2
    floats, executable = octavo.compile(model), octavo.compile(made)
    results = [np.stack([output(each, feed) for feed in given]) for each in (floats, executable)]

    score = score_of(model, made, profile)
    assert score is not None
    assert abs(score.sqnr_db - sqnr_db(*results)) < 0.3

    made.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    octavo.export_onnx(made, tmp_path / "m.onnx")
    octavo.export_onnx(again, tmp_path / "again.onnx")
    assert (tmp_path / "m.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
    executable.save(tmp_path / "m.so")
    loaded = octavo.load(tmp_path / "m.onnx")
    others = [octavo.compile(again), octavo.compile(loaded), octavo.load_executable(tmp_path / "m.so")]
    for other in others:
        np.testing.assert_array_equal(np.stack([output(other, feed) for feed in given]), results[1])
    assert [record.op for record in octavo.explain(loaded).ops if record.macs] == ["stacked_matmul"] * 2

    session = reference_session(tmp_path / "m.onnx", optimized=False)
    in_runtime = np.stack([session.run(None, feed)[0] for feed in given])
    assert sqnr_db(results[1], in_runtime) > 50


def test_a_target_without_such_products_says_so(quantized: Any) -> None:
    model, profile, _ = quantized
    npu = replace(CPU, name="npu", ops=tuple(op for op in CPU.ops if op.op not in (STACKED_MATMUL, BATCH_MATMUL)))
    floats = octavo.quantize(model, profile, target=npu).plan.float_ops
    assert {op.reason for op in floats if op.op == "matmul"} == {"npu has no integer stacked_matmul"}


def test_a_stack_of_one_is_a_dense_layer(rng: np.random.Generator) -> None:
    model = product((2, 5, 20), (1, 20, 7), rng)
    made = octavo.quantize(model, octavo.profile(model, feeds(model, rng)))
    assert [layer.op for layer in made.plan.layers] == ["matmul"]
    assert not any(isinstance(each.op, StackedMatmulOp) for each in read_composites(octavo.partition(made)).values())
