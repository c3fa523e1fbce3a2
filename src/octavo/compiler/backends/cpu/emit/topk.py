"""Kernel calls of composites: topk. Reads no QDQ graph."""

from __future__ import annotations

import math
from typing import Any, Literal

from tvm.relax import Expr, Var

from .....ir.composites.movement import TopkOp
from .....ir.graph.dataflow import dtype_of, static_shape
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels.reductions.topk import TopkSpec, topk

Given = Literal["values", "indices"]


@emits(TopkOp)
def emit_topk(op: TopkOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call; another axis than the last one is brought there, and back."""
    shape = op.x.shape
    rest = tuple(axis for axis in range(len(shape)) if axis != op.axis)
    order = (*rest, op.axis)
    is_last = op.axis == len(shape) - 1
    x: Expr = context.storage.get(inputs[op.x.name], is_nhwc=False)
    x = x if is_last else context.permute(f"{output.name}_rows", x, order)
    gives: Given = "indices" if op.y is None else "values"
    dtype: Any = dtype_of(output) if op.y is None else "int64"
    spec = TopkSpec(
        rows=math.prod(shape[axis] for axis in rest),
        extent=shape[op.axis],
        count=op.count,
        largest=op.largest,
        gives=gives,
        dtype=op.x.kernel_dtype,
        index_dtype=dtype,
        threads=context.threads,
    )
    rows = (*(shape[axis] for axis in rest), op.count)
    name = output.name if is_last else f"{output.name}_found"
    value: Expr = context.call(name, topk(spec, isa=context.isa), [x], rows, spec.out_dtype)
    if not is_last:
        back = tuple(order.index(axis) for axis in range(len(shape)))
        value = context.permute(output.name, value, back)
    assert shape_of(value) == (static_shape(output) or ())
    context.put(output, value, is_nhwc=False)
