"""Kernel calls of composites: int16_batch_matmul. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.outputs import output_spec
from ....composites.weighted import Int16BatchMatmulOp, MatmulOperand
from ..context import KernelContext
from ..emitters import emits
from ..kernels.int16_batch_matmul import Int16BatchMatmulSpec, int16_batch_matmul


@emits(Int16BatchMatmulOp)
def emit_int16_batch_matmul(op: Int16BatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a, b = op.base.a, op.base.b
    spec = Int16BatchMatmulSpec(
        a_shape=a.tensor.shape,
        b_shape=b.tensor.shape,
        a_zero_point=a.tensor.zero_point,
        b_zero_point=b.tensor.zero_point,
        multiplier=op.multiplier,
        output=output_spec(op.y),
        threads=context.threads,
    )
    values = [_read(context, inputs, operand) for operand in (a, b)]
    kernel = int16_batch_matmul(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, values, op.y.shape, "int16"), is_nhwc=False)


def _read(context: KernelContext, inputs: dict[str, Var], operand: MatmulOperand) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    return relax.const(np.ascontiguousarray((operand.values.astype(np.int32) + operand.tensor.relabelling).astype(np.int16)))
