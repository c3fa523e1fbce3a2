"""Products of two quantized activations run as integers and equal the oracle bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of, takes_views
from octavo.compiler.backends.cpu.link import link
from octavo.ir.graph.dataflow import DataflowView, call_to
from octavo.ir.qdq.matchers.matmul import match_batch_matmul
from octavo.runtime.llvm_host import host_target
from octavo.target import BATCH_MATMUL, CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())


def records(module):
    return lower(module, CPU, ISAS, 1).records


def product(dtype: str, a_shape, b_shape, *, adjoint: bool = False, constant: np.ndarray | None = None):
    """quantize(a @ b), or a @ transposed b: what attention computes of queries and keys."""

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        a = qdq.dequantize("a", params["a"], (0.05, 3))
        b = qdq.weight("b", constant, 0.02, 7) if constant is not None else qdq.dequantize("b", params["b"], (0.02, 7))
        if adjoint:
            axes = [*range(len(b_shape) - 2), len(b_shape) - 1, len(b_shape) - 2]
            b = writer.emit("bt", relax.op.permute_dims(b, axes))
        return qdq.quantize("y", writer.emit("mm", relax.op.matmul(a, b)), (0.15, 5), is_output=True)

    inputs = {"a": (a_shape, dtype)} | ({} if constant is not None else {"b": (b_shape, dtype)})
    return graph(inputs, body)


@pytest.mark.parametrize(
    ("dtype", "a_shape", "b_shape", "adjoint"),
    [
        ("int8", (5, 9), (9, 17), False),
        ("uint8", (5, 9), (9, 17), False),
        ("int8", (2, 5, 9), (2, 17, 9), True),
        ("uint8", (2, 3, 4, 8), (2, 3, 8, 20), False),
        ("int8", (2, 3, 4, 8), (3, 20, 8), True),
    ],
)
def test_equals_the_oracle(dtype, a_shape, b_shape, adjoint):
    rng = np.random.default_rng(1)
    low, high = numerics.INTEGER_RANGE[dtype]
    a, b = (rng.integers(low, high + 1, shape).astype(dtype) for shape in (a_shape, b_shape))
    module = product(dtype, a_shape, b_shape, adjoint=adjoint)
    found = records(module)
    assert [record.op for record in found if record.macs] == ["batch_matmul"]
    assert all(record.integer for record in found)
    zeros = {"a_zero_point": 3, "b_zero_point": 7, "zero_point": 5}
    multiplier = numerics.requantize_multiplier(0.05, 0.02, 0.15)
    bounds = {"qmin": low, "qmax": high, "out_dtype": dtype}
    want = numerics.batch_matmul(a, b.swapaxes(-1, -2) if adjoint else b, multiplier=multiplier, **zeros, **bounds)
    for isa in ISAS:
        np.testing.assert_array_equal(run_lowered(module, a, b, isa=isa), want)
    assert np.abs(run_float(module, a, b).astype(int) - want).max() <= 1


def test_a_constant_of_several_batches():
    rng = np.random.default_rng(2)
    a, b = rng.integers(-128, 128, (2, 5, 9)).astype(np.int8), rng.integers(-128, 128, (2, 9, 6)).astype(np.int8)
    module = product("int8", a.shape, b.shape, constant=b)
    assert [record.integer for record in records(module)] == [True]
    zeros = {"a_zero_point": 3, "b_zero_point": 7, "zero_point": 5}
    bounds = {"qmin": -128, "qmax": 127, "out_dtype": "int8"}
    want = numerics.batch_matmul(a, b, multiplier=numerics.requantize_multiplier(0.05, 0.02, 0.15), **zeros, **bounds)
    np.testing.assert_array_equal(run_lowered(module, a), want)


def test_a_float_product_reads_what_a_constant_of_several_batches_stands_for():
    """Whether what it multiplies stayed float, or only its weights are integers."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(3, 5, 9)).astype(np.float32), rng.integers(-128, 128, (3, 9, 8)).astype(np.int8)

    def body(writer, params):
        weight = Qdq(writer, "int8").weight("b", b, 0.02, 7)
        return writer.emit("mm", relax.op.matmul(params["a"], weight), is_output=True)

    module = graph({"a": (a.shape, "float32")}, body)
    assert [record.integer for record in records(module)] == [False]
    exact = a.astype(np.float64) @ ((b.astype(np.float64) - 7) * np.float32(0.02))
    np.testing.assert_allclose(run_lowered(module, a), exact, rtol=0, atol=2e-6 * np.abs(exact).max())


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "reason"),
    [
        ((1, numerics.BATCH_MATMUL_MAX_INNER + 1), (numerics.BATCH_MATMUL_MAX_INNER + 1, 1), "may exceed int32"),
        ((2, 4), (4,), "at least two axes"),
    ],
)
def test_what_the_kernel_cannot_take_says_why(a_shape, b_shape, reason):
    view = DataflowView(product("int8", a_shape, b_shape)["main"])
    (core,) = [binding.var for binding in view.bindings if binding.var.name == "mm"]
    support = CPU.support(BATCH_MATMUL)
    assert support is not None
    assert reason in match_batch_matmul(view, core, support).reason


def test_a_transposed_operand_is_read_where_it_lies():
    lowered = lower(product("uint8", (2, 5, 64), (2, 17, 64), adjoint=True), CPU, ISAS, 1)
    calls = [binding.value for binding in DataflowView(link(lowered, host_target())["main"]).bindings]
    names = [call.args[0].name_hint for call in calls if call_to(call, "call_tir") is not None]
    transposed = [name for name in names if lowered.kernels[name].name == "transpose"]
    assert len(transposed) == (0 if takes_views(64, isa=ISAS[0]) else 1)
