"""Kernel calls of composites: take. Reads no QDQ graph."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.movement import TakeOp
from .....ir.graph.dataflow import dtype_of, static_shape
from .....ir.qdq.matchers.move import changes
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import TakeSpec
from .move import requantized


@emits(TakeOp)
def emit_take(op: TakeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    indices = inputs[op.indices]
    places = static_shape(indices)
    assert places is not None, "the rule sees to it"
    shape, axis = op.x.shape, op.axis
    dtype: Any = dtype_of(indices)
    spec = TakeSpec(
        outer=math.prod(shape[:axis]),
        extent=shape[axis],
        inner=math.prod(shape[axis + 1 :]),
        count=math.prod(places),
        index_dtype=dtype,
        dtype=op.x.kernel_dtype,
        threads=context.threads,
    )
    kernel = kernels.take(spec, isa=context.isa)
    changed = changes(op.x, op.y)
    args = [_source(op, context, inputs), context.storage.source(indices)]
    value = context.call(f"{output.name}_taken" if changed else output.name, kernel, args, op.y.tensor.shape, spec.dtype)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=False)


def _source(op: TakeOp, context: KernelContext, inputs: dict[str, Var]) -> Expr:
    if op.values is None:
        return context.storage.get(inputs[op.x.name], is_nhwc=False)
    return relax.const(op.x.kernel_integers(op.values))
