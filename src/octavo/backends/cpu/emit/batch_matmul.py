"""Kernel calls of composites: batch_matmul. Reads no QDQ graph."""

from __future__ import annotations

from typing import cast

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.base import QuantizedOutput
from ....composites.matrix_view import MatrixView
from ....composites.outputs import output_spec
from ....composites.weighted import BatchMatmulOp, MatmulOperand
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import BatchMatmulSpec
from ..kernels.int16_batch_matmul import Int16BatchMatmulSpec, int16_batch_matmul


@emits(BatchMatmulOp)
def emit_batch_matmul(op: BatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a, b, y = op.a.tensor, op.b.tensor, op.y
    if y.kernel_dtype == "int16":
        _emit_int16(op, context, inputs, output)
        return
    takes_views = kernels.takes_views(a.shape[-1], isa=context.isa)
    sides = [_read(context, inputs, operand, takes_views=takes_views) for operand in (op.a, op.b)]
    spec = BatchMatmulSpec(
        a=sides[0][1],
        b=sides[1][1],
        y=MatrixView.plain(y.shape),
        a_zero_point=a.zero_point,
        b_zero_point=b.zero_point,
        multiplier=float(cast("float", op.multiplier)),
        output=output_spec(y),
        threads=context.threads,
    )
    kernel = kernels.batch_matmul(spec, isa=context.isa)
    values = [value for value, _ in sides]
    context.put(output, context.call(output.name, kernel, values, y.shape, y.kernel_dtype), is_nhwc=False)


def _emit_int16(op: BatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    a, b = op.a.tensor, op.b.tensor
    assert isinstance(op.y, QuantizedOutput), "16-bit sums end in integers"
    spec = Int16BatchMatmulSpec(
        a_shape=a.shape,
        b_shape=b.shape,
        a_zero_point=a.zero_point,
        b_zero_point=b.zero_point,
        multiplier=op.multiplier,
        output=output_spec(op.y),
        threads=context.threads,
    )
    values = [_read(context, inputs, operand, takes_views=False)[0] for operand in (op.a, op.b)]
    kernel = int16_batch_matmul(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, values, op.y.shape, "int16"), is_nhwc=False)


def _read(
    context: KernelContext, inputs: dict[str, Var], operand: MatmulOperand, *, takes_views: bool
) -> tuple[Expr, MatrixView]:
    """Return what the kernel reads and how: a tensor that was only transposed as it lay before, where the kernel can."""
    plain = MatrixView.plain(operand.tensor.shape)
    if operand.values is not None:
        values = (operand.values.astype(np.int32) + operand.tensor.relabelling).astype(operand.tensor.kernel_dtype)
        return relax.const(np.ascontiguousarray(values)), plain
    value = context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    before = context.storage.before_transposition(value) if takes_views else None
    if before is None:
        return value, plain
    return before[0], MatrixView(shape=operand.tensor.shape, axes=before[1])
