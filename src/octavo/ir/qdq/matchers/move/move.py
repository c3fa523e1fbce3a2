"""Rules of ops that only move or clamp values: reshape, squeeze, transposition, relu and clip alone, a change of parameters.

So does a take by indices that are known at run time only: rows of an activation, or of a constant table (an embedding).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tvm.relax import Var

from .....numerics import INTEGER_RANGE, lookup_table
from .....numerics.quantized.rescale import fixed_point_table, int16_rescale_table, rescale_table
from .....target import OpSupport
from .....target.op_facts import CLAMPS, movers
from .....target.vocabulary import HALF_EVEN, HALF_UP
from ....composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor, ratio
from ....composites.elementwise import LookupOp
from ....composites.movement import MoveOp, TakeOp
from ....composites.outputs import output_spec
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.rules import Region, Rejection
from ...rounding import fixed_point_of, is_fixed_point, result_rounding, rounding_of, unscalable
from ...tail import check_activation, clamp_in_integers, clip_bounds, follow_to_quantize, integer_clamp, of_width
from ...values import constant_value, dequantized, integer_params

MOVE_OPS = (*movers("view", "transpose"), *CLAMPS)
"""Relax ops that this rule takes; `gather` takes those that read by an index for each axis."""

_CLAMPED = OpSupport(op="clip", fusions=CLAMPS)


def match_move(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(move(dequantize(x))), or a movement of integers, as one composite "octavo.move"."""
    call = view.definition(core)
    axes = _axes(view, core)
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_move(view, core, axes, support)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, _CLAMPED if op_name(call) in CLAMPS else support)
    if isinstance(tail, Rejection):
        return tail
    y = _with_own_clamp(call, tail.result)
    if isinstance(y, Rejection):
        return y
    move = MoveOp(x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params), y=y, axes=axes)
    op = _wide(move, result_rounding(view, tail.members))
    if isinstance(op, Rejection):
        return op
    return Region(
        core=core,
        output=tail.output,
        members=(*([x.var] if x.var is not None else []), core, *tail.members),
        inputs=(x.source,),
        op=op,
    )


def match_requantize(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(dequantize(x)): a change of scale, zero point or dtype."""
    call = call_to(view.definition(core), "quantize")
    assert call is not None
    x = dequantized(view, call.args[0])
    shape, params = static_shape(core), integer_params(view, core)
    if x is None or not isinstance(x.source, Var) or shape is None or params is None:
        return Rejection(reason=f"input {getattr(call.args[0], 'name', 'constant')} is float")
    problem = check_activation(x.source.name, x.params, support) or check_activation(core.name, params, support)
    if problem is not None:
        return problem
    output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
    tensor = QuantizedTensor(name=output.name, shape=shape, params=params)
    y = QuantizedOutput(tensor=tensor, qmin=qmin, qmax=qmax, fixed_point=fixed_point_of(call))
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    op = _wide(MoveOp(x=source, y=y, axes=None), rounding_of(call))
    if isinstance(op, Rejection):
        return op
    if isinstance(op, MoveOp) and rounding_of(call) == HALF_UP and ratio(x.params, params) != 1.0:
        op = LookupOp(x=source, y=y, table=rescale_table(x.params, params, qmin=qmin, qmax=qmax))
    return Region(
        core=core,
        output=output,
        members=(*([x.var] if x.var is not None else []), core, *(() if output.same_as(core) else (output,))),
        inputs=(x.source,),
        op=op,
    )


def _wide(op: MoveOp, rounding: str) -> MoveOp | LookupOp | Rejection:
    """Return the op, or where it changes 16-bit integers a table with an entry for each: no kernel does both at once."""
    x, y = op.x, op.y
    bounds = (y.tensor.params.qmin, y.tensor.params.qmax)
    if "int16" not in (x.kernel_dtype, y.kernel_dtype) or (x.params == y.tensor.params and (y.qmin, y.qmax) == bounds):
        return op
    if x.shape != y.shape or op.axes is not None:
        return Rejection(reason=f"it moves int16 values and changes scale, zero point or bounds of {x.name} at once")
    if y.fixed_point is not None:
        problem = unscalable(rounding, {x.name: x.params.scale, y.tensor.name: y.tensor.params.scale})
        if problem is not None:
            return problem
        table = fixed_point_table(x.params, y.tensor.params, y.fixed_point, qmin=y.qmin, qmax=y.qmax)
    elif is_fixed_point(rounding):
        table = int16_rescale_table(x.params, y.tensor.params, qmin=y.qmin, qmax=y.qmax)
    else:
        table = lookup_table(lambda real: real, x.params, y.tensor.params, qmin=y.qmin, qmax=y.qmax)
    return LookupOp(x=x, y=y, table=table)


def _axes(view: DataflowView, core: Var) -> tuple[int, ...] | None:
    call = call_to(view.definition(core), "permute_dims")
    shape = static_shape(core)
    if call is None or shape is None:
        return None
    if call.attrs.axes is None:
        return tuple(reversed(range(len(shape))))
    return tuple(int(axis) % len(shape) for axis in call.attrs.axes)


def _with_own_clamp(call: object, y: QuantizedOutput) -> QuantizedOutput | Rejection:
    clamp = call_to(call, *CLAMPS)
    if clamp is None:
        return y
    bounds = (0.0, math.inf) if call_to(clamp, "nn.relu") is not None else clip_bounds(clamp)
    if bounds is None:
        return Rejection(reason="the bounds of the clip are not constants; make them so")
    low, high = clamp_in_integers(y.tensor.params, *bounds)
    return replace(y, qmin=max(low, y.qmin), qmax=min(high, y.qmax))


def _integer_move(
    view: DataflowView, core: Var, axes: tuple[int, ...] | None, support: OpSupport
) -> Region[CompositeOp] | Rejection:
    call = view.definition(core)
    source = call.args[0]
    params = integer_params(view, source) or integer_params(view, core)
    shape, out_shape = static_shape(source), static_shape(core)
    if params is None or not isinstance(source, Var) or shape is None or out_shape is None:
        return Rejection(reason=f"input {getattr(source, 'name', 'constant')} has no known scale or shape; dequantize it")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    qmin, qmax = params.qmin, params.qmax
    clip = call_to(call, "clip")
    if clip is not None:
        bounds = clip_bounds(clip)
        if bounds is None:
            return Rejection(reason="the bounds of the clip are not constants; make them so")
        qmin, qmax = max(qmin, math.ceil(max(bounds[0], qmin))), min(qmax, math.floor(min(bounds[1], qmax)))
    elif call_to(call, "nn.relu") is not None:
        return Rejection(reason="relu over integers ignores the zero point; write it between dequantize and quantize")
    y = QuantizedOutput(tensor=QuantizedTensor(name=core.name, shape=out_shape, params=params), qmin=qmin, qmax=qmax)
    op = _wide(MoveOp(x=QuantizedTensor(name=source.name, shape=shape, params=params), y=y, axes=axes), HALF_EVEN)
    if isinstance(op, Rejection):
        return op
    return Region(core=core, output=core, members=(core,), inputs=(source,), op=op)


def changes(x: QuantizedTensor, y: QuantizedOutput) -> bool:
    """Return whether a value's integers change, as kernels see them, on the way from `x` to `y`, besides moving."""
    out = output_spec(y)
    same = x.zero_point == out.zero_point and ratio(x.params, y.tensor.params) == 1.0
    return not same or (out.qmin, out.qmax) != INTEGER_RANGE[y.tensor.kernel_dtype]


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
