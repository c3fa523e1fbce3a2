"""Kernel calls of composites: concat. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.base import ratio
from ....composites.movement import ConcatOp
from ....composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ConcatSpec
from ..storage import TO_NHWC


@emits(ConcatOp)
def emit_concat(op: ConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    args, is_nhwc = concat_operands(op, context, inputs)
    shape = op.y.tensor.shape
    axis = op.axis
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    spec = ConcatSpec(
        outer=int(np.prod(shape[:axis], dtype=np.int64)),
        inners=tuple(int(np.prod(shape_of(arg)[axis:], dtype=np.int64)) for arg in args),
        multipliers=tuple(ratio(tensor.params, op.y.tensor.params) for tensor in op.inputs),
        zero_points=tuple(tensor.zero_point for tensor in op.inputs),
        output=output_spec(op.y),
        threads=context.threads,
    )
    kernel = kernels.concat(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, args, shape), is_nhwc=is_nhwc)


def concat_operands(op: ConcatOp, context: KernelContext, inputs: dict[str, Var]) -> tuple[list[Expr], bool]:
    """Return what is concatenated as kernels read it, and whether that is NHWC."""
    variables = {i: inputs[tensor.name] for i, tensor in enumerate(op.inputs) if i not in op.constants}
    is_nhwc = len(op.y.tensor.shape) == 4 and any(context.storage.is_kept_nhwc(var) for var in variables.values())
    args = [
        context.storage.get(variables[i], is_nhwc=is_nhwc) if i in variables else _constant(op, i, is_nhwc=is_nhwc)
        for i in range(len(op.inputs))
    ]
    return args, is_nhwc


def _constant(op: ConcatOp, position: int, *, is_nhwc: bool) -> Expr:
    values = op.constants[position]
    held = (values.astype(np.int32) + op.inputs[position].relabelling).astype(op.inputs[position].kernel_dtype)
    return relax.const(np.ascontiguousarray(held.transpose(TO_NHWC) if is_nhwc else held))
