"""Lowered graphs against the oracles (bit for bit) and against TVM's float simulation (one step), in both layouts and dtypes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.ir.graph.dataflow import BodyWriter
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def records(module):
    return lower(module, CPU, ISAS, 1).records


def conv_case(layout: str, dtype: str, *, groups: int = 1, relu: bool = True, weight_dtype: str = "int8", seed: int = 0):
    rng = np.random.default_rng(seed)
    channels, outputs, size = 8, 12 if groups == 1 else 8, 9
    low, high = LIMITS[dtype]
    x_zero, y_zero = int(rng.integers(low, high)), int(rng.integers(low, high))
    w_low, w_high = LIMITS[weight_dtype]
    weight = rng.integers(w_low, w_high + 1, (3, 3, channels // groups, outputs)).astype(weight_dtype)
    w_zero = 0 if weight_dtype == "int8" else 117
    w_scale = rng.uniform(0.001, 0.02, outputs).astype(np.float32) if weight_dtype == "int8" else np.float32(0.01)
    bias = rng.integers(-2000, 2000, outputs).astype(np.int32)
    x_scale, y_scale = np.float32(0.05), np.float32(0.3)
    is_nhwc = layout == "NHWC"
    shape = (2, size, size, channels) if is_nhwc else (2, channels, size, size)

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (x_scale, x_zero))
        order = (0, 1, 2, 3) if is_nhwc else (3, 2, 0, 1)
        w = qdq.weight("w", np.ascontiguousarray(weight.transpose(order)), w_scale, w_zero, axis=3 if is_nhwc else 0)
        conv = relax.op.nn.conv2d(
            x,
            w,
            strides=(2, 1),
            padding=(1, 0, 1, 2),
            groups=groups,
            data_layout=layout,
            kernel_layout="HWIO" if is_nhwc else "OIHW",
        )
        conv = writer.emit("conv", conv)
        b = qdq.weight("b", bias if is_nhwc else bias.reshape(1, -1, 1, 1), x_scale * w_scale, axis=0 if is_nhwc else 1)
        value = writer.emit("biased", relax.op.add(conv, b))
        if relu:
            value = writer.emit("act", relax.op.clip(value, 0.0, 6.0))
        return qdq.quantize("y", value, (y_scale, y_zero), is_output=True)

    module = graph({"x": (shape, dtype)}, body)
    x = rng.integers(low, high + 1, shape).astype(dtype)
    nhwc = x if is_nhwc else x.transpose(0, 2, 3, 1)
    quantized = [int(np.clip(np.rint(np.float32(v) / y_scale) + y_zero, low, high)) for v in (0.0, 6.0)]
    qmin, qmax = quantized if relu else (low, high)
    want = numerics.conv2d(
        nhwc,
        weight,
        x_zero_point=x_zero,
        w_zero_point=w_zero,
        bias=bias,
        multiplier=numerics.requantize_multiplier(x_scale, np.broadcast_to(w_scale, (outputs,)), y_scale),
        zero_point=y_zero,
        qmin=qmin,
        qmax=qmax,
        window=numerics.Window(strides=(2, 1), padding=(1, 0, 1, 2)),
        groups=groups,
        out_dtype=dtype,
    )
    return module, x, want if is_nhwc else want.transpose(0, 3, 1, 2)


OPTIONS = [{}, {"groups": 8}, {"relu": False}, {"weight_dtype": "uint8"}, {"weight_dtype": "uint8", "groups": 8}]


@pytest.mark.parametrize(("layout", "dtype", "options"), list(AllPairs([["NCHW", "NHWC"], ["int8", "uint8"], OPTIONS])))
def test_conv2d_equals_the_oracle(layout, dtype, options):
    module, x, want = conv_case(layout, dtype, **options)
    (op,) = [record for record in records(module) if record.op == "conv2d"]
    assert op.integer
    assert op.isa == ISAS[0]
    # Both layouts are lowered to one kernel.
    for isa in ISAS if layout == "NHWC" else ISAS[:1]:
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)
    if not options:
        assert np.abs(run_float(module, x).astype(int) - want).max() <= 1, "the oracle, too, is what the graph says"


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_block_stays_integer_end_to_end(dtype):
    """conv -> relu, residual add, max pool, average pool, concat, mean, reshape, matmul, from an NCHW source."""
    rng = np.random.default_rng(3)
    low, high = LIMITS[dtype]
    zero = (low + high) // 2

    def body(writer, params):
        qdq = Qdq(writer, dtype)

        def again(name, value, scale, zero_point=zero):
            return qdq.dequantize(name, qdq.quantize(name, value, (scale, zero_point)), (scale, zero_point))

        x = again("x", params["x"], 0.02)
        weight = rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
        w = qdq.weight("w", weight, np.full(8, 0.002), axis=0)
        conv = writer.emit("conv", relax.op.nn.conv2d(x, w, padding=(1, 1, 1, 1)))
        act = again("act", writer.emit("relu", relax.op.nn.relu(conv)), 0.01, low)
        total = again("total", writer.emit("add", relax.op.add(act, x)), 0.03)
        top = again("top", writer.emit("max", relax.op.nn.max_pool2d(total, (2, 2), (2, 2))), 0.03)
        mean = again("avg", writer.emit("pool", relax.op.nn.avg_pool2d(total, (2, 2), (2, 2))), 0.02)
        both = again("both", writer.emit("cat", relax.op.concat([top, mean], axis=1)), 0.025)
        flat = again("pooled", writer.emit("mean", relax.op.mean(both, axis=[2, 3], keepdims=True)), 0.02)
        row = again("row", writer.emit("reshape", relax.op.reshape(flat, (1, 16))), 0.02)
        dense = qdq.weight("dense_w", rng.integers(-127, 128, (16, 10)).astype(np.int8), np.full(10, 0.01), axis=1)
        y = again("y", writer.emit("matmul", relax.op.matmul(row, dense)), 0.02)
        return writer.emit("soft", relax.op.nn.softmax(y), is_output=True)

    module = graph({"x": ((1, 8, 8, 8), "float32")}, body)
    found = records(module)
    assert [record.op for record in found if not record.integer] == ["nn.softmax"]
    assert {record.op for record in found if record.integer} == {
        "quantize",
        "conv2d",
        "add",
        "pool2d",
        "concat",
        "move",
        "matmul",
        "dequantize",
    }
    x = rng.normal(0, 0.7, (1, 8, 8, 8)).astype(np.float32)
    simulated = run_float(module, x)
    for isa in ISAS:
        assert np.abs(run_lowered(module, x, isa=isa) - simulated).max() < 0.02


def test_results_do_not_depend_on_isa_or_threads():
    module, x, want = conv_case("NCHW", "int8", seed=5)
    for isa in ISAS:
        for threads in (1, 2):
            np.testing.assert_array_equal(run_lowered(module, x, isa=isa, threads=threads), want)


def test_a_float_island_is_compiled_by_tvm_and_explained():
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        q = qdq.quantize("x", params["x"], (0.05, 128))
        x = qdq.dequantize("x", q, (0.05, 128))
        return writer.emit("y", relax.op.sin(x), is_output=True)

    module = graph({"x": ((3, 5), "float32")}, body)
    island = [record for record in records(module) if not record.integer]
    assert [(record.op, record.isa) for record in island] == [("sin", "tvm")]
    assert "returned in float" in island[0].reason
    x = np.random.default_rng(0).normal(0, 3, (3, 5)).astype(np.float32)
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"float_weight": True}, "weight w is float32, not quantized"),
        ({"per_axis_input": True}, "quantized per axis"),
    ],
)
def test_a_conv_that_stays_float_says_why(change, reason):
    dtype = "int8"

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        if change.get("per_axis_input"):
            scale, zeros = np.full(4, 0.1, np.float32), np.zeros(4, np.int32)
            call = relax.op.dequantize(params["x"], relax.const(scale), relax.const(zeros), axis=1)
            x = writer.emit("x_dq", call)
        else:
            x = qdq.dequantize("x", params["x"], (0.1, 0))
        values = np.ones((4, 4, 1, 1), np.int8)
        if change.get("float_weight"):
            w = writer.emit("w", relax.const(values.astype(np.float32)))
        else:
            w = qdq.weight("w", values, np.full(4, 0.1))
        conv = writer.emit("conv", relax.op.nn.conv2d(x, w))
        # Sums are whole multiples of 0.01 or 0.1: no result lies halfway between two steps of 0.13.
        return qdq.quantize("y", conv, (0.13, 0), is_output=True)

    module = graph({"x": ((1, 4, 3, 3), dtype)}, body)
    (op,) = [record for record in records(module) if record.op == "nn.conv2d"]
    assert not op.integer
    assert reason in op.reason
    x = np.random.default_rng(0).integers(-100, 100, (1, 4, 3, 3)).astype(dtype)
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-5)


@pytest.mark.parametrize("op", ["reshape", "flatten"])
def test_a_view_of_floats_is_no_float_op(op: str) -> None:
    def body(writer: BodyWriter, inputs: dict[str, Any]) -> Any:
        x = writer.emit("s", relax.op.nn.softmax(inputs["x"], 1))
        view = relax.op.flatten(x) if op == "flatten" else relax.op.reshape(x, [6])
        return writer.emit("y", view, is_output=True)

    lowered = lower(graph({"x": ((2, 3), "float32")}, body), CPU, isas_of(host_target()), 1)
    assert [record.op for record in lowered.records] == ["nn.softmax"]
