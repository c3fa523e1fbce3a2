"""Layers whose input is quantized at run time run as integers, equal to the oracle bit for bit, in both forms of importers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.ir.qdq.dynamic import write_dynamic
from octavo.numerics import dynamic
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())
STYLES = {
    "litert": "litert",
    "onnx": "onnx",
    "torch": dynamic.TorchStyle(dtype="int8", qmin=-128, qmax=127, eps=2.0**-12),
    "torch-narrow": dynamic.TorchStyle(dtype="uint8", qmin=0, qmax=127, eps=2.0**-12),
    "torch-symmetric": dynamic.TorchStyle(dtype="int8", qmin=-127, qmax=127, eps=2.0**-12, is_symmetric=True),
}


def records(module, target=CPU):
    return lower(module, target, ISAS, 1).records


def numbered(writer, prefix: str):
    """Bind each expression to a variable with a number."""
    count = iter(range(1000))
    return lambda value: writer.emit(f"{prefix}{next(count)}", value)


def dequantized(writer, name: str, x, shape, style: dynamic.DynamicStyle):
    value = write_dynamic(x, shape, style, numbered(writer, f"{name}_"))
    return writer.emit(f"{name}_dq", relax.op.dequantize(value.integers, value.scale, value.zero_point, axis=0))


def quantized(x: np.ndarray, style: dynamic.DynamicStyle):
    """The oracle's integers of x, with its zero points and scales shaped to broadcast over x."""
    flat = x.reshape(len(x) if style == "litert" else 1, -1)
    parameters = dynamic.dynamic_parameters(flat, style)
    column = (len(parameters), *[1] * (x.ndim - 1))
    integers = dynamic.dynamic_quantize(flat, parameters, style).reshape(x.shape).astype(np.int32)
    return integers - parameters[:, 1].astype(np.int32).reshape(column), parameters[:, 0].reshape(column)


def check(module, x, want, ops, isas=ISAS):
    found = records(module)
    assert [record.op for record in found] == ops, [record.reason for record in found]
    assert all(record.integer for record in found)
    for isa in isas:
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)
    if isas == ISAS:
        # TVM rounds ties its own way, and may fuse products and sums.
        assert np.abs(run_float(module, x) - want).max() <= 0.01 * np.abs(want).max()


