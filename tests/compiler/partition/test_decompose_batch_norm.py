"""Batch normalization of quantized values, behind no convolution: one integer kernel, against the float ops bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.decompose_batch_norm import decompose_batch_norm
from octavo.numerics import PerTensor, QuantParams
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

op: Any = relax.op
ISAS = isas_of(host_target())
SHAPE = (1, 21, 4, 5)
X, Y = (0.04, 120), (0.05, 31)
EPSILON = 1e-3
rng = np.random.default_rng(5)
GAMMA, BETA, MEAN = (rng.normal(0, 1, 21).astype(np.float32) for _ in range(3))
VARIANCE = rng.uniform(0.3, 2, 21).astype(np.float32)


def params(scale: float, zero_point: int) -> QuantParams:
    return QuantParams(dtype="uint8", scale=np.float32(scale), zero_point=np.int32(zero_point), granularity=PerTensor())


def module_of(*, quantized: bool, axis: int = 1, training: bool = False):
    def body(writer, inputs):
        qdq = Qdq(writer, "uint8")
        x = qdq.dequantize("x", inputs["x"], X) if quantized else inputs["x"]
        norm = op.nn.batch_norm(
            x, *map(relax.const, (GAMMA, BETA, MEAN, VARIANCE)), axis=axis, epsilon=EPSILON, training=training
        )
        first = writer.emit("n", relax.TupleGetItem(writer.emit("norm", norm), 0))
        return qdq.quantize("y", writer.emit("r", op.nn.relu(first)), Y, is_output=True)

    shape = SHAPE if axis == 1 else (1, 4, 5, 21)
    return graph({"x": (shape, "uint8" if quantized else "float32")}, body), shape


@pytest.mark.parametrize("axis", [1, 3])
def test_equals_the_float_ops(axis: int) -> None:
    module, shape = module_of(quantized=True, axis=axis)
    x = np.resize(np.arange(256), shape).astype(np.uint8)
    along = [-1 if at == axis else 1 for at in range(4)]
    factor = GAMMA.astype(np.float64) / np.sqrt(VARIANCE.astype(np.float64) + EPSILON)
    shift = (BETA - MEAN * factor).astype(np.float32).reshape(along)
    real = numerics.dequantize(x, params(*X)) * factor.astype(np.float32).reshape(along) + shift
    expected = numerics.quantize(np.maximum(real, np.float32(0)), params(*Y))
    for isa in ISAS:
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), expected, err_msg=isa)
    (record,) = lower(module, CPU, ISAS, 1, {"n", "r"}).records
    assert (record.tensor, record.integer, record.kernel) == ("r", True, "affine_rows")


@pytest.mark.parametrize("case", [{"quantized": False}, {"quantized": True, "training": True}])
def test_other_normalizations_stay_float(case: dict[str, bool]) -> None:
    module, _ = module_of(**case)
    records = lower(module, CPU, ISAS, 1).records
    assert not next(record for record in records if record.op == "nn.batch_norm").integer


def convolution(writer, x, seed: int, *, inner: int, outer: int):
    values = np.random.default_rng(seed).normal(0, 0.2, (outer, inner, 3, 3)).astype(np.float32)
    return writer.emit(f"conv{seed}", op.nn.conv2d(x, relax.const(values), padding=(1, 1, 1, 1)))


def test_between_float_kernels_it_keeps_their_layout(rng: np.random.Generator) -> None:
    """A dense block: what is concatenated is normalized, then convolved."""

    def body(writer, inputs):
        a = convolution(writer, inputs["x"], 0, inner=3, outer=16)
        b = convolution(writer, a, 1, inner=16, outer=5)
        both = writer.emit("both", op.concat([a, b], axis=1))
        norm = op.nn.batch_norm(both, *map(relax.const, (GAMMA, BETA, MEAN, VARIANCE)), axis=1, training=False)
        first = writer.emit("n", relax.TupleGetItem(writer.emit("norm", norm), 0))
        last = convolution(writer, writer.emit("r", op.nn.relu(first)), 2, inner=21, outer=4)
        return writer.emit("y", op.negative(last), is_output=True)

    module = graph({"x": ((1, 3, 6, 7), "float32")}, body)
    x = rng.normal(0, 1, (1, 3, 6, 7)).astype(np.float32)
    expected = run_float(module, x)
    np.testing.assert_allclose(run_lowered(module, x), expected, rtol=0, atol=5e-6 * np.abs(expected).max())
    moves = [placed for placed in lower(module, CPU, ISAS, 1).kernels.values() if placed.name == "transpose"]
    assert len(moves) == 2, "the input and the output of the whole"


def test_a_constant_of_five_axes_behind_a_kernel(rng: np.random.Generator) -> None:
    """The grid of a detector's head: values that no layout of images fits."""
    grid = rng.normal(0, 1, (1, 2, 3, 6, 7)).astype(np.float32)

    def body(writer, inputs):
        a = convolution(writer, inputs["x"], 0, inner=3, outer=6)
        cells = writer.emit("cells", op.reshape(a, (1, 2, 3, 6, 7)))
        return writer.emit("y", op.add(writer.emit("p", op.multiply(cells, relax.const(grid))), cells), is_output=True)

    module = graph({"x": ((1, 3, 6, 7), "float32")}, body)
    x = rng.normal(0, 1, (1, 3, 6, 7)).astype(np.float32)
    expected = run_float(module, x)
    np.testing.assert_allclose(run_lowered(module, x), expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@I.ir_module
class Before:
    @R.function
    def main(x_q: R.Tensor((1, 2, 4, 4), "int8")) -> R.Tensor((1, 2, 4, 4), "float32"):
        with R.dataflow():
            x = R.dequantize(x_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            n = R.nn.batch_norm(
                x,
                R.const([1.0, 6.0], "float32"),
                R.const([1.0, -1.0], "float32"),
                R.const([0.5, 1.0], "float32"),
                R.const([4.0, 9.0], "float32"),
                axis=1,
                epsilon=0.0,
                training=False,
            )
            y = n[0]
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x_q: R.Tensor((1, 2, 4, 4), "int8")) -> R.Tensor((1, 2, 4, 4), "float32"):
        with R.dataflow():
            x = R.dequantize(x_q, R.const(0.5, "float32"), R.const(3, "int32"), out_dtype="float32", axis=0)
            y_product = R.multiply(x, R.const([[[[0.5]], [[2.0]]]], "float32"))
            y = R.add(y_product, R.const([[[[0.75]], [[-3.0]]]], "float32"))
            R.output(y)
        return y


def test_it_is_a_product_and_a_sum() -> None:
    assert_structural_equal(decompose_batch_norm(Before), Expected)


def test_with_nothing_to_do_the_module_is_the_same() -> None:
    for module in (Expected, module_of(quantized=False)[0], module_of(quantized=True, training=True)[0]):
        assert decompose_batch_norm(module).same_as(module)
