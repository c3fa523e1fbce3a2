"""Functions of one tensor become tables: every shape of the float subgraph, against the oracle bit for bit."""

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
from qdq_graph import Qdq, graph, lower, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
f32 = np.float32


def number(value):
    return relax.const(f32(value))


def sigmoid64(x):
    return ELEMENTWISE["sigmoid"](x)


# name -> (float ops by relax, the same by numpy in float32)
FUNCTIONS = {
    "sigmoid": (lambda e, x: e(op.sigmoid(x)), sigmoid64),
    "silu": (lambda e, x: e(op.multiply(x, e(op.sigmoid(x)))), lambda x: x * sigmoid64(x)),
    "hard_swish": (
        lambda e, x: e(op.multiply(x, e(op.divide(e(op.clip(e(op.add(x, number(3))), 0, 6)), number(6))))),
        lambda x: x * (np.clip(x + f32(3), f32(0), f32(6)) / f32(6)),
    ),
    "leaky_relu": (lambda e, x: e(op.nn.leakyrelu(x, 0.1)), lambda x: np.where(x < 0, x * f32(0.1), x)),
    "threshold": (
        lambda e, x: e(op.multiply(e(op.astype(e(op.greater(x, number(0.5))), "float32")), x)),
        lambda x: np.where(x > 0.5, x, f32(0)),
    ),
    "power": (lambda e, x: e(op.power(x, number(2))), lambda x: x * x),
    "where": (lambda e, x: e(op.where(e(op.less(x, number(0))), e(op.abs(x)), x)), np.abs),
    "reciprocal": (
        lambda e, x: e(op.divide(number(1), e(op.add(e(op.abs(x)), number(1))))),
        lambda x: f32(1) / (np.abs(x) + f32(1)),
    ),
    "log": (lambda e, x: e(op.log(x)), ELEMENTWISE["log"]),
    "clip_then_more": (lambda e, x: e(op.tanh(e(op.clip(x, -1, 1)))), lambda x: ELEMENTWISE["tanh"](np.clip(x, f32(-1), f32(1)))),
}


def params(dtype: str, scale: float, zero_point: int) -> QuantParams:
    return QuantParams(dtype=dtype, scale=f32(scale), zero_point=np.int32(zero_point), granularity=PerTensor())


def module_of(function, dtype: str, shape, x_params, y_params):
    def body(writer, inputs):
        qdq = Qdq(writer, dtype)
        x = qdq.dequantize("x", inputs["x"], x_params)
        count = iter(range(100))
        return qdq.quantize("y", function(lambda call: writer.emit(f"v{next(count)}", call), x), y_params, is_output=True)

    return graph({"x": (shape, dtype)}, body)


@pytest.mark.parametrize("isa", EVERY_ISA)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_the_table(name: str, dtype: str, isa: str) -> None:
    low, high = LIMITS[dtype]
    x_params, y_params = (0.04, low + 100), (0.03, low + 60)
    relaxed, exact = FUNCTIONS[name]
    module = module_of(relaxed, dtype, (1, 4, 8, 9), x_params, y_params)
    x = np.resize(np.arange(low, high + 1), (1, 4, 8, 9)).astype(dtype)
    table = numerics.lookup_table(exact, params(dtype, *x_params), params(dtype, *y_params))
    records = [record for record in lower(module, CPU, (isa,), 1).records if record.op not in ("quantize", "dequantize")]
    assert [(record.op, record.integer, record.isa) for record in records] == [("lookup", True, isa)]
    assert np.array_equal(run_lowered(module, x, isa=isa), numerics.lookup(x, table))
