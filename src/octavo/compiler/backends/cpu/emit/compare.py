"""Kernel calls of composites: comparisons and logic. Reads no QDQ graph."""

from __future__ import annotations

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.elementwise import CompareOp, LogicalOp, Operand
from ..context import KernelContext
from ..emitters import emits
from ..kernels.elementwise.compare import CompareSpec, LogicalSpec, compare, logical
from .pairwise import side_of


@emits(CompareOp)
def emit_compare(op: CompareOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a, b = (side_of(operand.tensor, operand.tensor.shape) for operand in (op.a, op.b))
    spec = CompareSpec(kind=op.kind, a=a, b=b, rounding=op.rounding, threads=context.threads)
    values = [stored_operand(context, inputs, operand) for operand in (op.a, op.b)]
    value = context.call(output.name, compare(spec, isa=context.isa), values, op.shape, "bool")
    context.put(output, value, is_nhwc=False)


@emits(LogicalOp)
def emit_logical(op: LogicalOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = LogicalSpec(kind=op.kind, shapes=op.shapes, threads=context.threads)
    values = [context.storage.source(inputs[name]) for name in op.operands]
    value = context.call(output.name, logical(spec, isa=context.isa), values, op.shape, "bool")
    context.put(output, value, is_nhwc=False)


def stored_operand(context: KernelContext, inputs: dict[str, Var], operand: Operand) -> Expr:
    """Return an operand's integers as kernels hold them, in the source's layout."""
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    return relax.const(operand.tensor.kernel_integers(operand.values))
