"""Rules of the elementwise and joining ops: add and concat."""

from __future__ import annotations

from tvm import relax
from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.rules import Region, Rejection
from ..numerics import INTEGER_RANGE, PerTensor, QuantParams
from ..target import OpSupport
from .forms import AddForm, ConcatForm, OutputForm, TensorForm
from .quantize_info import quantize_info
from .tail import check_activation, follow_to_quantize, integer_clamp
from .values import Dequantized, constant_value, dequantized, integer_params


def match_add(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(dequantize(a) + dequantize(b))); b may be a quantized constant or broadcast over leading axes."""
    call = call_to(view.definition(core), "add")
    assert call is not None
    sides = [dequantized(view, arg) for arg in call.args]
    for side, arg in zip(sides, call.args, strict=True):
        if side is None:
            return Rejection(reason=f"operand {getattr(arg, 'name', 'constant')} is float: no dequantize with constant scale")
    a, b = (side for side in sides if side is not None)
    if not isinstance(a.source, Var):
        a, b = b, a
    if not isinstance(a.source, Var):
        return Rejection(reason="both operands are constants; fold them")
    a_shape, b_shape, y_shape = static_shape(a.source), static_shape(b.source), static_shape(core)
    if a_shape is None or b_shape is None or y_shape is None:
        return Rejection(reason=f"the shape of {core.name} or of an operand is not static")
    if a_shape != y_shape and isinstance(b.source, Var):
        (a, a_shape), (b, b_shape) = (b, b_shape), (a, a_shape)
    if a_shape != y_shape or not _is_trailing_part(b_shape, a_shape):
        return Rejection(reason=f"shapes {a_shape} and {b_shape}: one must have the result's shape, the other its trailing part")
    for side in (a, b):
        problem = check_activation(getattr(side.source, "name", "constant"), side.params, support)
        if problem is not None:
            return problem
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    constant = None if isinstance(b.source, Var) else constant_value(view, b.source)
    form = AddForm(a=_form(a), b=_form(b), b_values=None if constant is None else constant.values, y=tail.form)
    inputs = tuple(dict.fromkeys(side.source for side in (a, b) if isinstance(side.source, Var)))
    members = tuple(side.var for side in (a, b) if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*dict.fromkeys(members), core, *tail.members),
        inputs=inputs,
        attrs={"quantize_info": quantize_info(form)},
        form=form,
    )


def _is_trailing_part(part: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return whether broadcasting `part` to `whole` repeats it as it lies in memory."""
    while part and part[0] == 1:
        part = part[1:]
    return whole[len(whole) - len(part) :] == part


def _form(side: Dequantized) -> TensorForm:
    shape = static_shape(side.source)
    assert shape is not None
    return TensorForm(name=getattr(side.source, "name", "constant"), shape=shape, params=side.params)


def match_concat(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(concat(dequantize(x0), ...)), or a concat of integers that share scale and zero point."""
    call = call_to(view.definition(core), "concat")
    assert call is not None
    fields = view.definition(call.args[0])
    shape = static_shape(core)
    if not isinstance(fields, relax.Tuple) or shape is None:
        return Rejection(reason=f"the inputs of {core.name} are not a literal tuple of static shapes")
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    tuple_var = view.binding_of(call.args[0])
    grouping = () if tuple_var is None else (tuple_var,)
    if dtype_of(core) in INTEGER_RANGE:
        return _integer_concat(view, core, list(fields.fields), shape, axis, grouping, support)
    sides: list[Dequantized] = []
    for field in fields.fields:
        side = dequantized(view, field)
        if side is None or not isinstance(side.source, Var):
            return Rejection(reason=f"operand {getattr(field, 'name', 'constant')} is float: no dequantize with constant scale")
        problem = check_activation(side.source.name, side.params, support)
        if problem is not None:
            return problem
        sides.append(side)
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    form = ConcatForm(inputs=tuple(_form(side) for side in sides), y=tail.form, axis=axis)
    members = dict.fromkeys(side.var for side in sides if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, *grouping, core, *tail.members),
        inputs=tuple(dict.fromkeys(side.source for side in sides if isinstance(side.source, Var))),
        attrs={"quantize_info": quantize_info(form)},
        form=form,
    )


def _integer_concat(
    view: DataflowView,
    core: Var,
    fields: list[Expr],
    shape: tuple[int, ...],
    axis: int,
    grouping: tuple[Var, ...],
    support: OpSupport,
) -> Region | Rejection:
    y_params = integer_params(view, core)
    tensors: list[TensorForm] = []
    for field in fields:
        params = integer_params(view, field)
        field_shape = static_shape(field)
        if not isinstance(field, Var) or params is None or field_shape is None:
            return Rejection(reason=f"operand {getattr(field, 'name', 'constant')} has no known scale")
        if y_params is None:
            y_params = params
        problem = check_activation(field.name, params, support)
        if problem is not None:
            return problem
        if not _same_values(params, y_params):
            return Rejection(reason=f"operand {field.name} has another scale or zero point than {core.name}; quantize after it")
        tensors.append(TensorForm(name=field.name, shape=field_shape, params=params))
    assert y_params is not None
    output, qmin, qmax = integer_clamp(view, core, y_params.qmin, y_params.qmax)
    tensor = TensorForm(name=output.name, shape=shape, params=y_params)
    form = ConcatForm(inputs=tuple(tensors), y=OutputForm(tensor=tensor, qmin=qmin, qmax=qmax), axis=axis)
    tail = () if output.same_as(core) else (output,)
    return Region(
        core=core,
        output=output,
        members=(*grouping, core, *tail),
        inputs=tuple(dict.fromkeys(field for field in fields if isinstance(field, Var))),
        attrs={"quantize_info": quantize_info(form)},
        form=form,
    )


def _same_values(a: QuantParams, b: QuantParams) -> bool:
    return (
        isinstance(a.granularity, PerTensor)
        and isinstance(b.granularity, PerTensor)
        and a.dtype == b.dtype
        and bool(a.scale == b.scale)
        and bool(a.zero_point == b.zero_point)
    )
