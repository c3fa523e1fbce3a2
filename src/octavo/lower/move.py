"""Rules of ops that only move or clamp values: reshape, squeeze, transposition, relu and clip alone, a change of parameters."""

from __future__ import annotations

import math

from tvm.relax import Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..numerics import INTEGER_RANGE
from ..target import OpSupport
from .forms import MoveForm, OutputForm, TensorForm
from .quantize_info import quantize_info
from .tail import check_activation, clamp_in_integers, clip_bounds, follow_to_quantize, integer_clamp
from .values import dequantized, integer_params

_CLAMPS = OpSupport(op="clip", fusions=("nn.relu", "clip"))


def match_move(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(move(dequantize(x))), or a movement of integers, as one composite "octavo.move"."""
    call = view.definition(core)
    axes = _axes(view, core)
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_move(view, core, axes, support)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float: it is not the result of a dequantize with constant scale")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, _CLAMPS if op_name(call) in ("nn.relu", "clip") else support)
    if isinstance(tail, Rejection):
        return tail
    y = _with_own_clamp(call, tail.form)
    if isinstance(y, Rejection):
        return y
    form = MoveForm(x=TensorForm(name=x.source.name, shape=shape, params=x.params), y=y, axes=axes)
    return Region(
        core=core,
        output=tail.output,
        members=(*([x.var] if x.var is not None else []), core, *tail.members),
        inputs=(x.source,),
        attrs={"quantize_info": quantize_info(form)},
        form=form,
    )


def match_requantize(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
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
    y = OutputForm(tensor=TensorForm(name=output.name, shape=shape, params=params), qmin=qmin, qmax=qmax)
    form = MoveForm(x=TensorForm(name=x.source.name, shape=shape, params=x.params), y=y, axes=None)
    return Region(
        core=core,
        output=output,
        members=(*([x.var] if x.var is not None else []), core, *(() if output.same_as(core) else (output,))),
        inputs=(x.source,),
        attrs={"quantize_info": quantize_info(form)},
        form=form,
    )


def _axes(view: DataflowView, core: Var) -> tuple[int, ...] | None:
    call = call_to(view.definition(core), "permute_dims")
    shape = static_shape(core)
    if call is None or shape is None:
        return None
    if call.attrs.axes is None:
        return tuple(reversed(range(len(shape))))
    return tuple(int(axis) % len(shape) for axis in call.attrs.axes)


def _with_own_clamp(call: object, y: OutputForm) -> OutputForm | Rejection:
    clamp = call_to(call, "nn.relu", "clip")
    if clamp is None:
        return y
    bounds = (0.0, math.inf) if call_to(clamp, "nn.relu") is not None else clip_bounds(clamp)
    if bounds is None:
        return Rejection(reason="the bounds of the clip are not constants")
    low, high = clamp_in_integers(y.tensor.params, *bounds)
    return OutputForm(tensor=y.tensor, qmin=max(low, y.qmin), qmax=min(high, y.qmax))


def _integer_move(view: DataflowView, core: Var, axes: tuple[int, ...] | None, support: OpSupport) -> Region | Rejection:
    call = view.definition(core)
    source = call.args[0]
    params = integer_params(view, source) or integer_params(view, core)
    shape, out_shape = static_shape(source), static_shape(core)
    if params is None or not isinstance(source, Var) or shape is None or out_shape is None:
        return Rejection(reason=f"input {getattr(source, 'name', 'constant')} has no known scale or no static shape")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    qmin, qmax = params.qmin, params.qmax
    clip = call_to(call, "clip")
    if clip is not None:
        bounds = clip_bounds(clip)
        if bounds is None:
            return Rejection(reason="the bounds of the clip are not constants")
        qmin, qmax = max(qmin, math.ceil(max(bounds[0], qmin))), min(qmax, math.floor(min(bounds[1], qmax)))
    elif call_to(call, "nn.relu") is not None:
        return Rejection(reason="relu over integers ignores the zero point; use it in QDQ form")
    y = OutputForm(tensor=TensorForm(name=core.name, shape=out_shape, params=params), qmin=qmin, qmax=qmax)
    form = MoveForm(x=TensorForm(name=source.name, shape=shape, params=params), y=y, axes=axes)
    return Region(
        core=core, output=core, members=(core,), inputs=(source,), attrs={"quantize_info": quantize_info(form)}, form=form
    )