@pytest.mark.parametrize(("style", "layout", "groups"), list(AllPairs([list(STYLES), ["NCHW", "NHWC"], [1, 8]])))
def test_conv2d(style, layout, groups):
    is_first, style = style == next(iter(STYLES)), STYLES[style]
    rng = np.random.default_rng(groups)
    weight = rng.integers(-127, 128, (3, 3, 8 // groups, 16)).astype(np.int8)
    scale, bias = rng.uniform(0.001, 0.02, 16).astype(np.float32), rng.normal(size=16).astype(np.float32)
    shape = (2, 6, 7, 8) if layout == "NHWC" else (2, 8, 6, 7)
    window = {"padding": (1, 0, 1, 2), "strides": (2, 1)}

    def body(writer, params):
        x = dequantized(writer, "x", params["x"], shape, style)
        order = (0, 1, 2, 3) if layout == "NHWC" else (3, 2, 0, 1)
        axis = order.index(3)
        w = Qdq(writer, "int8").weight("w", np.ascontiguousarray(weight.transpose(order)), scale, axis=axis)
        kernel_layout = "HWIO" if layout == "NHWC" else "OIHW"
        conv = writer.emit(
            "conv", relax.op.nn.conv2d(x, w, **window, groups=groups, data_layout=layout, kernel_layout=kernel_layout)
        )
        b = bias if layout == "NHWC" else bias.reshape(1, -1, 1, 1)
        return writer.emit("y", relax.op.nn.relu(writer.emit("sum", relax.op.add(conv, relax.const(b)))), is_output=True)

    x = rng.normal(size=shape).astype(np.float32) * np.float32([1, 30]).reshape(2, 1, 1, 1)
    centered, x_scale = quantized(x if layout == "NHWC" else x.transpose(0, 2, 3, 1), style)
    acc = numerics.conv2d_accumulate(centered, weight, window=numerics.Window(**window), groups=groups)
    want = numerics.dequantize_accumulator(acc, scale, bias, input_scale=x_scale, low=0.0)
    module, result = graph({"x": (shape, "float32")}, body), want if layout == "NHWC" else want.transpose(0, 3, 1, 2)
    # Styles and layouts make other graphs; the convolution they are lowered to is one kernel.
    check(module, x, result, ["conv2d"], isas=ISAS if is_first else ISAS[:1])


def integer_matmul(writer, name, value, weight, factor, zero_point=0):
    """A product as MatMulInteger has it: int32 sums, converted and scaled."""
    emit = numbered(writer, f"{name}_")
    x = emit(
        relax.op.subtract(emit(relax.op.astype(value.integers, "int32")), emit(relax.op.astype(value.stored_zero_point, "int32")))
    )
    w = emit(relax.op.astype(relax.const(weight), "int32"))
    if zero_point:
        w = emit(relax.op.subtract(w, relax.const(np.int32(zero_point))))
    sums = emit(relax.op.matmul(x, w, out_dtype="int32"))
    scale = emit(relax.op.multiply(value.scale, relax.const(factor)))
    return emit(relax.op.multiply(emit(relax.op.astype(sums, "float32")), scale))


@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
def test_two_integer_matmuls_of_one_input_quantize_it_once(weight_dtype):
    rng = np.random.default_rng(2)
    low, high = numerics.INTEGER_RANGE[weight_dtype]
    weights = [rng.integers(low, high + 1, (33, 17)).astype(weight_dtype) for _ in range(2)]
    factors = [np.float32(0.01), rng.uniform(0.001, 0.02, 17).astype(np.float32)]
    zero_point = 0 if weight_dtype == "int8" else 131
    bias = rng.normal(size=17).astype(np.float32)

    def body(writer, params):
        value = write_dynamic(params["x"], (2, 3, 33), "onnx", numbered(writer, "q"))
        a = integer_matmul(writer, "a", value, weights[0], factors[0], zero_point)
        b = integer_matmul(writer, "b", value, weights[1], factors[1], zero_point)
        b = writer.emit("biased", relax.op.add(b, relax.const(bias)))
        return relax.Tuple([writer.emit(f"y{i}", relax.op.nn.relu(v), is_output=True) for i, v in enumerate((a, b))])

    module = graph({"x": ((2, 3, 33), "float32")}, body)
    x = rng.normal(size=(2, 3, 33)).astype(np.float32)
    centered, x_scale = quantized(x, "onnx")
    want = [
        numerics.dequantize_accumulator(
            centered @ (w.astype(np.int32) - zero_point), factor, b, input_scale=x_scale, low=0.0, rounding="stepwise"
        )
        for w, factor, b in zip(weights, factors, (np.float32(0), bias), strict=True)
    ]
    for isa in ISAS:
        for got, expected in zip(run_lowered(module, x, isa=isa), want, strict=True):
            np.testing.assert_array_equal(got, expected)
    lowered = lower(module, CPU, ISAS, 1)
    names = [kernel.name for kernel in lowered.kernels.values()]
    assert names.count("quantize at run time") == names.count("quantization parameters") == 1
    assert [(record.op, record.integer) for record in lowered.records] == [("matmul", True)] * 2


@pytest.mark.parametrize("end", ["", "nn.relu", "clip"])
def test_a_row_that_is_not_finite_gives_nan_and_the_others_are_as_without_it(end):
    rng = np.random.default_rng(3)
    weight, scale = rng.integers(-127, 128, (20, 40)).astype(np.int8), rng.uniform(0.001, 0.02, 40).astype(np.float32)
    bounds = {"": (-np.inf, np.inf), "nn.relu": (0, np.inf), "clip": (-1, 1)}[end]

    def body(writer, params):
        x = dequantized(writer, "x", params["x"], (40, 20), dynamic.PER_ROW)
        w = Qdq(writer, "int8").weight("w", weight, scale, axis=1)
        y = writer.emit("y", relax.op.matmul(x, w), is_output=not end)
        clamp = {"nn.relu": relax.op.nn.relu, "clip": lambda value: relax.op.clip(value, *bounds)}
        return writer.emit("end", clamp[end](y), is_output=True) if end else y

    x = rng.normal(size=(40, 20)).astype(np.float32)
    module = graph({"x": ((40, 20), "float32")}, body)
    plain = {isa: run_lowered(module, x, isa=isa) for isa in ISAS}
    x[[3, 17, 18, 39], [0, 19, 7, 4]] = [np.nan, np.inf, -np.inf, np.nan]
    x[5] = 0
    bad = np.isin(np.arange(40), [3, 17, 18, 39])
    for isa in ISAS:
        found = run_lowered(module, x, isa=isa)
        assert np.isnan(found[bad]).all(), isa
        assert (found[5] == 0).all()
        kept = ~bad & (np.arange(40) != 5)
        np.testing.assert_array_equal(found[kept], plain[isa][kept])


@pytest.mark.parametrize("rows", [1, 5])
def test_matmul_with_parameters_for_each_row(rows):
    rng = np.random.default_rng(rows)
    weight, scale = rng.integers(-127, 128, (20, 9)).astype(np.int8), rng.uniform(0.001, 0.02, 9).astype(np.float32)

    def body(writer, params):
        x = dequantized(writer, "x", params["x"], (rows, 20), "litert")
        w = Qdq(writer, "int8").weight("w", weight, scale, axis=1)
        return writer.emit("y", relax.op.matmul(x, w), is_output=True)

    x = rng.normal(size=(rows, 20)).astype(np.float32)
    centered, x_scale = quantized(x, "litert")
    want = numerics.dequantize_accumulator(centered @ weight.astype(np.int32), scale, np.float32(0), input_scale=x_scale)
    check(graph({"x": ((rows, 20), "float32")}, body), x, want, ["matmul"])


def test_a_target_says_whether_it_quantizes_rows_when_run():
    def body(writer, params):
        x = dequantized(writer, "x", params["x"], (5, 20), dynamic.PER_ROW)
        w = Qdq(writer, "int8").weight("w", np.ones((20, 9), np.int8), np.full(9, 0.1), axis=1)
        return writer.emit("y", relax.op.matmul(x, w), is_output=True)

    module = graph({"x": ((5, 20), "float32")}, body)
    without = replace(CPU, ops=tuple(replace(op, per_row_input=False) for op in CPU.ops))
    (found,) = (record for record in records(module) if record.op == "matmul")
    assert (found.integer, found.reason) == (True, "its input is quantized per row, when run")
    (found,) = (record for record in records(module, without) if record.op == "matmul")
    assert (found.integer, found.reason) == (False, "input x is quantized per row when run, which the target does not take")


def other_forms(change: str, style: dynamic.DynamicStyle):
    weight = np.ones((4, 3), np.int8)

    def body(writer, params):
        value = write_dynamic(params["x"], (2, 4), style, numbered(writer, "q"))
        scale = writer.emit("other", relax.op.add(value.scale, value.scale)) if change == "scale" else value.scale
        x = writer.emit("x_dq", relax.op.dequantize(value.integers, scale, value.zero_point, axis=0))
        w = Qdq(writer, "int8").weight("w", weight, np.full(3, 0.1), axis=1)
        return writer.emit("y", relax.op.matmul(x, w), is_output=True)

    return graph({"x": ((2, 4), "float32")}, body)


@pytest.mark.parametrize("style", ["onnx", STYLES["torch"], STYLES["torch-symmetric"]], ids=["onnx", "torch", "torch-symmetric"])
@pytest.mark.parametrize("change", ["scale", "target"])
def test_what_only_looks_alike_stays_as_it_is(change, style):
    module = other_forms(change, style)
    target = CPU if change != "target" else replace(CPU, ops=tuple(replace(op, float_output=False) for op in CPU.ops))
    assert [record.integer for record in records(module, target) if "matmul" in record.op] == [False]
    if change != "target":
        x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
        np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-5)
