"""Products of two variable matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .....ir.composites.weighted import BatchMatmulOp, MatmulOperand
from ..emission import Emission, Value
from ..kernels.matmuls.batch_matmul import batch_matmul, batch_matmul_spec
from .tail import Followers, ended_by, read_by


def emit_batch_matmul(
    op: BatchMatmulOp, emission: Emission, inputs: Mapping[str, Value], followers: Followers | None = None
) -> Value:
    """Launch a product for each batch."""
    sides = [_read(operand, emission, inputs) for operand in (op.a, op.b)]
    own = batch_matmul_spec(op, *(each.axes for each in sides))
    spec = replace(own, output=ended_by(own.output, followers))
    result = emission.new(op.y.shape, spec.output.dtype)
    return emission.run(batch_matmul(spec, emission.isa, emission.choice), read_by(sides, followers), result)


def _read(operand: MatmulOperand, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    tensor = operand.tensor
    if operand.values is None:
        return emission.lying(inputs[tensor.name], is_nhwc=False)
    values = operand.values.astype(tensor.params.dtype)
    return Value(buffer=emission.constant(values), shape=tensor.shape, dtype=tensor.params.dtype)
