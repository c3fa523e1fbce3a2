"""Kernel calls of composites: select. Reads no QDQ graph."""

from __future__ import annotations

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.elementwise import Choice, SelectOp
from ..context import KernelContext
from ..emitters import emits
from ..kernels.elementwise.compare import Chosen, SelectSpec, select
from .concat import operand_table


@emits(SelectOp)
def emit_select(op: SelectOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    dtype = op.y.tensor.kernel_dtype
    spec = SelectSpec(
        condition=op.condition_shape,
        a=_chosen(op, op.a),
        b=_chosen(op, op.b),
        dtype=dtype,
        threads=context.threads,
    )
    values = [
        context.storage.source(inputs[op.condition]),
        *(_stored_operand(op, context, inputs, side) for side in (op.a, op.b)),
    ]
    value = context.call(output.name, select(spec, isa=context.isa), values, op.y.tensor.shape, dtype)
    context.put(output, value, is_nhwc=False)


def _chosen(op: SelectOp, side: Choice) -> Chosen:
    y, tensor = op.y, side.tensor
    bounds = (y.tensor.params.qmin, y.tensor.params.qmax)
    same = tensor.params == y.tensor.params and (y.qmin, y.qmax) == bounds
    if side.values is not None or same:
        return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype)
    table = operand_table(tensor, y)
    # Relabelling leaves the order of integers: the least is entry 0 in either dtype.
    return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype, table=y.tensor.kernel_integers(table))


def _stored_operand(op: SelectOp, context: KernelContext, inputs: dict[str, Var], side: Choice) -> Expr:
    if side.values is None:
        return context.storage.get(inputs[side.tensor.name], is_nhwc=False)
    return relax.const(op.y.tensor.kernel_integers(side.values))
