"""Matmuls by weights with a scale for each block of inputs: integer sums for each block, scaled and added in float32."""

from __future__ import annotations

import numpy as np
import pytest
from qdq_graph import Qdq, graph, run_float, run_lowered
from tvm import relax

from octavo import numerics
from octavo.backends.cpu.kernels import isas_of
from octavo.pipeline import lower
from octavo.target import CPU
from octavo.target.llvm_host import host_target

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
    ("block", "is_float", "reason"), [(8, False, "scales that vary within one output channel"), (16, True, "input x is float")]
)
def test_small_blocks_and_float_inputs_stay_float(block, is_float, reason):
    module, *_ = blocked(block, is_float=is_float)
    rng = np.random.default_rng(2)
    x = rng.normal(size=(2, 3, INPUTS)).astype(np.float32) if is_float else rng.integers(0, 256, (2, 3, INPUTS)).astype(np.uint8)
    (record,) = [record for record in lower(module, CPU, ISAS, 1).records if record.op == "matmul"]
    assert not record.integer
    assert reason in record.reason
    np.testing.assert_allclose(run_lowered(module, x), run_float(module, x), rtol=1e-4, atol=1e-4)
