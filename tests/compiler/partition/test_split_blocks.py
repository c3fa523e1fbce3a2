"""Matmuls by weights with a scale for each block of inputs: integer sums for each block, scaled and added in float32."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.ir import assert_structural_equal
from tvm.script import ir as I
from tvm.script import relax as R

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import isas_of
from octavo.compiler.partition.split_blocks import split_blocks
from octavo.ir.graph.dataflow import eliminate_dead_code
from octavo.runtime.llvm_host import host_target
from octavo.target import CPU
from qdq_graph import Qdq, graph, lower, run_float, run_lowered

ISAS = isas_of(host_target())
INPUTS, OUTPUTS, X_SCALE, X_ZERO = 64, 17, 0.03, 120


def blocked(block: int, *, is_float: bool = False, dtype: str = "uint8"):
    """A module, its weights as stored, and the scale and zero point of each block."""
    rng = np.random.default_rng(block)
    count = INPUTS // block
    values = rng.integers(0, 16, (INPUTS, OUTPUTS)).astype(dtype)
    scale = rng.uniform(0.01, 0.1, (count, OUTPUTS)).astype(np.float32)
    zeros = rng.integers(0, 16, (count, OUTPUTS)).astype(np.int32)

    def body(writer, params):
        qdq = Qdq(writer, "uint8")
        x = params["x"] if is_float else qdq.dequantize("x", params["x"], (X_SCALE, X_ZERO))
        by_row = values.reshape(count, block, OUTPUTS).transpose(0, 2, 1).reshape(-1, block)
        rows = qdq.weight("rows", np.ascontiguousarray(by_row), scale.ravel(), zeros.ravel())
        cut = writer.emit("cut", relax.op.reshape(rows, (count, OUTPUTS, block)))
        turned = writer.emit("turned", relax.op.permute_dims(cut, [0, 2, 1]))
        w = writer.emit("w", relax.op.reshape(turned, (INPUTS, OUTPUTS)))
        return writer.emit("y", relax.op.matmul(x, w), is_output=True)

    return graph({"x": ((2, 3, INPUTS), "float32" if is_float else "uint8")}, body), values, scale, zeros


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_blocks_are_summed_in_integers_and_added_in_float(block, dtype):
    module, values, scale, zeros = blocked(block, dtype=dtype)
    x = np.random.default_rng(1).integers(0, 256, (2, 3, INPUTS)).astype(np.uint8)
    want = np.zeros((2, 3, OUTPUTS), np.float32)
    for number, (unit, zero_point) in enumerate(zip(scale, zeros, strict=True)):
        part = slice(number * block, (number + 1) * block)
        sums = numerics.matmul_accumulate(x[..., part], values[part], x_zero_point=X_ZERO, w_zero_point=zero_point)
        want = want + numerics.dequantize_accumulator(sums, np.float32(X_SCALE) * unit, np.float32(0))
    for isa in ISAS:
        np.testing.assert_array_equal(run_lowered(module, x, isa=isa), want)
    np.testing.assert_allclose(run_float(module, x), want, rtol=1e-4, atol=1e-4)
    records = {record.op: record for record in lower(module, CPU, ISAS, 1).records}
    assert records["conv2d"].integer
    assert records["conv2d"].macs == 2 * 3 * INPUTS * OUTPUTS


@pytest.mark.parametrize(
    ("block", "is_float", "reason"), [(8, False, "scales that vary within one output channel"), (8, True, "input x is float")]
)
def test_small_blocks_and_float_inputs_stay_float(block, is_float, reason):
    module, *_ = blocked(block, is_float=is_float)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 3, INPUTS)).astype(np.float32) if is_float else rng.integers(0, 256, (2, 3, INPUTS)).astype(np.uint8)
    (record,) = [record for record in lower(module, CPU, ISAS, 1).records if record.op == "matmul"]
    assert not record.integer
    assert reason in record.reason
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-4, atol=1e-4)


WEIGHTS = np.arange(64, dtype=np.int8).reshape(32, 2)
SCALES = np.float32([[0.5, 1.0], [2.0, 4.0]])
# [block, inputs of a block, outputs] -> [inputs of a block, block * outputs]
BY_CHANNEL = WEIGHTS.reshape(2, 16, 2).transpose(1, 0, 2).reshape(1, 1, 16, 4).copy()
ZEROS = np.zeros(4, np.int32)


@I.ir_module
class Before:
    @R.function
    def main(x_q: R.Tensor((3, 32), "uint8")) -> R.Tensor((3, 2), "float32"):
        with R.dataflow():
            x = R.dequantize(x_q, R.const(0.5, "float32"), R.const(7, "int32"), out_dtype="float32", axis=0)
            blocks = R.dequantize(
                R.const(WEIGHTS.reshape(2, 16, 2).transpose(0, 2, 1).reshape(4, 16)),
                R.const(SCALES.ravel()),
                R.const(ZEROS),
                out_dtype="float32",
                axis=0,
            )
            cut = R.reshape(blocks, (2, 2, 16))
            turned = R.permute_dims(cut, [0, 2, 1])
            w = R.reshape(turned, (32, 2))
            y = R.matmul(x, w)
            R.output(y)
        return y


@I.ir_module
class Expected:
    @R.function
    def main(x_q: R.Tensor((3, 32), "uint8")) -> R.Tensor((3, 2), "float32"):
        with R.dataflow():
            x_image_q = R.reshape(x_q, (1, 3, 1, 32))
            x_image = R.dequantize(x_image_q, R.const(0.5, "float32"), R.const(7, "int32"), out_dtype="float32", axis=0)
            weights = R.dequantize(R.const(BY_CHANNEL), R.const(SCALES.ravel()), R.const(ZEROS), out_dtype="float32", axis=3)
            parts = R.nn.conv2d(x_image, weights, groups=2, data_layout="NHWC", kernel_layout="HWIO", out_layout="NHWC")
            of_blocks = R.reshape(parts, (3, 2, 2))
            y = R.sum(of_blocks, axis=[1])
            R.output(y)
        return y


def test_the_blocks_are_the_groups_of_a_convolution():
    assert_structural_equal(eliminate_dead_code(split_blocks(Before)), Expected)


def test_with_nothing_to_do_the_module_is_the_same():
    assert split_blocks(Expected).same_as(Expected)
