"""Rows by indices that are known at run time: of an activation and of a constant table, clipped, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
X, Y = (0.02, 7), (0.03, -3)
SHAPE = (5, 6, 70)


def module_of(table: np.ndarray | None, axis: int, places: tuple[int, ...], index_dtype: str, y: tuple[float, int]) -> Any:
    def body(writer, inputs):
        qdq = Qdq(writer, "int8")
        source = inputs["x"] if table is None else relax.const(table)
        taken = writer.emit("core", op.take(qdq.dequantize("x", source, X), inputs["indices"], axis=axis, mode="clip"))
        return qdq.quantize("y", taken, y, is_output=True)

    shapes = {"indices": (places, index_dtype)}
    return graph({"x": (SHAPE, "int8"), **shapes} if table is None else shapes, body)


@pytest.mark.parametrize("is_constant", [False, True])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_equals_numpy(axis: int, is_constant: bool) -> None:
    rng = np.random.default_rng(axis)
    x = rng.integers(-128, 128, SHAPE).astype(np.int8)
    for places, (index_dtype, y) in [((9,), ("int32", X)), ((3, 4), ("int64", Y))]:
        indices = rng.integers(-2, SHAPE[axis] + 2, places).astype(index_dtype)
        module = module_of(x if is_constant else None, axis, places, index_dtype, y)
        records = lower(module, CPU, ISAS, 1).records
        assert [(record.op, record.integer) for record in records] == [("take", True)]
        want = np.take(x, indices, axis=axis, mode="clip")
        if y != X:
            ratio = np.float32(X[0]) / np.float32(y[0])
            want = numerics.requantize(want.astype(np.int32) - X[1], ratio, y[1], -128, 127, "int8")
        got = run_lowered(module, *([indices] if is_constant else [x, indices]))
        np.testing.assert_array_equal(got, want)
