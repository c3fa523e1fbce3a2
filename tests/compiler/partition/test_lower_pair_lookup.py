"""Functions of two tensors, or of one and constants, become tables of rows: against the float ops, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.numerics import ELEMENTWISE, PerTensor, QuantParams, dequantize, quantize
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered, side_by_side

op: Any = relax.op
ISAS = isas_of(host_target())
f32 = np.float32
A, B, Y = (0.02, 3), (0.03, -5), (0.025, 7)
RANGE = {"int8": (-128, 127), "uint8": (0, 255)}


def params(pair: tuple[float, int], dtype: str) -> QuantParams:
    zero_point = pair[1] + (128 if dtype == "uint8" else 0)
    return QuantParams(dtype=dtype, scale=f32(pair[0]), zero_point=np.int32(zero_point), granularity=PerTensor())


def plain(of: QuantParams) -> tuple[float, int]:
    return float(of.scale), int(of.zero_point)


def integers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(*RANGE[dtype], shape, endpoint=True).astype(dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return ELEMENTWISE["sigmoid"](x)


# name -> (relax of two dequantized tensors, the same in float32)
FUNCTIONS = {
    "maximum": (lambda e, a, b: e(op.maximum(a, b)), np.maximum),
    "divide": (lambda e, a, b: e(op.divide(a, b)), np.divide),
    "squared_difference": (lambda e, a, b: e(op.square(e(op.subtract(a, b)))), lambda a, b: np.square(a - b)),
    "gate": (lambda e, a, b: e(op.multiply(a, e(op.sigmoid(b)))), lambda a, b: a * sigmoid(b)),
    "glu_sum": (lambda e, a, b: e(op.add(a, e(op.nn.relu(e(op.multiply(a, b)))))), lambda a, b: a + np.maximum(a * b, f32(0))),
    "where": (lambda e, a, b: e(op.where(e(op.greater(a, b)), a, e(op.negative(b)))), lambda a, b: np.where(a > b, a, -b)),
}
SHAPES = [((2, 8, 5, 4), (2, 8, 5, 4)), ((2, 8, 5, 4), (2, 8, 1, 1)), ((6, 7), (7,)), ((1, 9), (5, 1, 9))]


def expected(function: Any, a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        real = function(dequantize(a, params(A, dtype)), dequantize(b, params(B, dtype)))
    return quantize(real.astype(np.float32), params(Y, dtype))


def built(function: Any, dtype: str, a_shape: Any, b_shape: Any, constant: np.ndarray | None = None) -> Any:
    def body(writer, inputs):
        qdq = Qdq(writer, dtype)
        count = iter(range(100))
        a = qdq.dequantize("a", inputs["a"], plain(params(A, dtype)))
        other = inputs["b"] if constant is None else relax.const(constant)
        b = qdq.dequantize("b", other, plain(params(B, dtype)))
        result = function(lambda call: writer.emit(f"v{next(count)}", call), a, b)
        return qdq.quantize("y", result, plain(params(Y, dtype)), is_output=True)

    shapes = {"a": (a_shape, dtype)} if constant is not None else {"a": (a_shape, dtype), "b": (b_shape, dtype)}
    return graph(shapes, body)


def ops_of(module: Any) -> list[tuple[str, bool]]:
    return [(record.op, record.integer) for record in lower(module, CPU, ISAS, 1).records]


@pytest.mark.parametrize("dtype", RANGE)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_two_tensors(name: str, dtype: str) -> None:
    relaxed, exact = FUNCTIONS[name]
    pairs = [(integers(a, dtype, seed), integers(b, dtype, seed + 10)) for seed, (a, b) in enumerate(SHAPES)]
    module = side_by_side([built(relaxed, dtype, *shapes) for shapes in SHAPES])
    assert ops_of(module) == [("pair_lookup", True)] * len(SHAPES)
    for got, pair in zip(run_lowered(module, *(x for both in pairs for x in both)), pairs, strict=True):
        np.testing.assert_array_equal(got, expected(exact, *pair, dtype))


@pytest.mark.parametrize("name", ["max", "min"])
def test_order_among_integers_of_one_scale_needs_no_table(name: str) -> None:
    choose, oracle = {"max": (op.maximum, numerics.maximum), "min": (op.minimum, numerics.minimum)}[name]

    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        a, b = (qdq.dequantize(key, inputs[key], Y) for key in "ab")
        return qdq.quantize("y", writer.emit("act", op.nn.relu(writer.emit("core", choose(a, b)))), Y, is_output=True)

    a, b = integers((2, 8, 5, 4), "int8"), integers((8, 1, 1), "int8", 1)
    module = graph({"a": (a.shape, "int8"), "b": (b.shape, "int8")}, body)
    assert ops_of(module) == [(name, True)]
    np.testing.assert_array_equal(run_lowered(module, a, b), oracle(a, b, qmin=Y[1], qmax=127))


@pytest.mark.parametrize("name", ["divide", "gate"])
def test_a_quantized_constant(name: str) -> None:
    relaxed, exact = FUNCTIONS[name]
    a, b = integers((2, 8, 5, 4), "int8"), integers((8, 1, 1), "int8", 5)
    module = built(relaxed, "int8", a.shape, b.shape, constant=b)
    assert ops_of(module) == [("pair_lookup", True)]
    np.testing.assert_array_equal(run_lowered(module, a), expected(exact, a, b, "int8"))


def test_float_constants_of_several_shapes() -> None:
    """A normalization left in float: (x - mean) / deviation, one of each for a channel, and a weight for each column."""
    rng = np.random.default_rng(3)
    mean, deviation = (rng.uniform(0.5, 2, (8, 1, 1)).astype(f32) for _ in range(2))
    weight = rng.uniform(0.5, 2, 4).astype(f32)

    def body(writer, inputs):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", inputs["x"], (0.02, 100))
        centered = writer.emit("centered", op.subtract(x, relax.const(mean)))
        scaled = writer.emit("scaled", op.divide(centered, relax.const(deviation)))
        return qdq.quantize("y", writer.emit("weighted", op.multiply(scaled, relax.const(weight))), (0.03, 90), is_output=True)

    x = integers((1, 8, 5, 4), "uint8")
    module = graph({"x": (x.shape, "uint8")}, body)
    assert ops_of(module) == [("pair_lookup", True)]
    real = (dequantize(x, params((0.02, -28), "uint8")) - mean) / deviation * weight
    np.testing.assert_array_equal(run_lowered(module, x), quantize(real, params((0.03, -38), "uint8")))


@pytest.mark.parametrize("axis", [1, 3])
def test_slopes_along_an_axis(axis: int) -> None:
    shape = (2, 6, 5, 4)
    slopes = np.linspace(-0.3, 0.4, shape[axis]).astype(f32)

    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", inputs["x"], A)
        return qdq.quantize("y", writer.emit("core", op.nn.prelu(x, relax.const(slopes), axis=axis)), Y, is_output=True)

    x = integers(shape, "int8")
    real = dequantize(x, params(A, "int8"))
    aligned = slopes.reshape([-1 if i == axis else 1 for i in range(4)])
    module = graph({"x": (shape, "int8")}, body)
    want = quantize(np.where(real < 0, real * aligned, real), params(Y, "int8"))
    np.testing.assert_array_equal(run_lowered(module, x), want)


def test_a_value_that_two_results_are_computed_from() -> None:
    """A sigmoid that a quantizer left in float and two products read: it is in both tables."""

    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        a, b = (qdq.dequantize(name, inputs[name], pair) for name, pair in (("a", A), ("b", B)))
        gate = writer.emit("gate", op.sigmoid(b))
        one = qdq.quantize("one", writer.emit("gated", op.multiply(a, gate)), Y, is_output=True)
        two = qdq.quantize("two", writer.emit("swish", op.multiply(b, gate)), Y, is_output=True)
        three = qdq.quantize("three", gate, (1 / 256, -128), is_output=True)
        return relax.Tuple([one, two, three])

    a, b = integers((3, 40), "int8"), integers((3, 40), "int8", 1)
    module = graph({"a": (a.shape, "int8"), "b": (b.shape, "int8")}, body)
    assert sorted(ops_of(module)) == [("lookup", True), ("lookup", True), ("pair_lookup", True)]
    real_a, real_b = dequantize(a, params(A, "int8")), dequantize(b, params(B, "int8"))
    wants = [quantize(real * sigmoid(real_b), params(Y, "int8")) for real in (real_a, real_b)]
    wants.append(quantize(sigmoid(real_b), params((1 / 256, -128), "int8")))
    for got, want in zip(run_lowered(module, a, b), wants, strict=True):
        np.testing.assert_array_equal(got, want)


def test_three_tensors_stay_float() -> None:
    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        a, b, c = (qdq.dequantize(name, inputs[name], A) for name in "abc")
        product = writer.emit("product", op.divide(a, b))
        return qdq.quantize("y", writer.emit("sum", op.divide(product, c)), Y, is_output=True)

    reasons = [record.reason for record in lower(graph(dict.fromkeys("abc", ((4,), "int8")), body), CPU, ISAS, 1).records]
    assert "it reads 3 tensors: a, b, c" in reasons
