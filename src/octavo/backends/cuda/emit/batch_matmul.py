"""Products of two variable matrices."""

from __future__ import annotations

from collections.abc import Mapping

from ....composites.weighted import BatchMatmulOp, MatmulOperand
from ..emission import Emission, Value
from ..kernels.batch_matmul import batch_matmul, batch_matmul_spec


def emit_batch_matmul(op: BatchMatmulOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a product for each batch."""
    spec = batch_matmul_spec(op)
    sides = [_read(operand, emission, inputs) for operand in (op.a, op.b)]
    return emission.run(batch_matmul(spec, emission.isa, emission.choice), sides, emission.new(op.y.shape, spec.output.dtype))


def _read(operand: MatmulOperand, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    tensor = operand.tensor
    if operand.values is None:
        return emission.lying(inputs[tensor.name], is_nhwc=False)
    values = operand.values.astype(tensor.params.dtype)
    return Value(buffer=emission.constant(values), shape=tensor.shape, dtype=tensor.params.dtype)
