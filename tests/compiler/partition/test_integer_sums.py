"""Ops over int32 operands, as ConvInteger and MatMulInteger have them, run on integer kernels: sums bit for bit, or scaled."""

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
from qdq_graph import graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())
INT32 = {"out_dtype": "int32"}


class Steps:
    """Binds each step to a variable with a number."""

    def __init__(self, writer):
        self.writer = writer
        self.count = 0

    def __call__(self, value):
        self.count += 1
        return self.writer.emit(f"t{self.count}", value)

    def centered(self, value, zero_point):
        wide = self(relax.op.astype(value, "int32"))
        return self(relax.op.subtract(wide, zero_point if isinstance(zero_point, relax.Expr) else relax.const(zero_point)))

    def result(self, value):
        return self.writer.emit("y", value, is_output=True)


def values(rng, shape, dtype):
    low, high = numerics.INTEGER_RANGE[dtype]
    return rng.integers(low, high + 1, shape).astype(dtype)


def check(module, inputs, want, ops, *, tvm_too=True):
    found = lower(module, CPU, ISAS, 1).records
    assert [record.op for record in found] == ops, [record.reason for record in found]
    assert all(record.integer for record in found)
    for isa in ISAS:
        np.testing.assert_array_equal(run_lowered(module, *inputs, isa=isa), want)
    if tvm_too:
        np.testing.assert_array_equal(run_float(module, *inputs), want)


