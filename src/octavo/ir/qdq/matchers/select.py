"""Rule of choices between two quantized tensors by boolean values that are known at run time only."""

from __future__ import annotations

import numpy as np
from tvm.relax import Var

from ....numerics import quantize
from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.elementwise import Choice, SelectOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..cluster import real_of
from ..tail import check_activation, follow_to_quantize, unquantized
from ..values import constant_value, dequantized


def match_select(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(where(condition, dequantize(a), dequantize(b)))); a and b may be constants."""
    call = call_to(view.definition(core), "where")
    assert call is not None
    condition, *args = call.args
    condition_shape = static_shape(condition)
    if not isinstance(condition, Var) or dtype_of(condition) != "bool" or condition_shape is None:
        return Rejection(reason="its condition is no variable of boolean values and static shape")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    y, members = tail.result, dict[Var, None]()
    sides: list[Choice] = []
    inputs: dict[Var, None] = {condition: None}
    for arg in args:
        constant = constant_value(view, arg)
        if constant is not None:
            integers = np.clip(quantize(real_of(constant).astype(np.float32), y.tensor.params), y.qmin, y.qmax)
            tensor = QuantizedTensor(name=constant.name or "constant", shape=integers.shape, params=y.tensor.params)
            members.update(dict.fromkeys(constant.members))
            sides.append(Choice(tensor=tensor, values=integers))
            continue
        x = dequantized(view, arg)
        shape = None if x is None else static_shape(x.source)
        if x is None or not isinstance(x.source, Var) or shape is None:
            return unquantized(arg)
        problem = check_activation(x.source.name, x.params, support)
        if problem is not None:
            return problem
        members.update(dict.fromkeys(() if x.var is None else (x.var,)))
        inputs[x.source] = None
        sides.append(Choice(tensor=QuantizedTensor(name=x.source.name, shape=shape, params=x.params), values=None))
    op = SelectOp(condition=condition.name, condition_shape=condition_shape, a=sides[0], b=sides[1], y=y)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(inputs),
        op=op,
    )
