"""Convolutions and matmuls whose result is read in float run as integers; their float32 result equals the oracle bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.pipeline import integer_regions
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())


def records(module, target=CPU):
    return lower(module, target, ISAS, 1).records


def conv_case(layout: str, dtype: str, groups: int = 1, *, clamp: bool = True, quantized_bias: bool = False):
    """A convolution of a quantized input whose result is returned: the module, its input, and what the oracle gives."""
    rng = np.random.default_rng(groups)
    channels, outputs, size = 8, 8 * groups if groups > 1 else 12, 7
    low, high = numerics.INTEGER_RANGE[dtype]
    weight = rng.integers(-127, 128, (3, 3, channels // groups, outputs)).astype(np.int8)
    scale = rng.uniform(0.001, 0.02, outputs).astype(np.float32)
    x_scale, zero = np.float32(0.05), int(rng.integers(low, high))
    bias = rng.normal(size=outputs).astype(np.float32)
    integers = rng.integers(-2000, 2000, outputs).astype(np.int32)
    is_nhwc = layout == "NHWC"
    shape = (2, size, size, channels) if is_nhwc else (2, channels, size, size)
    bias_shape = (-1,) if is_nhwc else (1, -1, 1, 1)

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (x_scale, zero))
        w = np.ascontiguousarray(weight.transpose((0, 1, 2, 3) if is_nhwc else (3, 2, 0, 1)))
        w = qdq.weight("w", w, scale, axis=3 if is_nhwc else 0)
        kernel_layout = "HWIO" if is_nhwc else "OIHW"
        window = {"strides": (2, 1), "padding": (1, 0, 1, 2), "groups": groups}
        conv = relax.op.nn.conv2d(x, w, **window, data_layout=layout, kernel_layout=kernel_layout)
        b = relax.const(bias.reshape(bias_shape))
        if quantized_bias:
            b = qdq.weight("b", integers.reshape(bias_shape), x_scale * scale, axis=0 if is_nhwc else 1)
        value = writer.emit("biased", relax.op.add(writer.emit("conv", conv), b), is_output=not clamp)
        return writer.emit("act", relax.op.clip(value, 0.0, 6.0), is_output=True) if clamp else value

    x = rng.integers(low, high + 1, shape).astype(dtype)
    nhwc = x if is_nhwc else x.transpose(0, 2, 3, 1)
    window = numerics.Window(strides=(2, 1), padding=(1, 0, 1, 2))
    acc = numerics.conv2d_accumulate(nhwc, weight, x_zero_point=zero, window=window, groups=groups)
    real = integers.astype(np.float32) * (x_scale * scale) if quantized_bias else bias
    want = numerics.dequantize_accumulator(acc, x_scale * scale, real, **({"low": 0.0, "high": 6.0} if clamp else {}))
    return graph({"x": (shape, dtype)}, body), x, want if is_nhwc else want.transpose(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("layout", "dtype", "options"),
    list(AllPairs([["NCHW", "NHWC"], ["int8", "uint8"], [{}, {"groups": 8}, {"clamp": False}, {"quantized_bias": True}]])),
)
def test_conv2d_equals_the_oracle(layout, dtype, options):
    module, x, want = conv_case(layout, dtype, **options)
    (op,) = [record for record in records(module) if record.op == "conv2d"]
    assert op.integer
    assert op.macs > 0
    # Both layouts are lowered to one kernel.
    for isa in ISAS if layout == "NHWC" else ISAS[:1]:
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)
    if not options:
        np.testing.assert_allclose(run_float(module, x), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def matmul_module(dtype: str = "int8"):
    weight = np.random.default_rng(1).integers(-127, 128, (20, 9)).astype(np.int8)

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (0.1, 3))
        product = writer.emit("product", relax.op.matmul(x, qdq.weight("w", weight, np.full(9, 0.01), axis=1)))
        relu = writer.emit("relu", relax.op.nn.relu(product))
        return writer.emit("y", relax.op.add(relu, writer.emit("exp", relax.op.exp(relu))), is_output=True)

    return graph({"x": ((4, 20), dtype)}, body), weight


def test_a_matmul_read_in_float_twice(rng):
    module, weight = matmul_module()
    x = rng.integers(-128, 128, (4, 20)).astype(np.int8)
    scale = np.float32(0.1) * np.full(9, 0.01, np.float32)
    real = numerics.dequantize_accumulator(
        numerics.matmul_accumulate(x, weight, x_zero_point=3), scale, np.zeros(9, np.float32), low=0.0
    )
    np.testing.assert_allclose(run_lowered(module, x), real + np.exp(real), rtol=1e-6)
    assert [record.op for record in records(module) if record.integer] == ["matmul"]
    # The relu has two readers, and they read the composite's result.
    composite = integer_regions(module, CPU).module["octavo_matmul_relu"]
    info = composite.attrs["quantize_info"]
    assert (str(info["output"]["id"]), str(info["output"]["dtype"])) == ("relu", "float32")
    assert info["output"]["scale"] is None
    assert (str(info["bias"]["id"]), str(info["bias"]["dtype"])) == ("", "float32")


def test_a_residual_sum_between_two_convolutions_stays_float_and_they_do_not():
    """As PyTorch's X86 quantizer writes it: quantize in front of convolutions only."""
    rng = np.random.default_rng(7)
    weights = [rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8) for _ in range(2)]

    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        value = params["x"]
        for number, weight in enumerate(weights):
            q = qdq.dequantize(f"x{number}", qdq.quantize(f"x{number}", value, (0.05, 120)), (0.05, 120))
            w = qdq.weight(f"w{number}", weight, np.full(8, 0.002), axis=0)
            conv = writer.emit(f"conv{number}", relax.op.nn.conv2d(q, w, padding=(1, 1, 1, 1)))
            value = writer.emit(f"sum{number}", relax.op.add(conv, value))
        return writer.emit("y", relax.op.nn.relu(value), is_output=True)

    module = graph({"x": ((1, 8, 6, 6), "float32")}, body)
    assert [(record.op, record.integer) for record in records(module) if "conv" in record.op] == [("conv2d", True)] * 2
    x = rng.normal(size=(1, 8, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-5, atol=1e-5)


def test_a_target_without_float_results_keeps_the_reason():
    module, _ = matmul_module()
    target = replace(CPU, ops=tuple(replace(op, float_output=False) for op in CPU.ops))
    (op,) = [record for record in records(module, target) if record.op == "matmul"]
    assert not op.integer
    assert "relu is read by 2 ops" in op.reason
