"""multiply, subtract and broadcast additions, lowered: the oracle bit for bit, constants and both layouts included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from allpairspy import AllPairs
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, round_as, run_lowered, side_by_side

op: Any = relax.op
ISAS = isas_of(host_target())
OPS = {"add": op.add, "sub": op.subtract, "mul": op.multiply}
A, B, Y = (0.021, 3), (0.034, -7), (0.05, 11)
MOVED = {"int8": 0, "uint8": 128}


def oracle(kind: str, a: np.ndarray, b: np.ndarray, dtype: str, qmin: int | None, rounding: str) -> np.ndarray:
    moved = MOVED[dtype]
    low, high = numerics.INTEGER_RANGE[dtype]
    result = {"zero_point": Y[1] + moved, "qmin": low if qmin is None else qmin, "qmax": high, "dtype": dtype}
    if kind == "mul":
        multiplier = float(numerics.requantize_multiplier(A[0], B[0], Y[0]))
        return numerics.mul(a, b, a_zero_point=A[1] + moved, b_zero_point=B[1] + moved, multiplier=multiplier, **result)
    if rounding == "half_even":
        constants = (A[0], A[1] + moved, B[0], B[1] + moved, Y[0], result.pop("zero_point"))
        return numerics.float_sum(a, b, numerics.float_sum_parameters(*constants, subtract=kind == "sub", stored=False), **result)
    common = {"a_scale": A[0], "b_scale": B[0], "out_scale": Y[0]}
    return numerics.add(a, b, subtract=kind == "sub", a_zero_point=A[1] + moved, b_zero_point=B[1] + moved, **common, **result)


def case(kind: str, dtype: str, a_shape, b_shape, *, constant: bool = False, relu: bool = False, seed: int = 0, rounding: str):
    rng = np.random.default_rng(seed)
    low, high = numerics.INTEGER_RANGE[dtype]
    moved = MOVED[dtype]
    a, b = (rng.integers(low, high + 1, shape).astype(dtype) for shape in (a_shape, b_shape))

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("a", params["a"], (A[0], A[1] + moved))
        y = qdq.dequantize("b", relax.const(b) if constant else params["b"], (B[0], B[1] + moved))
        value = writer.emit("core", OPS[kind](x, y))
        value = writer.emit("act", op.nn.relu(value)) if relu else value
        return qdq.quantize("y", value, (Y[0], Y[1] + moved), is_output=True)

    inputs = {"a": (a_shape, dtype)} if constant else {"a": (a_shape, dtype), "b": (b_shape, dtype)}
    module = round_as(graph(inputs, body), rounding)
    want = oracle(kind, a, b, dtype, Y[1] + moved if relu else None, rounding)
    return module, ([a] if constant else [a, b]), want


SHAPES = [
    ((2, 3, 5, 8), (2, 3, 5, 8)),
    ((2, 8, 3, 5), (2, 8, 1, 1)),
    ((2, 1, 1, 8), (2, 3, 5, 8)),
    ((2, 3, 5, 8), (8,)),
    ((1, 8, 3, 5), (8, 1, 1)),
    ((6, 7), ()),
]


KINDS = [*((kind, "half_even") for kind in OPS), ("add", "half_up"), ("sub", "half_up")]


@pytest.mark.parametrize(("how", "constant", "dtype"), list(AllPairs([KINDS, [False, True], ["int8", "uint8"]])))
def test_equals_the_oracle(how: tuple[str, str], constant: bool, dtype: str) -> None:
    """The ISAs take turns: each meets every op, and every pair of shapes with some; all with all is for the kernels' tests."""
    kind, rounding = how
    turn = 2 * constant + (dtype == "uint8")
    for first, isa in enumerate(ISAS):
        seeds = range((first - turn) % len(ISAS), len(SHAPES), len(ISAS))
        options = {"constant": constant, "rounding": rounding}
        cases = [case(kind, dtype, *SHAPES[seed], relu=seed % 2 == 1, seed=seed, **options) for seed in seeds]
        module = side_by_side([module for module, _, _ in cases])
        records = lower(module, CPU, (isa,), 1).records
        assert [(record.op, record.integer) for record in records] == [(kind, True)] * len(cases), records
        results = run_lowered(module, *(x for _, inputs, _ in cases for x in inputs), isa=isa)
        for got, (_, _, want) in zip(results if len(cases) > 1 else [results], cases, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_gate_in_nchw_stays_in_the_kernels_layout() -> None:
    """Squeeze and excite: two global pools feed a product with the image they come from, no permutation between."""

    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", params["x"], (0.02, 128))
        pooled = writer.emit("pool", op.nn.max_pool2d(x, pool_size=(1, 1)))
        p = qdq.dequantize("p", qdq.quantize("p", pooled, (0.02, 128)), (0.02, 128))
        gate = qdq.quantize("g", writer.emit("mean", op.mean(p, axis=[2, 3], keepdims=True)), (0.01, 100))
        value = writer.emit("gated", op.multiply(p, qdq.dequantize("g", gate, (0.01, 100))))
        return qdq.quantize("y", value, (0.03, 90), is_output=True)

    module = graph({"x": ((1, 16, 6, 6), "uint8")}, body)
    lowered = lower(module, CPU, ISAS, 1)
    assert all(record.integer for record in lowered.records)
    names = sorted(kernel.name for kernel in lowered.kernels.values())
    assert names.count("transpose") == 2  # where the image comes in, and where it goes out


def test_two_constants() -> None:
    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        one, two = (qdq.weight(name, np.full(3, 7, np.uint8), 0.1) for name in ("one", "two"))
        return qdq.quantize("y", writer.emit("core", op.multiply(one, two)), Y, is_output=True)

    (record,) = [r for r in lower(graph({"x": ((1,), "uint8")}, body), CPU, ISAS, 1).records if r.op == "multiply"]
    assert record.reason == "both operands are constants; fold them before loading"
