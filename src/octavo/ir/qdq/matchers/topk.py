"""Rule of the greatest or least elements along an axis: their values, or their places. No arithmetic: order needs no scale."""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.movement import TopkOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import dequantized
from .move import changes


def match_topk(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(topk(dequantize(x))) of values, or topk(dequantize(x)) of places."""
    call: Any = view.definition(core)
    gives = str(call.attrs.ret_type)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if gives not in ("values", "indices"):
        return Rejection(reason="it gives values and places at once; ask for each by an op of its own")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    axis, count = int(call.attrs.axis) % len(shape), int(call.attrs.k)
    if not 1 <= count <= shape[axis] or 0 in shape or (axis != len(shape) - 1 and dtype_of(core) == "int64"):
        return Rejection(reason=f"it looks for {count} of {shape} along axis {axis}, as {dtype_of(core)}")
    y: QuantizedOutput | None = None
    output, behind = core, ()
    if gives == "values":
        tail = follow_to_quantize(view, core, of_width(support, x.params))
        if isinstance(tail, Rejection):
            return tail
        y, output, behind = tail.result, tail.output, tail.members
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    if y is not None and changes(source, y):
        return Rejection(reason=f"it chooses values of {source.name} and changes their scale, zero point or bounds at once")
    op = TopkOp(x=source, y=y, axis=axis, count=count, largest=bool(call.attrs.largest))
    members = (*([x.var] if x.var is not None else []), core, *behind)
    return Region(core=core, output=output, members=members, inputs=(x.source,), op=op)
