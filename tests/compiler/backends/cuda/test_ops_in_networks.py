"""Ops of whole networks on GPUs that are emulated: kernels of ours alone, and the CPU's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from emulated_runner import EmulatedRunner, emulation
from tvm import relax

import octavo
from octavo.compiler.backends.cuda.backend import backend_of
from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.partition.pipeline import partition_module
from octavo.ir.qdq.dynamic import write_dynamic
from qdq_graph import Qdq, graph, round_as, run_lowered

op: Any = relax.op
ISA = "cuda.sm_80"
PARAMS = (0.05, 7)


def check(module: tvm.IRModule, *inputs: np.ndarray, isa: str = ISA) -> octavo.Explanation:
    """Compare a network on a GPU with it on the CPU, and return what is said of its ops."""
    model = octavo.load(module)
    executable = emulation(model, isa)
    named = {spec.source_name: value for spec, value in zip(executable.inputs, inputs, strict=True)}
    expected, found = octavo.compile(model)(named), executable(named)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        assert found[name].tobytes() == value.tobytes(), name
    explanation = octavo.explain(executable)
    assert {each.isa for each in explanation.ops} == {isa}, [each for each in explanation.ops if each.isa != isa]
    return explanation


def places_and_values(writer: Any, inputs: dict[str, Any]) -> Any:
    qdq = Qdq(writer, "int8")
    x = qdq.dequantize("x", inputs["x"], PARAMS)
    values = qdq.quantize("values", writer.emit("best", op.topk(x, 3, 1, "values", True)), PARAMS, is_output=True)
    places = writer.emit("places", op.topk(x, 2, -1, "indices", False, "int64"), is_output=True)
    classes = writer.emit("classes", op.argmax(x, axis=1), is_output=True)
    least = writer.emit("least", op.astype(writer.emit("least_place", op.argmin(x, keepdims=True)), "int32"), is_output=True)
    return relax.Tuple([values, places, classes, least])


@pytest.mark.parametrize("isa", ISAS)
def test_places_are_integers_of_the_dtype_that_the_network_asks_for(rng: np.random.Generator, isa: str) -> None:
    x = rng.integers(-128, 128, (2, 6, 5, 4)).astype(np.int8)
    found = check(graph({"x": (x.shape, "int8")}, places_and_values), x, isa=isa)
    assert [each.op for each in found.ops] == ["topk", "topk", "place", "place"]


def rows_over_norms(writer: Any, inputs: dict[str, Any]) -> Any:
    qdq = Qdq(writer, "int8")
    x = qdq.dequantize("x", inputs["x"], PARAMS)
    total = writer.emit("total", op.sum(writer.emit("squares", op.multiply(x, x)), axis=[1], keepdims=True))
    quotient = writer.emit("divided", op.divide(x, writer.emit("norm", op.sqrt(total))))
    return qdq.quantize("y", quotient, (1 / 128, 0), is_output=True)


def logarithms(writer: Any, inputs: dict[str, Any]) -> Any:
    qdq = Qdq(writer, "int8")
    return qdq.quantize(
        "y", writer.emit("log", op.nn.log_softmax(qdq.dequantize("x", inputs["x"], PARAMS))), (1 / 16, 127), is_output=True
    )


@pytest.mark.parametrize("rounding", ["half_even", "fixed_point"])
def test_rows_over_their_norm(rng: np.random.Generator, rounding: str) -> None:
    x = rng.integers(-128, 128, (2, 21, 5, 4)).astype(np.int8)
    module = round_as(graph({"x": (x.shape, "int8")}, rows_over_norms), rounding)
    assert [each.op for each in check(module, x).ops] == ["l2_normalize"]


def test_logarithms_of_softmax(rng: np.random.Generator) -> None:
    x = rng.integers(-128, 128, (3, 37)).astype(np.int8)
    assert [each.op for each in check(graph({"x": (x.shape, "int8")}, logarithms), x).ops] == ["log_softmax"]


def sum_with_a_float(writer: Any, inputs: dict[str, Any]) -> Any:
    qdq = Qdq(writer, "int8")
    total = writer.emit("total", op.add(inputs["real"], qdq.dequantize("x", inputs["x"], PARAMS)))
    return qdq.quantize("y", writer.emit("bent", op.nn.silu(total)), (0.04, -50), is_output=True)


def test_a_function_of_a_float_tensor_and_integers(rng: np.random.Generator) -> None:
    x, real = rng.integers(-128, 128, (2, 5, 12)).astype(np.int8), rng.normal(0, 3, (2, 5, 12)).astype(np.float32)
    module = graph({"x": (x.shape, "int8"), "real": (real.shape, "float32")}, sum_with_a_float)
    assert [each.kernel for each in check(module, x, real).ops] == ["mixed_elementwise"]


def attention(writer: Any, inputs: dict[str, Any]) -> Any:
    qdq = Qdq(writer, "int8")
    queries, keys, values = (qdq.dequantize(name, inputs[name], PARAMS) for name in ("queries", "keys", "values"))
    turned = writer.emit("turned", op.permute_dims(keys, [0, 1, 3, 2]))
    turned = qdq.dequantize("turned", qdq.quantize("turned", turned, PARAMS), PARAMS)
    scores = qdq.quantize("scores", writer.emit("scores", op.matmul(queries, turned)), (0.2, 5))
    scores = qdq.dequantize("scores", scores, (0.2, 5))
    shares = qdq.quantize("shares", writer.emit("shares", op.nn.softmax(scores)), (1 / 256, -128))
    mixed = writer.emit("mixed", op.matmul(qdq.dequantize("shares", shares, (1 / 256, -128)), values), is_output=True)
    return relax.Tuple([mixed, qdq.quantize("y", mixed, PARAMS, is_output=True)])


@pytest.mark.parametrize("isa", ISAS)
def test_attention(rng: np.random.Generator, isa: str) -> None:
    shape = (2, 3, 17, 16)
    tensors = [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(3)]
    module = graph(dict.fromkeys(("queries", "keys", "values"), (shape, "int8")), attention)
    kernels = [each.kernel for each in check(module, *tensors, isa=isa).ops if each.op == "batch_matmul"]
    assert kernels == ["batch_matmul_gemm"] * 2


TRANSPOSED: dict[str, dict[str, Any]] = {
    "upsampling": {"kernel": (2, 2), "strides": (2, 2)},
    "no phase lacks taps": {"kernel": (4, 4), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    "output padding": {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "output_padding": (1, 1)},
    "stride beyond the kernel": {"kernel": (2, 1), "strides": (3, 2), "output_padding": (2, 0)},
    "dilation": {"kernel": (1, 5), "strides": (1, 4), "padding": (0, 2, 0, 1), "dilation": (1, 2)},
    "drops whole pixels": {"kernel": (3, 3), "strides": (2, 2), "padding": (5, 4, 3, 6)},
    "groups": {"kernel": (4, 3), "strides": (2, 3), "padding": (1, 0, 1, 0), "groups": 2, "channels": (6, 8)},
    "depthwise": {"kernel": (4, 4), "strides": (2, 2), "padding": (1, 1, 1, 1), "groups": 17, "channels": (17, 17)},
}


def transposed(rng: np.random.Generator, layout: str, attributes: dict[str, Any]) -> tvm.IRModule:
    """Two transposed convolutions of one input: of integers, and of floats behind a bias."""
    rest = dict(attributes)
    kernel, (channels, outputs), groups = rest.pop("kernel"), rest.pop("channels", (5, 18)), rest.get("groups", 1)
    weights = [rng.integers(-128, 128, (channels, outputs // groups, *kernel)).astype(np.int8) for _ in range(2)]
    zero_points = rng.integers(-128, 128, channels if groups == channels else outputs // groups).astype(np.int32)
    scale, axis = np.linspace(0.004, 0.009, zero_points.size).astype(np.float32), 0 if groups == channels else 1
    bias = rng.normal(0, 1, (1, 1, 1, outputs) if layout == "NHWC" else (1, outputs, 1, 1)).astype(np.float32)

    def body(writer: Any, inputs: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", inputs["x"], (0.05, 7))
        sums = []
        for number, values in enumerate(weights):
            w = qdq.weight(f"w{number}", values, scale, zero_points, axis)
            product = op.nn.conv2d_transpose(x, w, **rest, data_layout=layout, kernel_layout="IOHW")
            sums.append(writer.emit(f"sum{number}", product))
        real = writer.emit("real", op.add(sums[1], relax.const(bias)), is_output=True)
        return relax.Tuple([qdq.quantize("y", writer.emit("z", op.nn.relu(sums[0])), (0.4, 131), is_output=True), real])

    shape = (2, 5, 6, channels) if layout == "NHWC" else (2, channels, 5, 6)
    return graph({"x": (shape, "uint8")}, body)


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(rng: np.random.Generator, case: str) -> None:
    layout = "NHWC" if case in ("upsampling", "groups") else "NCHW"
    module = transposed(rng, layout, TRANSPOSED[case])
    x = rng.integers(0, 256, [int(size) for size in module["main"].params[0].ty.shape]).astype(np.uint8)
    isa = {"upsampling": "cuda.sm_61", "groups": "cuda.sm_75", "depthwise": "cuda.sm_90a"}.get(case, ISA)
    assert {each.op for each in check(module, x, isa=isa).ops} == {"conv2d_transpose"}


def layers_of_run_time(writer: Any, inputs: dict[str, Any]) -> Any:
    """A convolution with one scale for its input, and a product with one for each row of its own."""
    rng, names = np.random.default_rng(1), (f"q{number}" for number in range(100))

    def emitted(value: Any) -> Any:
        return writer.emit(next(names), value)

    def dequantized(x: Any, shape: tuple[int, ...], style: Any) -> Any:
        value = write_dynamic(x, shape, style, emitted)
        return emitted(op.dequantize(value.integers, value.scale, value.zero_point, axis=0))

    qdq, scale = Qdq(writer, "int8"), rng.uniform(0.001, 0.02, 16).astype(np.float32)
    w = qdq.weight("w", rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8), scale, axis=0)
    conv = emitted(op.nn.conv2d(dequantized(inputs["x"], (2, 8, 6, 7), "onnx"), w, padding=1))
    pooled = emitted(op.mean(emitted(op.nn.relu(conv)), axis=[2, 3]))
    v = qdq.weight("v", rng.integers(-127, 128, (16, 10)).astype(np.int8), scale[:10], axis=1)
    product = writer.emit("y", op.matmul(dequantized(pooled, (2, 16), "litert"), v), is_output=True)
    return relax.Tuple([product, writer.emit("pooled", op.nn.relu(pooled), is_output=True)])


def test_inputs_quantized_at_run_time(rng: np.random.Generator) -> None:
    x, module = rng.normal(0, 3, (2, 8, 6, 7)).astype(np.float32), graph({"x": ((2, 8, 6, 7), "float32")}, layers_of_run_time)
    backend = backend_of(ISA)
    lowered = backend.lower(partition_module(module, backend.description, float_kernels=False))
    assert [each.integer for each in lowered.records if each.op in ("conv2d", "matmul")] == [True, True]
    found = EmulatedRunner(lowered.plan, lowered.outputs)([tvm.runtime.tensor(x)])
    for got, want in zip(found, run_lowered(module, x), strict=True):  # the mean between them is float
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)


def channels_of_their_own(dtype: str, multiplier: int, padding: list[int]) -> tvm.IRModule:
    """Depthwise convolutions of integers with a scale and a zero point for each channel, to integers and to floats."""
    rng, low, channels = np.random.default_rng(8), -128 if dtype == "int8" else 0, 6
    scale = relax.const(np.linspace(0.02, 0.09, channels).astype(np.float32))
    zero_points = relax.const((np.array([0, 3, 200, 255, 128, 90]) + low).astype(np.int32))
    outputs = channels * multiplier
    weights = [rng.integers(-60, 60, (outputs, 1, 3, 5)).astype(np.int8) for _ in range(3)]
    bias = rng.normal(size=(1, outputs, 1, 1)).astype(np.float32)

    def body(writer: Any, inputs: dict[str, Any]) -> Any:
        qdq = Qdq(writer, "uint8")
        x = writer.emit("x_f", op.dequantize(inputs["x"], scale, zero_points, axis=1))
        sums = []
        for number, values in enumerate(weights):
            w = qdq.weight(f"w{number}", values, np.linspace(0.01, 0.02, outputs))
            sums.append(writer.emit(f"sum{number}", op.nn.conv2d(x, w, padding=padding, groups=channels)))
        y = qdq.quantize("y", sums[0], (0.4, 120), is_output=True)
        z = qdq.quantize("z", writer.emit("z", op.add(sums[1], relax.const(bias))), (0.4, 120), is_output=True)
        return relax.Tuple([y, z, writer.emit("real", op.add(sums[2], relax.const(bias)), is_output=True)])

    return graph({"x": ((2, channels, 7, 7), dtype)}, body)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize(("multiplier", "padding"), [(1, [1, 2, 0, 3]), (2, [0, 0, 0, 0])])
def test_channels_with_zero_points_of_their_own(
    rng: np.random.Generator, dtype: str, multiplier: int, padding: list[int]
) -> None:
    module = channels_of_their_own(dtype, multiplier, padding)
    x = rng.integers(0, 256, (2, 6, 7, 7)).astype(np.uint8).view(dtype)
    assert [each.op for each in check(module, x).ops] == ["conv2d"] * 3
