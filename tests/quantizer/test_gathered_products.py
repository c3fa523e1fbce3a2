"""Products by those of several constant weights that indices choose when run: choice, kernels, plan, file, open sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx_nets import OnnxWriter

import octavo
from octavo.frontends.load import load
from octavo.ir.composites.attributes import read_composites
from octavo.ir.composites.weighted import GatheredMatmulOp
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize_accumulator
from octavo.numerics.dynamic import centered_rows
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.choices import Choices
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee.referee import score_of
from octavo.target import BATCH_MATMUL, CPU, GATHERED_MATMUL
from reference_sessions import reference_session

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
EXPERTS, INPUTS, OUTPUTS = 4, 20, 17
KINDS = ("right", "left", "turned", "repeated", "nd")


def weights_of(rng: np.random.Generator) -> np.ndarray:
    """Of each expert, and of each output, of a magnitude of its own: [experts, out, in]."""
    spread = 10 ** rng.uniform(-1, 1, (EXPERTS, 1, 1)) * 10 ** rng.uniform(-0.5, 0.5, (EXPERTS, OUTPUTS, 1))
    return (rng.normal(size=(EXPERTS, OUTPUTS, INPUTS)) * spread).astype(np.float32)


def network(kind: str, weights: np.ndarray, count: int | str = 5) -> Any:
    """A product of `count` matrices by weights that indices choose, in one of the forms that exporters write."""
    net, size = OnnxWriter(), -1 if isinstance(count, str) else count
    if kind == "left":  # as transformers' batched experts have it
        net.node("MatMul", [net.node("Gather", [net.value("w", weights), "at"], "chosen"), "x"], "y")
        return net.model({"x": [count, INPUTS, 1], "at": [count]}, {"y": [count, OUTPUTS, 1]}, integers=("at",))
    if kind == "turned":
        chosen = net.node("Gather", [net.value("w", weights), "at"], "chosen")
        turned = net.node("Transpose", [chosen], "turned", perm=[0, 2, 1])
        net.node("MatMul", ["x", turned], "y")
        return net.model({"x": [count, 3, INPUTS], "at": [count]}, {"y": [count, 3, OUTPUTS]}, integers=("at",))
    laid = net.value("w", np.ascontiguousarray(weights.transpose(0, 2, 1)))
    if kind == "nd":
        places = net.node("Reshape", ["at", net.value("column", np.array([size, 1]))], "places")
        net.node("MatMul", ["x", net.node("GatherND", [laid, places], "chosen")], "y")
    else:
        net.node("MatMul", ["x", net.node("Gather", [laid, "at"], "chosen")], "y")
    if kind == "repeated":  # each token by the experts that it chose
        shapes = {"x": [count, 1, 1, INPUTS], "at": [count, 2]}, {"y": [count, 2, 1, OUTPUTS]}
    else:
        shapes = {"x": [count, 1, INPUTS], "at": [count]}, {"y": [count, 1, OUTPUTS]}
    return net.model(*shapes, integers=("at",))


def feed(kind: str, rng: np.random.Generator, count: int = 5) -> dict[str, np.ndarray]:
    shapes = {"left": (count, INPUTS, 1), "turned": (count, 3, INPUTS), "repeated": (count, 1, 1, INPUTS)}
    at = rng.integers(0, EXPERTS, (count, 2) if kind == "repeated" else count)
    return {"x": rng.normal(size=shapes.get(kind, (count, 1, INPUTS))).astype(np.float32), "at": at}


def output(executable: Any, given: Any) -> np.ndarray:
    (value,) = executable(given).values()
    return value


def product_of(model: octavo.Model) -> str:
    """The name of the product once weights stand on the right."""
    return "y_rows" if "y" in model.tensors and model.tensors[TensorId("x")].shape[-1] == 1 else "y"


@pytest.mark.parametrize("kind", KINDS)
def test_rows_quantized_when_run_equal_the_oracle(kind: str, rng: np.random.Generator) -> None:
    model = load(network(kind, weights_of(rng)))
    given = [feed(kind, rng) for _ in range(3)]
    per_row = Choices(per_row={TensorId(product_of(model)): "it is tried"})
    made = quantize_graph(model, octavo.profile(model, given), recipe=PLAIN, changes=per_row)
    (layer,) = made.plan.layers
    assert (layer.op, layer.weight, bool(layer.per_row)) == (GATHERED_MATMUL, "w", True)
    # The weights are integers, and nothing else holds them.
    assert [name for name, value in made.params.items() if value.size >= EXPERTS * OUTPUTS * INPUTS] == ["w_q"]
    values, scale = made.plan.weight_values[TensorId("w")], made.plan.weights[TensorId("w")].scale
    integers = values.reshape(EXPERTS, OUTPUTS, INPUTS).transpose(0, 2, 1).astype(np.int32)
    scales, at = scale.reshape(EXPERTS, 1, OUTPUTS), given[0]["at"]
    x = given[0]["x"].swapaxes(-1, -2) if kind == "left" else given[0]["x"]
    rows, row_scale = centered_rows(x)
    sums = np.broadcast_to(rows, (*at.shape, *rows.shape[-2:])) @ integers[at]
    expected = dequantize_accumulator(sums, scales[at], np.float32(0), input_scale=row_scale)
    found = output(octavo.compile(made), given[0])
    np.testing.assert_array_equal(found, expected.swapaxes(-1, -2) if kind == "left" else expected)


@pytest.mark.parametrize(("kind", "by_row"), [*zip(KINDS, (False, True, True, False, False), strict=True)])
def test_referee_plan_and_file_say_what_runs(kind: str, by_row: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    model = load(network(kind, weights_of(rng)))
    given = [feed(kind, rng) for _ in range(8)]
    profile = octavo.profile(model, given, keep_samples=8)
    rows = Choices(per_row={TensorId(product_of(model)): "it is tried"}) if by_row else None
    made = quantize_graph(model, profile, recipe=PLAIN, **({} if rows is None else {"changes": rows}))
    assert [layer.op for layer in made.plan.layers if layer.is_product] == [GATHERED_MATMUL]
    floats, executable = octavo.compile(model), octavo.compile(made)
    results = [np.stack([output(each, feed) for feed in given]) for each in (floats, executable)]
    assert sqnr_db(*results) > 35
    score = score_of(model, made, profile)
    assert score is not None
    assert abs(score.sqnr_db - sqnr_db(*results)) < 0.3

    made.plan.save(tmp_path / "plan.json")
    again = octavo.quantize(model, plan=tmp_path / "plan.json")
    assert again.fingerprint == made.fingerprint
    octavo.export_onnx(made, tmp_path / "m.onnx")
    executable.save(tmp_path / "m.so")
    loaded = octavo.load(tmp_path / "m.onnx")
    for other in (octavo.compile(again), octavo.compile(loaded), octavo.load_executable(tmp_path / "m.so")):
        np.testing.assert_array_equal(np.stack([output(other, feed) for feed in given]), results[1])
    ops = [each.op for each in read_composites(octavo.partition(loaded)).values()]
    assert [type(op) for op in ops if getattr(op, "weight", None) is not None] == [GatheredMatmulOp]
    session = reference_session(tmp_path / "m.onnx", optimized=False)
    assert sqnr_db(results[1], np.stack([session.run(None, feed)[0] for feed in given])) > 50


def test_as_many_matrices_as_are_fed(rng: np.random.Generator) -> None:
    """Exports of tokens in any number: each size gives what a file of that size gives."""
    weights = weights_of(rng)
    model = load(network("left", weights, "tokens"))
    profile = octavo.profile(model, [feed("left", rng, count) for count in (3, 1, 6)])
    made = octavo.quantize(model, profile)
    (record,) = [each for each in octavo.explain(made).ops if each.macs]
    assert (record.op, record.integer) == ("gathered_matmul", True)
    executable = octavo.compile(made)
    fixed = load(network("left", weights, 7))
    given = feed("left", rng, 7)
    found = output(executable, given)
    assert sqnr_db(output(octavo.compile(fixed), given), found) > 20
    parts = [output(executable, {name: value[at] for name, value in given.items()}) for at in (slice(0, 1), slice(1, 7))]
    np.testing.assert_array_equal(np.concatenate(parts), found)


def test_a_target_without_such_products_gathers_real_weights(rng: np.random.Generator) -> None:
    model = load(network("left", weights_of(rng)))
    profile = octavo.profile(model, [feed("left", rng) for _ in range(3)])
    without = replace(CPU, ops=tuple(op for op in CPU.ops if op.op != GATHERED_MATMUL))
    made = octavo.quantize(model, profile, target=without, recipe=PLAIN)
    assert [layer.op for layer in made.plan.layers if layer.is_product] == [BATCH_MATMUL]
    npu = replace(without, name="npu", ops=tuple(op for op in without.ops if op.op != BATCH_MATMUL))
    floats = octavo.quantize(model, profile, target=npu).plan.float_ops
    assert {op.reason for op in floats if op.op == "matmul"} == {"npu has no integer batch_matmul"}
