"""Chains of quantized functions of one tensor: one table, with the bits that the ops' oracles give one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from machine_isas import EVERY_ISA
from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.numerics import ELEMENTWISE, PerTensor, QuantParams
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, round_as, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
SHAPE = (1, 5, 7, 9)
X, S, P, A, Y = (0.05, 9), (1 / 256, -128), (0.04, -100), (0.031, 20), (0.02, -30)
"""Scale and zero point, for int8, of the input, its sigmoid, their product, a sum and the result."""

Stages = dict[str, np.ndarray]


def params_in(params: tuple[float, int], dtype: str) -> tuple[float, int]:
    return params[0], params[1] + (128 if dtype == "uint8" else 0)


def params_of(params: tuple[float, int], dtype: str) -> QuantParams:
    scale, zero_point = params_in(params, dtype)
    return QuantParams(dtype=dtype, scale=np.float32(scale), zero_point=np.int32(zero_point), granularity=PerTensor())


def module_of(dtype: str, *, returned: tuple[str, ...] = (), rounding: str = "half_even", x_shape=SHAPE):
    """y = max(relu(x * sigmoid(x) - 0.2) + x, y), quantized between all of them; the tensors `returned` are results, too."""

    def body(writer, inputs):
        qdq = Qdq(writer, dtype)

        def stage(name: str, value, params) -> Any:
            found = qdq.quantize(name, writer.emit(name, value), params_in(params, dtype), is_output=name in (*returned, "y"))
            stages[name] = found
            return qdq.dequantize(name, found, params_in(params, dtype))

        stages: dict[str, Any] = {}
        x = qdq.dequantize("x", inputs["x"], params_in(X, dtype))
        s = stage("s", op.sigmoid(x), S)
        p = stage("p", op.multiply(s, x), P)
        constant = qdq.weight("c", np.full((1,), 40 if dtype == "int8" else 168, dtype), 0.005, 0 if dtype == "int8" else 128)
        a = stage("a", op.nn.relu(writer.emit("d", op.subtract(p, constant))), A)
        stage("y", op.add(a, x), Y)
        results = [stages[name] for name in (*returned, "y")]
        return relax.Tuple(results) if len(results) > 1 else results[0]

    return round_as(graph({"x": (x_shape, dtype)}, body), rounding, results_of=("add", "subtract"))


def expected(x: np.ndarray, dtype: str, sums: str) -> Stages:
    """The oracles, one after the other."""
    table = numerics.lookup_table(ELEMENTWISE["sigmoid"], params_of(X, dtype), params_of(S, dtype))
    s = numerics.lookup(x, table)
    zero = {name: params_in(params, dtype)[1] for name, params in (("x", X), ("s", S), ("p", P), ("a", A), ("y", Y))}
    low, high = numerics.INTEGER_RANGE[dtype]
    limits = {"qmin": low, "qmax": high, "dtype": dtype}
    factor = float(numerics.requantize_multiplier(S[0], X[0], P[0]))
    zeros = {"a_zero_point": zero["s"], "b_zero_point": zero["x"], "zero_point": zero["p"]}
    p = numerics.mul(s, x, multiplier=factor, **zeros, **limits)
    c, c_zero = np.full((1,), 40 if dtype == "int8" else 168, dtype), 0 if dtype == "int8" else 128
    relu = {**limits, "qmin": zero["a"]}
    if sums == "half_up":
        scales = {"a_scale": P[0], "b_scale": 0.005, "out_scale": A[0]}
        zeros = {"a_zero_point": zero["p"], "b_zero_point": c_zero, "zero_point": zero["a"]}
        a = numerics.add(p, c, subtract=True, **scales, **zeros, **relu)
        scales = {"a_scale": A[0], "b_scale": X[0], "out_scale": Y[0]}
        y = numerics.add(a, x, **scales, a_zero_point=zero["a"], b_zero_point=zero["x"], zero_point=zero["y"], **limits)
    else:
        stored = sums == "half_even_stored"
        constants = (P[0], zero["p"], 0.005, c_zero, A[0], zero["a"])
        a = numerics.float_sum(p, c, numerics.float_sum_parameters(*constants, subtract=True, stored=stored), **relu)
        constants = (A[0], zero["a"], X[0], zero["x"], Y[0], zero["y"])
        y = numerics.float_sum(a, x, numerics.float_sum_parameters(*constants, stored=stored), **limits)
    return {"s": s, "p": p, "a": a, "y": y}


def every(dtype: str, shape=SHAPE) -> np.ndarray:
    low, high = numerics.INTEGER_RANGE[dtype]
    return np.resize(np.arange(low, high + 1), shape).astype(dtype)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("sums", ["half_up", "half_even", "half_even_stored"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_table_has_the_bits_of_all_oracles(dtype: str, sums: str, isa: str) -> None:
    module = module_of(dtype, rounding=sums)
    lowered = lower(module, CPU, (isa,), 1)
    assert [placed.name for placed in lowered.kernels.values() if placed.name != "relabel"] == ["lookup"]
    assert [(record.op, record.integer, record.kernel, record.isa) for record in lowered.records] == [
        (name, True, "lookup", isa) for name in ("lookup", "mul", "sub", "add")
    ]
    np.testing.assert_array_equal(run_lowered(module, every(dtype), isa=isa), expected(every(dtype), dtype, sums)["y"])


@pytest.mark.parametrize("returned", [("s",), ("p",), ("a",), ("s", "a")])
def test_a_tensor_that_others_read_is_computed_still(returned: tuple[str, ...]) -> None:
    module = module_of("uint8", returned=returned)
    want = expected(every("uint8"), "uint8", "half_even")
    results = run_lowered(module, every("uint8"))
    for name, result in zip((*returned, "y"), results, strict=True):
        np.testing.assert_array_equal(result, want[name], err_msg=name)
    lowered = lower(module, CPU, ISAS, 1)
    assert [placed.name for placed in lowered.kernels.values()] == ["lookup"] * (1 + len(returned))


def test_its_attribute_tells_of_the_tensors_inside() -> None:
    ids = {"x", "s", "p", "d", "a", "y"}
    (placed,) = lower(module_of("uint8"), CPU, ISAS, 1, ids).kernels.values()
    info = placed.func.attrs["quantize_info"]
    entries = {str(role): (str(entry["id"]), float(entry["scale"]), int(entry["zero_point"])) for role, entry in info.items()}
    wanted = {"input": ("x_q", X), "inner0": ("s", S), "inner1": ("p", P), "inner2": ("a", A), "output": ("y", Y)}
    assert entries.keys() == wanted.keys()
    for role, (name, params) in wanted.items():
        assert entries[role][0] in (name, "x"), role
        assert entries[role][1:] == pytest.approx(params_in(params, "uint8")), role
    assert {"s", "p", "a", "y"} <= {str(tensor) for tensor in placed.func.attrs["tensor_ids"]}


def test_two_tensors_make_no_table() -> None:
    """A gate of another tensor stays a product; its own sigmoid stays a table."""

    def body(writer, inputs):
        qdq = Qdq(writer, "uint8")
        x, other = (qdq.dequantize(name, inputs[name], params_in(X, "uint8")) for name in ("x", "z"))
        s = qdq.quantize("s", writer.emit("s", op.sigmoid(other)), params_in(S, "uint8"))
        product = writer.emit("p", op.multiply(x, qdq.dequantize("s", s, params_in(S, "uint8"))))
        return qdq.quantize("p", product, params_in(P, "uint8"), is_output=True)

    module = graph({"x": (SHAPE, "uint8"), "z": (SHAPE, "uint8")}, body)
    assert [placed.name for placed in lower(module, CPU, ISAS, 1).kernels.values()] == ["lookup", "mul"]


def test_a_widened_operand_makes_no_table() -> None:
    """A row times its own transpose: elements of two places."""

    def body(writer, inputs):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", inputs["x"], params_in(X, "uint8"))
        t = qdq.quantize("t", writer.emit("t", op.sigmoid(x)), params_in(S, "uint8"))
        wide = writer.emit("w", op.reshape(qdq.dequantize("t", t, params_in(S, "uint8")), (9, 1)))
        w = qdq.dequantize("w", qdq.quantize("w", wide, params_in(S, "uint8")), params_in(S, "uint8"))
        return qdq.quantize("p", writer.emit("p", op.multiply(x, w)), params_in(P, "uint8"), is_output=True)

    module = graph({"x": ((1, 9), "uint8")}, body)
    assert [placed.name for placed in lower(module, CPU, ISAS, 1).kernels.values()] == ["lookup", "mul"]


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("kind", ["add", "subtract", "multiply", "maximum", "minimum"])
def test_a_constant_of_one_element_may_have_any_number_of_axes(kind: str, is_left: bool) -> None:
    def module_with(shape: tuple[int, ...]):
        def body(writer, inputs):
            qdq = Qdq(writer, "uint8")
            x = qdq.dequantize("x", inputs["x"], params_in(X, "uint8"))
            s = qdq.quantize("s", writer.emit("s", op.sigmoid(x)), params_in(S, "uint8"))
            operands = [
                qdq.dequantize("s", s, params_in(S, "uint8")),
                qdq.weight("c", np.full(shape, 90, "uint8"), *params_in(S, "uint8")),
            ]
            result = getattr(op, kind)(*(reversed(operands) if is_left else operands))
            return qdq.quantize("y", writer.emit("y", result), params_in(S, "uint8"), is_output=True)

        return graph({"x": (SHAPE, "uint8")}, body)

    want = run_lowered(module_with((1,)), every("uint8"))
    assert len(np.unique(want)) > 1
    for shape in ((), (1, 1, 1), (1, 1, 1, 1)):
        module = module_with(shape)
        assert [placed.name for placed in lower(module, CPU, ISAS, 1).kernels.values()] == ["lookup"]
        np.testing.assert_array_equal(run_lowered(module, every("uint8")), want)
