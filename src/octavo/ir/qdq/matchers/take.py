"""Rule of take by indices that are known at run time only: rows of an activation, or of a constant table (an embedding)."""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ....target import OpSupport
from ...composites.base import WIDE, CompositeOp, QuantizedTensor
from ...composites.movement import TakeOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import constant_value, dequantized


def match_take(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(take(dequantize(x), indices)) of indices that are no constant."""
    call: Any = view.definition(core)
    x, indices = dequantized(view, call.args[0]), call.args[1]
    places = static_shape(indices)
    shape = None if x is None else static_shape(x.source)
    if x is None or shape is None or x.var is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float, or its shape is not static")
    if not isinstance(indices, Var) or places is None or dtype_of(indices) not in ("int32", "int64") or call.attrs.axis is None:
        return Rejection(reason="its indices are no variable of int32 or int64 and static shape along one axis")
    if str(call.attrs.mode) not in ("clip", "fast") or 0 in (*shape, *places):
        return Rejection(reason=f"it takes {places} from {shape} in mode {call.attrs.mode}")
    name = getattr(x.source, "name", x.var.name)
    problem = check_activation(name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    if x.params.dtype in WIDE and x.params != tail.result.tensor.params:
        return Rejection(reason=f"it takes int16 values and changes scale or zero point of {name} at once")
    constant = constant_value(view, x.source)
    op = TakeOp(
        x=QuantizedTensor(name=name, shape=shape, params=x.params),
        values=None if constant is None else constant.values,
        indices=indices.name,
        axis=int(call.attrs.axis) % len(shape),
        y=tail.result,
    )
    within = () if constant is None else constant.members
    return Region(
        core=core,
        output=tail.output,
        members=(*within, x.var, core, *tail.members),
        inputs=(*((x.source,) if constant is None and isinstance(x.source, Var) else ()), indices),
        op=op,
    )
