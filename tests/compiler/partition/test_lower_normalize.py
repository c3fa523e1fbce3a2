"""x over its norm, the logarithm of a softmax and layer normalization, lowered: the oracle bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.graph.rules import Rejection
from octavo.ir.qdq.matchers.norms import match_l2_normalize
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU, OpSupport
from qdq_graph import Qdq, graph, lower, round_as, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
SHAPES = [((3, 37), -1), ((2, 21, 5, 7), 1)]


def module_of(shape, axis: int, dtype: str, y, *, is_log: bool, least: float | None = None, other: bool = False):
    low, _ = numerics.INTEGER_RANGE[dtype]

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (0.06, low + 90))
        if is_log:
            return qdq.quantize("y", writer.emit("core", op.nn.log_softmax(x, axis=axis)), y, is_output=True)
        addend = qdq.dequantize("z", params["z"], (0.06, low + 90)) if other else x
        total = writer.emit("total", op.sum(writer.emit("squares", op.multiply(x, x)), axis=[axis], keepdims=True))
        norm = writer.emit("norm", op.sqrt(total))
        norm = norm if least is None else writer.emit("bounded", op.maximum(norm, relax.const(np.float32(least))))
        return qdq.quantize("y", writer.emit("core", op.divide(addend, norm)), y, is_output=True)

    return graph({"x": (shape, dtype), **({"z": (shape, dtype)} if other else {})}, body)


def along(function: Any, x: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(function(np.moveaxis(x, axis, -1)), -1, axis)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_equals_the_oracle(shape, axis: int, dtype: str) -> None:
    low, high = numerics.INTEGER_RANGE[dtype]
    x = np.random.default_rng(0).integers(low, high, shape, endpoint=True).astype(dtype)
    bounds = {"qmin": low, "qmax": high, "dtype": dtype}
    module = module_of(shape, axis, dtype, (1 / 128, low + 128), is_log=False, least=1e-6)
    assert [(record.op, record.integer) for record in lower(module, CPU, ISAS, 1).records] == [("l2_normalize", True)]
    about = {"input_zero_point": low + 90, "out_scale": 1 / 128, "zero_point": low + 128}
    want = along(lambda rows: numerics.l2_normalize(rows, **about, **bounds), x, axis)
    np.testing.assert_array_equal(run_lowered(module, x), want)

    module = module_of(shape, axis, dtype, (1 / 16, high), is_log=True)
    assert [(record.op, record.integer) for record in lower(module, CPU, ISAS, 1).records] == [("log_softmax", True)]
    about = {"scale": float(np.float32(0.06)), "out_scale": 1 / 16, "zero_point": high}
    want = along(lambda rows: numerics.log_softmax(rows, **about, **bounds), x, axis)
    np.testing.assert_array_equal(run_lowered(module, x), want)


def test_a_norm_in_fixed_point_where_the_source_takes_it_so() -> None:
    module = module_of((3, 37), -1, "uint8", (1 / 128, 128), is_log=False)
    module = round_as(module, "fixed_point")
    x = np.random.default_rng(0).integers(0, 256, (3, 37)).astype(np.uint8)
    np.testing.assert_array_equal(run_lowered(module, x), numerics.l2_normalize_fixed(x, input_zero_point=90))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"least": 0.5}, "norms below 0.5 count as that"),
        ({"other": True}, "divides by no norm of what it divides"),
        ({"axis": 0}, "neither the last nor the channels"),
    ],
)
def test_what_it_leaves(fields, reason: str) -> None:
    arguments = {"shape": (3, 37), "axis": -1, "dtype": "uint8", "y": (1 / 128, 128), "is_log": False, **fields}
    module = module_of(**arguments)
    assert "l2_normalize" not in [record.op for record in lower(module, CPU, ISAS, 1).records]
    view = DataflowView(module["main"])
    core = next(binding.var for binding in view.bindings if binding.var.name == "core")
    found = match_l2_normalize(view, core, OpSupport(op="divide"))
    assert isinstance(found, Rejection)
    assert reason in found.reason


def layer_norm_of(shape: tuple[int, ...], axis: int, *, constant: bool = True) -> Any:
    gamma, beta = (np.random.default_rng(number).standard_normal(shape[axis]).astype(np.float32) for number in (1, 2))

    def body(writer, params):
        qdq = Qdq(writer, "int8")
        x = qdq.dequantize("x", params["x"], (0.06, -38))
        operands = [relax.const(gamma) if constant else params["z"], relax.const(beta)]
        core = writer.emit("core", op.nn.layer_norm(x, *operands, axes=[axis], epsilon=1e-3))
        return qdq.quantize("y", core, (0.03, 11), is_output=True)

    others = {} if constant else {"z": (gamma.shape, "float32")}
    return graph({"x": (shape, "int8"), **others}, body), gamma, beta


def test_a_layer_normalization_equals_the_oracle_and_nearly_the_float_simulation() -> None:
    module, gamma, beta = layer_norm_of((3, 5, 37), -1)
    assert [(record.op, record.integer) for record in lower(module, CPU, ISAS, 1).records] == [("layer_norm", True)]
    x = np.random.default_rng(0).integers(-128, 128, (3, 5, 37)).astype(np.int8)
    about = {"scale": 0.06, "epsilon": float(np.float32(1e-3)), "out_scale": 0.03, "gamma": gamma, "beta": beta}
    want = numerics.layer_norm((x.astype(np.int16) + 128).astype(np.uint8), **about, zero_point=139)
    got = run_lowered(module, x)
    np.testing.assert_array_equal(got, (want.astype(np.int16) - 128).astype(np.int8))
    difference = np.abs(got.astype(int) - run_float(module, x).astype(int))
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 0.01


@pytest.mark.parametrize(("axis", "constant", "reason"), [(0, True, "it normalizes axes"), (-1, False, "not a constant")])
def test_layer_normalizations_that_stay_float(axis: int, constant: bool, reason: str) -> None:
    module, *_ = layer_norm_of((3, 37), axis, constant=constant)
    (record,) = [record for record in lower(module, CPU, ISAS, 1).records if "layer_norm" in record.op]
    assert not record.integer
    assert reason in record.reason
