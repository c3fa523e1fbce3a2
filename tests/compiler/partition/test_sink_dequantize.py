"""dequantize moves behind ops that only choose, move or join values; what is quantized right away stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.partition.pipeline import integer_regions
from octavo.compiler.partition.sink_dequantize import sink_dequantize
from octavo.ir.graph.dataflow import BodyWriter, DataflowView, eliminate_dead_code, op_name
from octavo.target import CPU
from qdq_graph import Qdq, graph, run_float, run_lowered

SHAPE = (1, 4, 6, 6)
SAME = (0.05, 7)


def joined(b_params: tuple[float, int] = SAME, *, end: str = "conv") -> tvm.IRModule:
    """quantize(conv(max_pool(concat(dequantize(a), dequantize(b))))), or what comes before the conv."""

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "int8")
        a = q.dequantize("a", inputs["a"], SAME)
        b = q.dequantize("b", inputs["b"], b_params)
        together = writer.emit("fields", relax.Tuple([a, b]))
        c = writer.emit("c", relax.op.concat(together, axis=1))
        if end == "quantize":
            return q.quantize("c", c, SAME, is_output=True)
        pool = writer.emit(
            "pool", relax.op.nn.max_pool2d(c, pool_size=[3, 3], strides=[1, 1], padding=[1, 1, 1, 1]), is_output=end == "pool"
        )
        if end == "pool":
            return pool
        weights = np.random.default_rng(0).integers(-60, 60, (5, 8, 1, 1)).astype(np.int8)
        w = q.weight("w", weights, 0.01)
        y = writer.emit("y", relax.op.nn.conv2d(pool, w))
        return q.quantize("y", y, (0.1, -3), is_output=True)

    return graph({"a": (SHAPE, "int8"), "b": (SHAPE, "int8")}, body)


def samples() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(-128, 128, SHAPE).astype(np.int8) for _ in range(2)]


def op_names(module: tvm.IRModule) -> list[str]:
    return [op_name(binding.value) for binding in DataflowView(module["main"]).bindings]


def test_everything_up_to_the_convolution_is_integer():
    module = joined()
    parts = integer_regions(module, CPU)
    assert parts.rejections == {}
    assert {region.core.name for region in parts.regions.values()} == {"c_q", "pool_q", "y"}
    np.testing.assert_array_equal(run_lowered(module, *samples()), run_float(module, *samples()))


def test_names_of_float_tensors_stay():
    sunk = sink_dequantize(joined())
    assert {"c", "pool"} <= {b.var.name for b in DataflowView(sunk["main"]).bindings}
    relax.analysis.well_formed(sunk)


def test_a_returned_result_is_dequantized_last():
    module = joined(end="pool")
    assert op_names(sink_dequantize(module))[-1] == "dequantize"
    np.testing.assert_array_equal(run_lowered(module, *samples()), run_float(module, *samples()))


def test_numerically_nothing_changes():
    for end in ("conv", "pool"):
        module = joined(end=end)
        np.testing.assert_array_equal(run_float(sink_dequantize(module), *samples()), run_float(module, *samples()))


@pytest.mark.parametrize(
    "module", [joined(end="quantize"), joined((0.04, 7)), joined((0.05, 8))], ids=["quantized", "scale", "zero"]
)
def test_what_must_stay_stays(module):
    """A result that is quantized right away, and operands that differ in scale or zero point."""
    after = op_names(sink_dequantize(module))
    assert after.count("dequantize") == op_names(module).count("dequantize")


@I.ir_module
class Before:
    @R.function
    def main(a_q: R.Tensor((1, 2, 4, 4), "int8"), b_q: R.Tensor((1, 3, 4, 4), "int8")) -> R.Tensor((1, 5, 2, 2), "float32"):
        with R.dataflow():
            a = R.dequantize(a_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            b = R.dequantize(b_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            c = R.concat((a, b), axis=1)
            d = R.nn.max_pool2d(c, pool_size=[2, 2], strides=[2, 2])
            R.output(d)
        return d


@I.ir_module
class Expected:
    @R.function
    def main(a_q: R.Tensor((1, 2, 4, 4), "int8"), b_q: R.Tensor((1, 3, 4, 4), "int8")) -> R.Tensor((1, 5, 2, 2), "float32"):
        with R.dataflow():
            c_q = R.concat((a_q, b_q), axis=1)
            d_q = R.nn.max_pool2d(c_q, pool_size=[2, 2], strides=[2, 2])
            d = R.dequantize(d_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            R.output(d)
        return d


@I.ir_module
class Float:
    @R.function
    def main(x: R.Tensor((1, 2, 4, 4), "float32")) -> R.Tensor((1, 2, 2, 2), "float32"):
        with R.dataflow():
            y = R.nn.max_pool2d(x, pool_size=[2, 2], strides=[2, 2])
            R.output(y)
        return y


def test_dequantize_moves_behind_the_ops_that_move_values():
    assert_structural_equal(eliminate_dead_code(sink_dequantize(Before)), Expected)


def test_with_nothing_to_do_the_module_is_the_same():
    assert sink_dequantize(Expected).same_as(Expected)
    assert sink_dequantize(Float).same_as(Float), "a pool of floats has no dequantize to move"
