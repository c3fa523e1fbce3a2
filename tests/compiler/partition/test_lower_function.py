"""A function of a product's float result, and factors of its channels, run in the product's kernel before that quantizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax

from machine_isas import FAMILY_ISAS
from octavo import numerics
from octavo.compiler.backends.cpu.kernels import GENERIC
from octavo.numerics.floats.float_function import sigmoid
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

X, Y = (np.float32(0.02), 120), (np.float32(0.04), 9)


def case(
    *,
    channels: int,
    outputs: int,
    kernel: int,
    groups: int = 1,
    factors: bool = True,
    slopes: bool = False,
    is_read: bool = False,
) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the module of quantize(f(conv2d(dequantize(x)) + b) * factors), its input and what the definitions give.

    f is a SiLU, with `slopes` a parametric relu.
    """
    rng = np.random.default_rng(outputs)
    weight = rng.integers(-127, 128, (kernel, kernel, channels // groups, outputs)).astype(np.int8)
    scale, bias = rng.uniform(0.0005, 0.002, outputs).astype(np.float32), rng.normal(size=outputs).astype(np.float32)
    factor, pad = rng.uniform(0.5, 1.5, outputs).astype(np.float32), kernel // 2
    slope = rng.uniform(-0.2, 0.9, outputs).astype(np.float32)

    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", params["x"], X)
        w = qdq.weight("w", np.ascontiguousarray(weight.transpose(3, 2, 0, 1)), scale, axis=0)
        conv = writer.emit("conv", relax.op.nn.conv2d(x, w, padding=pad, groups=groups))
        total = writer.emit("sum", relax.op.add(conv, relax.const(bias.reshape(1, -1, 1, 1))))
        if slopes:
            value = writer.emit("prelu", relax.op.nn.prelu(total, relax.const(slope), axis=1))
        else:
            value = writer.emit("silu", relax.op.multiply(total, writer.emit("gate", relax.op.sigmoid(total))))
        if factors:
            value = writer.emit("scaled", relax.op.multiply(value, relax.const(factor.reshape(1, -1, 1, 1))))
        y = qdq.quantize("y", value, Y, is_output=True)
        return relax.Tuple([y, writer.emit("read", relax.op.negative(value), is_output=True)]) if is_read else y

    x = rng.integers(0, 256, (1, channels, 9, 9)).astype(np.uint8)
    window = numerics.Window(padding=(pad,) * 4)
    acc = numerics.conv2d_accumulate(x.transpose(0, 2, 3, 1), weight, x_zero_point=X[1], window=window, groups=groups)
    real = numerics.dequantize_accumulator(acc, X[0] * scale, bias)
    real = np.where(real > 0, real, real * slope) if slopes else real * sigmoid(real)
    steps = (factor if factors else np.float32(1)) / Y[0] * real
    want = np.clip(np.rint(steps) + Y[1], 0, 255).astype(np.uint8)
    return graph({"x": (x.shape, "uint8")}, body), x, want.transpose(0, 3, 1, 2)


SIZES = [(3, 17, 3, 1), (32, 64, 1, 1), (20, 33, 1, 1), (24, 24, 3, 24), (65, 65, 3, 65), (16, 32, 3, 4)]
CASES = [(isa, size, (i + j) % 4 < 2) for i, isa in enumerate(FAMILY_ISAS) for j, size in enumerate(SIZES) if (i + j) % 2 == 0]


@pytest.mark.parametrize(
    ("isa", "size", "factors", "slopes"),
    [
        pytest.param(isa, *others, slopes, marks=pytest.mark.needs_isa(isa), id="-".join(map(str, (isa, *others, slopes))))
        for number, (isa, *others) in enumerate(CASES)
        for slopes in ((False, True) if number % 2 else (True,))
    ],
)
def test_equals_the_definitions(isa, size, factors, slopes) -> None:
    """Every ISA with half of the sizes, dense and depthwise, some with factors and some without."""
    channels, outputs, kernel, groups = size
    module, x, want = case(channels=channels, outputs=outputs, kernel=kernel, groups=groups, factors=factors, slopes=slopes)
    assert [record.op for record in lower(module, CPU, (isa,), 1).records] == ["conv2d"]
    np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)


def test_a_function_that_more_reads_than_a_quantize_is_float() -> None:
    module, x, _ = case(channels=8, outputs=8, kernel=1, is_read=True)
    records = lower(module, CPU, (GENERIC,), 1).records
    assert [(record.op, record.integer) for record in records][:2] == [("conv2d", True), ("sigmoid", False)]
    for got, want in zip(run_lowered(module, x), run_float(module, x), strict=True):
        np.testing.assert_allclose(got, want, atol=1)
