"""Products of tensors that are quantized at run time: the definition's floats and sums, bit for bit."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from emulated_ops import SM_80, Case, emitted, results, tensor, wrong

from octavo.compiler.backends.cuda.emission import Emission, ResultType, Value
from octavo.compiler.backends.cuda.emit import emitter_of
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.quantization import dynamic as dynamic_kernels
from octavo.compiler.backends.cuda.kernels.quantization.dynamic import parts_of
from octavo.compiler.backends.cuda.plan import Buffer
from octavo.errors import CompileError
from octavo.ir.composites.base import FloatResult, SumResult
from octavo.ir.composites.weighted import Conv2dOp, DynamicTensor, MatmulOp, QuantizedWeight
from octavo.numerics import QuantParams, Window, conv2d_accumulate, dequantize_accumulator, dynamic, matmul_accumulate

STYLES = {
    "litert": "litert",
    "onnx": "onnx",
    "torch": dynamic.TorchStyle(dtype="int8", qmin=-128, qmax=127, eps=2.0**-12),
    "torch-narrow": dynamic.TorchStyle(dtype="uint8", qmin=0, qmax=127, eps=2.0**-12),
    "torch-symmetric": dynamic.TorchStyle(dtype="int8", qmin=-127, qmax=127, eps=2.0**-12, is_symmetric=True),
    "torch-rows": dynamic.TorchStyle(dtype="int8", qmin=-128, qmax=127, eps=2.0**-12, by_row=True),
}


def weight_of(values, zero_points):
    outputs = values.shape[-1]
    rng = np.random.default_rng(outputs)
    scale = rng.uniform(0.001, 0.02, outputs).astype(np.float32)
    return QuantizedWeight(
        name="w",
        values=values,
        zero_point=rng.integers(-9, 9, outputs).astype(np.int32) if zero_points else np.zeros(outputs, np.int32),
        params=QuantParams.per_tensor("int8", 0.01, 0),
        bias_name="b",
        bias=np.arange(outputs, dtype=np.int32) - 3,
        bias_scale=scale,
        multiplier=scale,
    )


def quantized(x, style, scales):
    rows = x.reshape(scales, -1)
    parameters = dynamic.dynamic_parameters(rows, style)
    integers = dynamic.dynamic_quantize(rows, parameters, style).reshape(x.shape).astype(np.int32)
    if scales > len(x):  # a row of the last axis has its own
        column = (*x.shape[:-1], 1)
        return integers - parameters[:, 1].astype(np.int32).reshape(column), parameters[:, 0].reshape(column)
    column = (scales, *[1] * (x.ndim - 1))
    columns = [np.repeat(each, len(x) // scales).reshape(len(x), *column[1:]) for each in parameters.T]
    return integers - columns[1].astype(np.int32), columns[0]


def result_of(shape, channels, ending):
    if ending == "sums":
        return SumResult(name="y", shape=shape)
    bias = np.random.default_rng(channels).normal(0, 1, channels).astype(np.float32)
    low, high = (0.0, 6.0) if ending == "stepwise" else (-np.inf, np.inf)
    return FloatResult(name="y", shape=shape, bias=bias, bias_name="b", low=low, high=high, rounding=ending)


def expected(sums, weight, scale, y):
    if isinstance(y, SumResult):
        return (sums + weight.bias).astype(np.int32)
    ends = {"low": y.low, "high": y.high, "rounding": y.rounding}
    return dequantize_accumulator(sums, weight.multiplier, y.bias, input_scale=scale, **ends)


def values_of(shape, spread=30.0):
    """Floats of which each image, or row, has another range; the first is of zeros alone, the second of positive numbers."""
    x = np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)
    x *= np.geomspace(1, spread, len(x), dtype=np.float32).reshape(-1, *[1] * (len(shape) - 1))
    if len(x) > 2:
        x[0], x[1] = 0, np.abs(x[1])
    return x


def matmul_case(style, shape, outputs, ending, *, zero_points=False, unit=1.0, strange=None, isa=SM_80):
    style = STYLES[style]
    scales = 1 if not dynamic.is_by_row(style) else shape[0] if style == "litert" else math.prod(shape[:-1])
    values = np.random.default_rng(outputs).integers(-128, 128, (shape[-1], outputs)).astype(np.int8)
    weight, x = weight_of(values, zero_points), values_of(shape) * np.float32(unit)
    if strange is not None:
        x[-1, ..., shape[-1] // 2] = strange
    centered, scale = quantized(x, style, scales)
    sums = matmul_accumulate(centered.astype(np.int16), values, w_zero_point=weight.zero_point)
    y = result_of((*shape[:-1], outputs), outputs, ending)
    op = MatmulOp(x=DynamicTensor(name="x", shape=shape, style=style, scales=scales), weight=weight, y=y, accumulator_bits=32)
    return Case(op, {"x": x}, expected(sums, weight, scale, y), isa=isa)


def conv2d_case(style, layout, groups, ending, *, nhwc=(), isa=SM_80):
    style, size, channels = STYLES[style], (3, 6, 7), 8
    scales = size[0] if dynamic.is_by_row(style) else 1
    values = np.random.default_rng(groups).integers(-128, 128, (3, 3, channels // groups, 16)).astype(np.int8)
    weight, shape = weight_of(values, True), (*size, channels)
    window = Window(strides=(2, 1), padding=(1, 0, 1, 2), dilation=(1, 1))
    x = values_of(shape)
    centered, scale = quantized(x, style, scales)
    sums = conv2d_accumulate(centered.astype(np.int16), values, w_zero_point=weight.zero_point, window=window, groups=groups)
    is_nchw = layout == "NCHW"
    order = (0, 3, 1, 2) if is_nchw else (0, 1, 2, 3)
    y = result_of(tuple(sums.shape[axis] for axis in order), 16, ending)
    want = np.ascontiguousarray(expected(sums, weight, scale, y).transpose(order))
    op = Conv2dOp(
        x=DynamicTensor(name="x", shape=tuple(shape[axis] for axis in order), style=style, scales=scales),
        weight=weight,
        y=y,
        accumulator_bits=32,
        layout=layout,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )
    return Case(op, {"x": np.ascontiguousarray(x.transpose(order))}, want, nhwc, isa)


def matmul_cases():
    for style, ending in itertools.product(STYLES, ("fused", "stepwise", "sums")):
        yield matmul_case(style, (5, 33), 17, ending, zero_points=ending != "fused")
    yield matmul_case("onnx", (3, 4, 64), 32, "stepwise")
    yield matmul_case("litert", (3, 4, 64), 32, "fused")
    yield matmul_case("onnx", (1, 64), 32, "sums", unit=1e-45)  # whose steps are too small for a float
    yield matmul_case("torch", (1, 5, 2000), 8, "fused")
    yield matmul_case("litert", (4, 9000), 4, "fused")
    yield matmul_case("torch-rows", (3, 4, 64), 32, "fused")


def strange_cases():
    """Rows with what is no finite number, whose results are NaN, behind a clamp, too."""
    for strange, style in itertools.product((np.nan, np.inf, -np.inf), ("litert", "torch-rows", "torch-symmetric")):
        yield matmul_case(style, (3, 9000), 4, "fused", strange=strange)
    yield matmul_case("torch-rows", (3, 2, 64), 32, "stepwise", strange=np.nan)


def conv2d_cases():
    for style, groups in itertools.product(("litert", "onnx", "torch-symmetric"), (1, 2, 8)):
        yield conv2d_case(style, "NHWC", groups, "fused")
        yield conv2d_case(style, "NCHW", groups, "stepwise", nhwc=("x",) if groups == 2 else ())
    yield conv2d_case("onnx", "NCHW", 1, "sums")


def test_products_are_those_of_the_definition():
    assert parts_of(9000) > 1
    assert wrong(list(matmul_cases())) == []


def test_rows_that_are_not_finite_give_nan():
    cases = list(strange_cases())
    for case, got in zip(cases, results(cases), strict=True):
        assert np.isnan(case.want[-1]).any()
        np.testing.assert_array_equal(got, case.want)  # one NaN is as good as another


def test_convolutions_are_those_of_the_definition():
    assert wrong(list(conv2d_cases())) == []


@pytest.mark.parametrize("name", ISAS)
def test_each_generation_gives_the_same(name):
    cases = [*list(matmul_cases())[::5], *list(conv2d_cases())[::4]]
    assert wrong([replace(case, isa=ISAS[name]) for case in cases]) == []


@pytest.mark.parametrize(("check", "seed"), [("races", 1), ("addresses", 2)])
def test_they_read_and_write_their_own_memory(check, seed, monkeypatch):
    monkeypatch.setattr(dynamic_kernels, "_PART", 512)  # a row of two parts has few threads: each costs a millisecond
    assert parts_of(520) > 1
    cases = [*list(matmul_cases())[1:22:7], matmul_case("litert", (1, 520), 4, "fused"), *list(conv2d_cases())[1::5]]
    assert wrong(cases, check=check, seed=seed) == []


def test_two_products_of_one_input_quantize_it_once():
    case = matmul_case("onnx", (3, 40), 16, "fused")
    emission = Emission(isa=SM_80)
    x = Value(buffer=Buffer(case.inputs["x"].nbytes, "input", 0), shape=(3, 40), dtype="float32")
    emit = emitter_of(case.op, ResultType(case.want.shape, "float32"))
    for _ in range(2):
        emit(case.op, emission, {"x": x})
    names = [kernel.name for kernel, _ in emission.steps]
    assert [names.count(f"{what}_at_run_time") for what in ("range", "parameters", "quantize", "result")] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    "x",
    [DynamicTensor(name="x", shape=(1, 70000), style="onnx", scales=1), tensor("x", (1, 70000), "uint8", 0.1, 0)],
    ids=["at run time", "before"],
)
def test_sums_that_could_leave_int32_are_refused(x):
    weight = weight_of(np.full((70000, 1), 127, np.int8), False)
    op = MatmulOp(x=x, weight=weight, y=result_of((1, 1), 1, "fused"), accumulator_bits=32)
    values = np.zeros((1, 70000), np.float32 if isinstance(x, DynamicTensor) else np.uint8)
    with pytest.raises(CompileError, match="y"):
        emitted(Case(op, {"x": values}, np.zeros((1, 1), np.float32)))
