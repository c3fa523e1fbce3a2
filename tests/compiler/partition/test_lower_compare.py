"""Comparisons and choices, lowered: which rule takes which, and the float simulation's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

op: Any = relax.op
SHAPE = (2, 5, 7)


def chosen(names: str, dtype: str, *, y=(0.03, 2), other: Any = None):
    """quantize(where(a < b, c, d)) of tensors by their letters, each with parameters of its own."""

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        reals = {name: qdq.dequantize(name, params[name], (0.02 + 0.001 * i, i)) for i, name in enumerate(sorted(set(names)))}
        a, b, c, *d = (reals[name] for name in names)
        condition = writer.emit("condition", op.less(a, b))
        value = writer.emit("core", op.where(condition, c, d[0] if d else other))
        return qdq.quantize("y", value, y, is_output=True)

    return graph(dict.fromkeys(sorted(set(names)), (SHAPE, dtype)), body)


def run(module, count, dtype):
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype)
    inputs = [rng.integers(info.min, info.max + 1, SHAPE).astype(dtype) for _ in range(count)]
    np.testing.assert_array_equal(run_lowered(module, *inputs), run_float(module, *inputs))
    return [record.kernel for record in lower(module, CPU, isas_of(host_target()), 1).records if record.integer]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_two_tensors_are_one_table(dtype):
    assert run(chosen("abab", dtype), 2, dtype) == ["pair_lookup"]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_four_tensors_are_a_comparison_and_a_choice(dtype):
    assert run(chosen("abcd", dtype), 4, dtype) == ["compare.less", "select"]


def test_a_float_constant_is_quantized_as_the_result_is():
    module = chosen("abc", "int8", other=relax.const(np.float32(-1e9)))
    assert run(module, 3, "int8") == ["compare.less", "select"]


def test_a_condition_of_floats_is_computed_by_tvm():
    def body(writer, params):
        qdq = Qdq(writer, "int8")
        condition = writer.emit("condition", op.greater(params["f"], relax.const(np.float32(0))))
        value = writer.emit(
            "core", op.where(condition, qdq.dequantize("a", params["a"], (0.02, 1)), relax.const(np.float32(0.5)))
        )
        return qdq.quantize("y", value, (0.02, 1), is_output=True)

    module = graph({"f": ((7,), "float32"), "a": (SHAPE, "int8")}, body)
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=7).astype(np.float32), rng.integers(-128, 128, SHAPE).astype(np.int8)
    np.testing.assert_array_equal(run_lowered(module, *inputs), run_float(module, *inputs))
    records = {record.tensor: record for record in lower(module, CPU, isas_of(host_target()), 1).records}
    assert {name: record.integer for name, record in records.items()} == {"condition": False, "y_q": True}
    assert "float" in records["condition"].reason