@pytest.mark.parametrize(
    ("dtypes", "groups", "has_bias"), list(AllPairs([[("uint8", "int8"), ("int8", "uint8")], [1, 2, 8], [False, True]]))
)
def test_conv2d_leaves_its_sums(dtypes, groups, has_bias):
    rng = np.random.default_rng(groups)
    x, w = values(rng, (2, 6, 7, 8), dtypes[0]), values(rng, (3, 3, 8 // groups, 16), dtypes[1])
    zeros = rng.integers(100, 120, 16).astype(np.int32)
    bias = rng.integers(-(10**6), 10**6, 16).astype(np.int32)
    window = {"padding": (1, 0, 1, 2), "strides": (2, 1)}

    def body(writer, params):
        steps = Steps(writer)
        weight = relax.const(np.ascontiguousarray(w.transpose(3, 2, 0, 1)))
        operands = steps.centered(params["x"], np.int32(17)), steps.centered(weight, zeros.reshape(16, 1, 1, 1))
        sums = relax.op.nn.conv2d(*operands, **window, groups=groups, **INT32)
        if has_bias:
            sums = relax.op.add(steps(sums), relax.const(bias.reshape(1, 16, 1, 1)))
        return steps.result(sums)

    offset = bias if has_bias else None
    given = {"bias": offset, "window": numerics.Window(**window), "groups": groups}
    want = numerics.conv2d_accumulate(x, w, x_zero_point=17, w_zero_point=zeros, **given)
    module = graph({"x": ((2, 8, 6, 7), dtypes[0])}, body)
    check(module, [np.ascontiguousarray(x.transpose(0, 3, 1, 2))], want.transpose(0, 3, 1, 2), ["conv2d"])


def test_sums_and_the_same_sums_scaled_to_reals_and_to_integers():
    """Cast, Mul, Add and QuantizeLinear behind sums join their kernel; what else reads an operand makes no difference."""
    rng = np.random.default_rng(0)
    x, w = values(rng, (2, 3, 33), "int8"), values(rng, (33, 17), "uint8")
    scale, bias = rng.uniform(1e-4, 1e-3, 17).astype(np.float32), rng.normal(size=17).astype(np.float32)
    offset = rng.integers(-5000, 5000, 17).astype(np.int32)

    def body(writer, params):
        steps = Steps(writer)
        operand = steps.centered(params["x"], np.int32(-5))
        results = []
        for number in range(3):
            weight = steps.centered(relax.const(w), np.int32(131))
            sums = steps(relax.op.matmul(operand, weight, **INT32))
            if number:
                sums = steps(relax.op.add(sums, relax.const(offset))) if number == 2 else sums
                real = steps(relax.op.multiply(steps(relax.op.astype(sums, "float32")), relax.const(scale)))
                sums = steps(relax.op.nn.relu(steps(relax.op.add(real, relax.const(bias))) if number == 1 else real))
            if number == 2:
                sums = steps(relax.op.quantize(sums, relax.const(np.float32(0.02)), relax.const(np.int32(3)), out_dtype="uint8"))
            results.append(writer.emit(f"y{number}", sums, is_output=True))
        return relax.Tuple(results)

    module = graph({"x": ((2, 3, 33), "int8")}, body)
    sums = numerics.matmul_accumulate(x, w, x_zero_point=-5, w_zero_point=131)
    multiplier = numerics.requantize_multiplier(np.float32(1), scale, np.float32(0.02))
    want = [
        sums,
        numerics.dequantize_accumulator(sums, scale, bias, low=0.0, rounding="stepwise"),
        numerics.requantize(sums + offset, multiplier, 3, 3, 255, "uint8"),
    ]
    records = lower(module, CPU, ISAS, 1).records
    assert [(record.op, record.integer) for record in records] == [("matmul", True)] * 3, [r.reason for r in records]
    for isa in ISAS:
        for got, expected in zip(run_lowered(module, x, isa=isa), want, strict=True):
            np.testing.assert_array_equal(got, expected)


def test_sums_of_an_input_quantized_at_run_time():
    rng = np.random.default_rng(1)
    w, x = values(rng, (20, 9), "int8"), rng.normal(size=(5, 20)).astype(np.float32)

    def body(writer, params):
        steps = Steps(writer)
        value = write_dynamic(params["x"], (5, 20), "onnx", steps)
        operand = steps.centered(value.integers, value.zero_point)
        return steps.result(relax.op.matmul(operand, steps(relax.op.astype(relax.const(w), "int32")), **INT32))

    parameters = dynamic.dynamic_parameters(x.reshape(1, -1), "onnx")
    integers = dynamic.dynamic_quantize(x.reshape(1, -1), parameters, "onnx").reshape(x.shape)
    want = numerics.matmul_accumulate(integers, w, x_zero_point=int(parameters[0, 1]))
    check(graph({"x": ((5, 20), "float32")}, body), [x], want, ["matmul"], tvm_too=False)


@pytest.mark.parametrize("scaled", [False, True])
def test_products_of_two_activations(scaled):
    rng = np.random.default_rng(2)
    a, b = values(rng, (2, 3, 5, 9), "uint8"), values(rng, (3, 9, 18), "int8")

    def body(writer, params):
        steps = Steps(writer)
        operands = steps.centered(params["a"], np.int32(7)), steps.centered(params["b"], np.int32(-8))
        sums = relax.op.matmul(*operands, **INT32)
        if scaled:
            sums = relax.op.multiply(steps(relax.op.astype(steps(sums), "float32")), relax.const(np.float32(0.01)))
        return steps.result(sums)

    module = graph({"a": ((2, 3, 5, 9), "uint8"), "b": ((3, 9, 18), "int8")}, body)
    want = numerics.batch_matmul_accumulate(a, b, a_zero_point=7, b_zero_point=-8)
    check(
        module,
        [a, b],
        numerics.dequantize_accumulator(want, np.float32(0.01), np.float32(0)) if scaled else want,
        ["batch_matmul"],
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("zero_point", "no 8-bit tensor less its constant zero point"),
        ("rows", "zero points of its own for each row"),
        ("target", "read as it is, not scaled to float"),
    ],
)
def test_other_forms_say_why_they_stay(change, reason):
    x, w = np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones((3, 4), np.int8)

    def body(writer, params):
        steps = Steps(writer)
        zeros = {"zero_point": params["z"], "rows": np.int32([[1], [2]]), "target": np.int32(1)}[change]
        operand = steps.centered(params["x"], zeros)
        return steps.result(relax.op.matmul(operand, steps(relax.op.astype(relax.const(w), "int32")), **INT32))

    module = graph({"x": ((2, 3), "uint8"), "z": ((), "int32")}, body)
    target = replace(CPU, ops=tuple(replace(op, sum_output=False) for op in CPU.ops)) if change == "target" else CPU
    reasons = [record.reason for record in lower(module, target, ISAS, 1).records if record.op == "matmul"]
    assert len(reasons) == 1, reasons
    assert reason in reasons[0]
    z = np.array(1, np.int32)
    np.testing.assert_array_equal(run_lowered(module, x, z), run_float(module, x, z))
