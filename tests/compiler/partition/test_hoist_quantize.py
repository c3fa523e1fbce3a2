"""quantize moves before ops that only choose or move values; what is one region already stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.partition.hoist_quantize import hoist_quantize
from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, op_name
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

SHAPE = (1, 3, 8, 8)
OUT = (0.07, -20)


def pool(x: Any) -> Any:
    return relax.op.nn.max_pool2d(x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])


def flat(x: Any) -> Any:
    return relax.op.reshape(x, [1, int(np.prod([int(dim) for dim in x.ty.shape]))])


def permuted(x: Any) -> Any:
    return relax.op.permute_dims(x, [0, 2, 3, 1])


CHAINS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "flatten": (flat,),
    "pool, flatten": (pool, flat),
    "relu, pool, transpose": (relax.op.nn.relu, pool, permuted),
    "pool, relu, flatten": (pool, relax.op.nn.relu, flat),
    "transpose, clip, flatten, clip": (
        permuted,
        lambda x: relax.op.clip(x, -1.5, 6.0),
        flat,
        lambda x: relax.op.clip(x, -1.0, 7.0),
    ),
}


def convolved(chain: tuple[Callable[[Any], Any], ...], *, also: str = "") -> tvm.IRModule:
    """quantize(chain(conv(dequantize(x)))); with `also` a step of the chain is returned in float as well."""

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "int8")
        rng = np.random.default_rng(0)
        w = q.weight("w", rng.integers(-60, 60, (5, 3, 3, 3)).astype(np.int8), np.full(5, 0.01))
        value = writer.emit("conv", relax.op.nn.conv2d(q.dequantize("x", inputs["x"], (0.05, 7)), w), is_output=also == "conv")
        extra = [value] if also == "conv" else []
        for position, step in enumerate(chain):
            value = writer.emit(f"step{position}", step(value), is_output=also == f"step{position}")
            extra += [value] if also == f"step{position}" else []
        result = q.quantize("y", value, OUT, is_output=True)
        return relax.Tuple([result, *extra]) if extra else result

    return graph({"x": (SHAPE, "int8")}, body)


def sample() -> np.ndarray:
    return np.random.default_rng(1).integers(-128, 128, SHAPE).astype(np.int8)


def op_names(module: tvm.IRModule) -> list[str]:
    return [op_name(binding.value) for binding in DataflowView(module["main"]).bindings]


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_everything_is_integer_and_the_numbers_are_the_same(chain):
    module = convolved(chain)
    hoisted = hoist_quantize(module)
    relax.analysis.well_formed(hoisted)
    expected = run_float(module, sample())
    assert len(np.unique(expected)) > 20
    np.testing.assert_array_equal(run_float(hoisted, sample()), expected)
    assert integer_regions(module, CPU).rejections == {}
    np.testing.assert_array_equal(run_lowered(module, sample()), expected)


def test_the_result_keeps_its_name_and_the_convolution_its_own():
    module = convolved(CHAINS["pool, flatten"])
    names = {binding.var.name for binding in DataflowView(hoist_quantize(module)["main"]).bindings}
    assert {"conv", "y_q", "conv_q"} <= names
    records = lower(module, CPU, ("generic",), 1, ("x", "conv", "step0", "step1")).records
    assert [(record.op, record.tensor) for record in records if record.macs] == [("conv2d", "conv")]


def test_a_float_input_is_quantized_before_its_layout_changes():
    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        return Qdq(writer, "uint8").quantize("y", writer.emit("flat", flat(inputs["x"])), (0.1, 100), is_output=True)

    module = graph({"x": (SHAPE, "float32")}, body)
    assert op_names(hoist_quantize(module)) == ["quantize", "reshape"]
    x = np.random.default_rng(2).standard_normal(SHAPE, np.float32) * 10
    np.testing.assert_array_equal(run_lowered(module, x), run_float(module, x))


@pytest.mark.parametrize("also", ["step0", "step1"])
def test_what_others_read_in_float_stays_float(also):
    module = convolved((pool, flat), also=also)
    hoisted = hoist_quantize(module)
    assert op_names(hoisted).count("reshape") == 1
    for ours, theirs in zip(run_float(hoisted, sample()), run_float(module, sample()), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_dequantized_tensor_that_is_quantized_again_stays():
    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "int8")
        moved = writer.emit("flat", flat(q.dequantize("x", inputs["x"], (0.05, 7))))
        return q.quantize("y", moved, OUT, is_output=True)

    module = graph({"x": (SHAPE, "int8")}, body)
    assert hoist_quantize(module).same_as(module)


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((1, 2, 4, 4), "float32")) -> R.Tensor((1, 8), "int8"):
        with R.dataflow():
            a = R.nn.conv2d(x, R.const(np.ones((2, 2, 1, 1)), "float32"))
            b = R.nn.max_pool2d(a, pool_size=[2, 2], strides=[2, 2])
            c = R.nn.relu(b)
            d = R.reshape(c, (1, 8))
            y = R.quantize(d, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="int8", axis=0)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((1, 2, 4, 4), "float32")) -> R.Tensor((1, 8), "int8"):
        with R.dataflow():
            a = R.nn.conv2d(x, R.const(np.ones((2, 2, 1, 1)), "float32"))
            c_clamped = R.nn.relu(a)
            a_q = R.quantize(c_clamped, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="int8", axis=0)
            b_q = R.nn.max_pool2d(a_q, pool_size=[2, 2], strides=[2, 2])
            y = R.reshape(b_q, (1, 8))
            R.output(y)
        return y


def test_quantize_moves_to_the_op_that_made_the_values():
    assert_structural_equal(hoist_quantize(Before), Expected)


def test_with_nothing_to_do_the_module_is_the_same():
    assert hoist_quantize(Expected).same_as(Expected)
