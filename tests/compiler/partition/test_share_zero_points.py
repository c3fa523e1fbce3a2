"""The channels of an activation share a zero point where their clamp allows it; what they stand for stays the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo.compiler.partition.pipeline import integer_regions
from octavo.compiler.partition.share_zero_points import share_zero_points
from octavo.ir.graph.dataflow import BodyWriter
from octavo.target import CPU
from qdq_graph import Qdq, graph, run_float, run_lowered

SHAPE = (1, 4, 6, 7)
SCALES = np.float32([0.02, 1e-4, 0.03, 0.04])
ZERO_POINTS = np.int32([-128, 0, -128, -128])


def depthwise(*, clamped: bool = True) -> tvm.IRModule:
    """quantize(depthwise(dequantize(quantize(relu(conv(x)), scale and zero point of each channel)))), int8."""

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q, rng = Qdq(writer, "int8"), np.random.default_rng(0)
        x = q.dequantize("x", inputs["x"], (0.05, 7))
        w = q.weight("w", rng.integers(-60, 60, (4, 4, 1, 1)).astype(np.int8), 0.01)
        conv = writer.emit("conv", relax.op.nn.conv2d(x, w))
        value = writer.emit("relu", relax.op.nn.relu(conv)) if clamped else conv
        params = [relax.const(SCALES), relax.const(ZERO_POINTS)]
        integers = writer.emit("a_q", relax.op.quantize(value, *params, axis=1, out_dtype="int8"))
        a = writer.emit("a", relax.op.dequantize(integers, *params, axis=1))
        v = q.weight("v", rng.integers(-60, 60, (4, 1, 3, 3)).astype(np.int8), 0.01)
        return q.quantize("y", writer.emit("y", relax.op.nn.conv2d(a, v, groups=4)), (0.1, -3), is_output=True)

    return graph({"x": (SHAPE, "int8")}, body)


def test_the_convolutions_are_integer_and_give_the_same():
    module = depthwise()
    x = np.random.default_rng(1).integers(-128, 128, SHAPE).astype(np.int8)
    parts = integer_regions(module, CPU)
    assert {"conv", "y"} <= {region.core.name for region in parts.regions.values()}
    assert np.abs(run_lowered(module, x).astype(int) - run_float(module, x).astype(int)).max() == 0


def test_without_a_clamp_the_integers_below_the_zero_point_count():
    module = depthwise(clamped=False)
    assert share_zero_points(module) is module


UNBOUNDED = np.finfo(np.float32).max


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((1, 3, 4, 4), "float32")) -> R.Tensor((1, 3, 4, 4), "float32"):
        with R.dataflow():
            a = R.nn.relu(x)
            q = R.quantize(a, R.const([0.5, 1.0, 2.0], "float32"), R.const([-128, 27, -128], "int32"), out_dtype="int8", axis=1)
            d = R.dequantize(
                q, R.const([0.5, 1.0, 2.0], "float32"), R.const([-128, 27, -128], "int32"), out_dtype="float32", axis=1
            )
            R.output(d)
        return d


@I.ir_module
class Expected:
    @R.function
    def main(x: R.Tensor((1, 3, 4, 4), "float32")) -> R.Tensor((1, 3, 4, 4), "float32"):
        with R.dataflow():
            a = R.nn.relu(x)
            # What saturated at 127 with the zero point 27: 100 times the scale.
            q_limited = R.minimum(a, R.const([[[[UNBOUNDED]], [[100.0]], [[UNBOUNDED]]]], "float32"))
            q_shared = R.quantize(
                q_limited, R.const([0.5, 1.0, 2.0], "float32"), R.const([-128, -128, -128], "int32"), out_dtype="int8", axis=1
            )
            d = R.dequantize(
                q_shared, R.const([0.5, 1.0, 2.0], "float32"), R.const([-128, -128, -128], "int32"), out_dtype="float32", axis=1
            )
            R.output(d)
        return d


def test_a_clamp_keeps_the_channel_within_its_range():
    assert_structural_equal(share_zero_points(Before), Expected)


def test_with_nothing_to_do_the_module_is_the_same():
    assert share_zero_points(Expected).same_as(Expected)
