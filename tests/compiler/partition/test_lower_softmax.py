"""Softmax, lowered: the oracle bit for bit, over the last axis and over the channels of an NCHW image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from machine_isas import EVERY_ISA
from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())


def module_of(shape, axis: int, dtype: str, beta: float):
    low, _ = numerics.INTEGER_RANGE[dtype]

    def body(writer, params):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", params["x"], (0.06, low + 90))
        if beta != 1.0:
            x = writer.emit("scaled", op.multiply(x, relax.const(np.float32(beta))))
        value = writer.emit("core", op.nn.softmax(x, axis=axis))
        return qdq.quantize("y", value, (1 / 256, low), is_output=True)

    return graph({"x": (shape, dtype)}, body)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axis", "beta"),
    [
        ((2, 21), -1, 1.0),
        ((1, 1001), 1, 0.5),
        ((2, 21, 5, 7), 1, 1.0),
        ((2, 5, 7, 21), 3, 1.0),
        ((2, 21, 1, 1), 1, 1.0),
        ((2, 21, 5), 1, 1.0),
    ],
)
def test_equals_the_oracle(shape, axis: int, beta: float, dtype: str, isa: str) -> None:
    rng = np.random.default_rng(0)
    low, high = numerics.INTEGER_RANGE[dtype]
    module = module_of(shape, axis, dtype, beta)
    (record,) = lower(module, CPU, (isa,), 1).records
    assert (record.op, record.integer, record.kernel) == ("softmax", True, "softmax"), record
    x = rng.integers(low, high + 1, shape).astype(dtype)
    scale = float(np.float32(0.06) * np.float32(beta))
    common = {"scale": scale, "out_scale": 1 / 256, "zero_point": low, "qmin": low, "qmax": high, "dtype": dtype}
    want = np.moveaxis(numerics.softmax(np.moveaxis(x, axis, -1), **common), -1, axis)
    np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)


@pytest.mark.parametrize(
    ("shape", "axis", "beta", "reason"),
    [
        ((2, 20_000), 1, 1.0, "its rows hold 20000 values; the kernel takes 16384"),
        ((2, 3), 1, -1.0, "its input is multiplied by -1.0; the kernel takes positive factors"),
    ],
)
def test_stays_float_and_says_why(shape, axis: int, beta: float, reason: str) -> None:
    records = lower(module_of(shape, axis, "int8", beta), CPU, ISAS, 1).records
    assert [record.reason for record in records if record.op == "nn.softmax"] == [reason]
