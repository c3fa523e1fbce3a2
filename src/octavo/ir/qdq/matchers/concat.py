"""Rule of concat: of dequantized tensors, or of integers that share scale and zero point."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ....numerics import INTEGER_RANGE, PerTensor, QuantParams
from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.movement import ConcatOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ..tail import check_activation, follow_to_quantize, integer_clamp, of_width, unquantized
from ..values import Dequantized, constant_value, dequantized, integer_params
from .add import tensor_of


def match_concat(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
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
    constants: dict[int, npt.NDArray[Any]] = {}
    for operand in fields.fields:
        side = dequantized(view, operand)
        if side is None:
            return unquantized(operand)
        constant = None if isinstance(side.source, Var) else constant_value(view, side.source)
        if constant is not None:
            constants[len(sides)] = constant.values
        problem = check_activation(getattr(side.source, "name", "constant"), side.params, support)
        if problem is not None:
            return problem
        support = of_width(support, side.params)
        sides.append(side)
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    if len(constants) == len(sides):
        return Rejection(reason="all its operands are constants; fold them before loading")
    op = ConcatOp(inputs=tuple(tensor_of(side) for side in sides), y=tail.result, axis=axis, constants=constants)
    members = dict.fromkeys(side.var for side in sides if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, *grouping, core, *tail.members),
        inputs=tuple(dict.fromkeys(side.source for side in sides if isinstance(side.source, Var))),
        op=op,
    )


def _integer_concat(
    view: DataflowView,
    core: Var,
    fields: list[Expr],
    shape: tuple[int, ...],
    axis: int,
    grouping: tuple[Var, ...],
    support: OpSupport,
) -> Region[CompositeOp] | Rejection:
    y_params = integer_params(view, core)
    tensors: list[QuantizedTensor] = []
    for field in fields:
        params = integer_params(view, field)
        field_shape = static_shape(field)
        if not isinstance(field, Var) or params is None or field_shape is None:
            return Rejection(reason=f"operand {getattr(field, 'name', 'constant')} has no known scale; dequantize it somewhere")
        if y_params is None:
            y_params = params
        problem = check_activation(field.name, params, support)
        if problem is not None:
            return problem
        if not _same_values(params, y_params):
            return Rejection(reason=f"operand {field.name} has another scale or zero point than {core.name}; quantize after it")
        tensors.append(QuantizedTensor(name=field.name, shape=field_shape, params=params))
    assert y_params is not None
    output, qmin, qmax = integer_clamp(view, core, y_params.qmin, y_params.qmax)
    tensor = QuantizedTensor(name=output.name, shape=shape, params=y_params)
    op = ConcatOp(inputs=tuple(tensors), y=QuantizedOutput(tensor=tensor, qmin=qmin, qmax=qmax), axis=axis, constants={})
    tail = () if output.same_as(core) else (output,)
    return Region(
        core=core,
        output=output,
        members=(*grouping, core, *tail),
        inputs=tuple(dict.fromkeys(field for field in fields if isinstance(field, Var))),
        op=op,
    )


def _same_values(a: QuantParams, b: QuantParams) -> bool:
    return (
        isinstance(a.granularity, PerTensor)
        and isinstance(b.granularity, PerTensor)
        and a.dtype == b.dtype
        and bool(a.scale == b.scale)
        and bool(a.zero_point == b.zero_point)
    )
