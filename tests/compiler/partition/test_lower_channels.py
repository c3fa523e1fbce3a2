"""Activations with a scale for each channel between a convolution and a depthwise one; biases at the edge of int32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from octavo.compiler.partition.pipeline import integer_regions
from octavo.ir.graph.dataflow import BodyWriter
from octavo.target import CPU
from qdq_graph import Qdq, graph, run_float, run_lowered

SHAPE = (1, 4, 7, 7)
CHANNELS = 6
SCALES = np.linspace(0.02, 0.09, CHANNELS).astype(np.float32)
X = (0.05, 7)


def per_channel(zero_points: np.ndarray, *, groups: int = CHANNELS, low: float = 0.0, multiplier: int = 1) -> tvm.IRModule:
    """conv -> clip -> quantize and dequantize with a scale for each channel -> convolution of `groups` -> quantize."""
    rng = np.random.default_rng(3)

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "uint8")
        x = q.dequantize("x", inputs["x"], X)
        w = q.weight("w", rng.integers(-60, 60, (CHANNELS, 4, 1, 1)).astype(np.int8), np.full(CHANNELS, 0.01))
        a = writer.emit("a", relax.op.nn.conv2d(x, w))
        c = writer.emit("c", relax.op.clip(a, low, 1000.0))
        scale, zero = relax.const(SCALES), relax.const(zero_points.astype(np.int32))
        c_q = writer.emit("c_q", relax.op.quantize(c, scale, zero, axis=1, out_dtype="uint8"))
        c_dq = writer.emit("c_dq", relax.op.dequantize(c_q, scale, zero, axis=1))
        weights = rng.integers(-60, 60, (CHANNELS * multiplier, CHANNELS // groups, 3, 3)).astype(np.int8)
        v = q.weight("v", weights, np.linspace(0.01, 0.02, CHANNELS * multiplier))
        y = writer.emit("y", relax.op.nn.conv2d(c_dq, v, padding=[1, 1, 1, 1], groups=groups))
        return q.quantize("y", y, (0.2, 120), is_output=True)

    return graph({"x": (SHAPE, "uint8")}, body)


def sample() -> np.ndarray:
    return np.random.default_rng(4).integers(0, 256, SHAPE).astype(np.uint8)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_scales_for_each_channel_into_a_depthwise_convolution(multiplier):
    module = per_channel(np.zeros(CHANNELS), multiplier=multiplier)
    parts = integer_regions(module, CPU)
    assert parts.rejections == {}
    assert {region.core.name for region in parts.regions.values()} == {"a", "y"}
    difference = np.abs(run_lowered(module, sample()).astype(int) - run_float(module, sample()).astype(int))
    assert difference.max() <= 1
    assert np.mean(difference > 0) <= 0.01, "the float simulation rounds in another order"


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("is_float", [False, True], ids=["quantized result", "float result"])
def test_a_zero_point_for_each_channel_of_a_depthwise_convolution(dtype, multiplier, is_float):
    low = 0 if dtype == "uint8" else -128
    module = depthwise_of_channels(dtype, np.array([0, 3, 200, 255, 128, 90]) + low, multiplier, is_float=is_float)
    parts = integer_regions(module, CPU)
    assert {region.core.name for region in parts.regions.values()} >= {"y_float"}
    x = (sample_of(6).astype(int) + low).astype(dtype)
    got, want = run_lowered(module, x), run_float(module, x)
    if is_float:
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.ptp(want))
    else:
        difference = np.abs(got.astype(int) - want.astype(int))
        assert difference.max() <= 1
        assert np.mean(difference > 0) <= 0.01, "the float simulation rounds in another order"


def depthwise_of_channels(dtype: str, zero_points: np.ndarray, multiplier: int, *, is_float: bool) -> tvm.IRModule:
    """Integers with scale and zero point for each channel -> depthwise convolution with padding and bias -> quantize, or not."""
    rng = np.random.default_rng(8)

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "uint8")
        x = writer.emit(
            "x_f", relax.op.dequantize(inputs["x"], relax.const(SCALES), relax.const(zero_points.astype(np.int32)), axis=1)
        )
        weights = rng.integers(-60, 60, (CHANNELS * multiplier, 1, 3, 5)).astype(np.int8)
        v = q.weight("v", weights, np.linspace(0.01, 0.02, CHANNELS * multiplier))
        y = writer.emit("y_float", relax.op.nn.conv2d(x, v, padding=[1, 2, 0, 3], groups=CHANNELS))
        bias = rng.normal(size=(1, CHANNELS * multiplier, 1, 1)).astype(np.float32)
        y = writer.emit("y_bias", relax.op.add(y, relax.const(bias)), is_output=is_float)
        return y if is_float else q.quantize("y", y, (0.4, 120), is_output=True)

    return graph({"x": ((1, CHANNELS, 7, 7), dtype)}, body)


def sample_of(channels: int) -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (1, channels, 7, 7))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (per_channel(np.zeros(CHANNELS), groups=1), "activation c_q is quantized per axis"),
        # Without a clamp at 0 the integers below the zero points are used; other convolutions mix the channels.
        (per_channel(np.arange(CHANNELS), groups=2, low=-1000.0), "activation c_q is quantized per axis"),
        (per_channel(np.zeros(CHANNELS), low=0.5), "the clamp of c_q is another integer in each channel"),
    ],
    ids=["not depthwise", "zero points differ", "clamps differ"],
)
def test_what_kernels_cannot_take_says_why(module, reason):
    target = replace(CPU, ops=tuple(replace(op, float_output=False) for op in CPU.ops))
    rejections = integer_regions(module, target).rejections
    assert any(reason in rejection.reason for rejection in rejections.values()), rejections
    run_lowered(module, sample())


def biased(bias: int, out_scale: float) -> tvm.IRModule:
    """A convolution whose second channel has small weights and this bias."""

    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        q = Qdq(writer, "uint8")
        x = q.dequantize("x", inputs["x"], X)
        w = q.weight("w", np.full((2, 4, 1, 1), 100, np.int8), np.array([0.01, 1e-9]))
        scale, zero = relax.const(np.float32(X[0]) * np.array([0.01, 1e-9], np.float32)), relax.const(np.zeros(2, np.int32))
        b = writer.emit("b", relax.op.dequantize(relax.const(np.array([5, bias], np.int32)), scale, zero, axis=0))
        shaped = writer.emit("shaped", relax.op.reshape(b, (1, 2, 1, 1)))
        a = writer.emit("a", relax.op.nn.conv2d(x, w))
        y = writer.emit("y", relax.op.add(a, shaped))
        return q.quantize("y", y, (out_scale, 3), is_output=True)

    return graph({"x": (SHAPE, "uint8")}, body)


def test_a_bias_at_the_edge_of_int32_moves_by_less_than_a_step():
    module = biased(2**31 - 1, 0.01)
    assert "a" in {region.core.name for region in integer_regions(module, CPU).regions.values()}
    got, want = run_lowered(module, sample()), run_float(module, sample())
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_a_bias_that_would_have_to_move_far_leaves_the_layer_float():
    module = biased(2**31 - 1, 1e-6)
    (rejection,) = [r for name, r in integer_regions(module, CPU).rejections.items() if name == "a"]
    assert "the int32 accumulator of output channel 1 can reach" in rejection.reason
    np.testing.assert_array_equal(run_lowered(module, sample()), run_float(module, sample()))


def test_zero_points_that_differ_are_shared_behind_a_clamp():
    module = per_channel(np.arange(CHANNELS))
    rejections = integer_regions(module, CPU).rejections
    assert not {"a", "y"} & set(rejections)
    difference = np.abs(run_lowered(module, sample()).astype(int) - run_float(module, sample()).astype(int))
    assert difference.max() <= 1
