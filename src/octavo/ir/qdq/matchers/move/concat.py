"""Rules of concatenations: of dequantized tensors, of integers that share scale and zero point, of float32.

Those of float32, and batch normalizations that no convolution absorbed, take the clamps behind along, in one pass.

Before::

    c = R.concat((a, b), axis=1); n = R.nn.batch_norm(c, ...); n0 = n[0]; y = R.nn.relu(n0)

After: one composite "octavo.float_concat" from a and b to y.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .....numerics import INTEGER_RANGE, PerTensor, QuantParams
from .....target import OpSupport
from ....composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ....composites.float_ops import FloatConcatOp, Line
from ....composites.movement import ConcatOp
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.growing_states import growing_states
from ....graph.rules import Region, Rejection
from ...batch_norm import line_of
from ...tail import check_activation, float_clamp, follow_to_quantize, integer_clamp, of_width, unquantized
from ...values import Dequantized, constant_value, dequantized, integer_params
from ..conv.float_tail import constants_behind
from ..elementwise.pairwise import tensor_of


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


def match_float_concat(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the concatenation of float32 activations, with a normalization that alone reads it, and any growing state's."""
    call: Any = view.definition(core)
    fields, shape = view.definition(call.args[0]), static_shape(core)
    if not isinstance(fields, relax.Tuple) or shape is None or 0 in shape or not _is_copied(view, core):
        return Rejection(reason=f"the inputs of {core.name} are not a literal tuple of static float32 shapes")
    tensors = [field for field in fields.fields if isinstance(field, Var)]
    if len(tensors) < len(fields.fields) or any(constant_value(view, tensor) is not None for tensor in tensors):
        return Rejection(reason=f"an operand of {core.name} is a constant")
    if any(0 in (static_shape(tensor) or (0,)) for tensor in tensors):
        return Rejection(reason=f"an operand of {core.name} is empty")
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    tuple_var = view.binding_of(call.args[0])
    members = (*(() if tuple_var is None else (tuple_var,)), core)
    return _claimed(view, core, tensors, members, axis)


def _is_copied(view: DataflowView, core: Var) -> bool:
    """Whether a concatenation is float32's, or that of a state that grows, which is to lie in place whatever its type is."""
    result = view.result
    results = list(result.fields) if isinstance(result, relax.Tuple) else [result]
    return dtype_of(core) == "float32" or any(core.same_as(results[state.output]) for state in growing_states(view.function))


def match_float_norm(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a batch normalization of a float32 activation by channel, of which only the normalized values are read."""
    norm: Any = view.definition(core)
    x, shape = norm.args[0], static_shape(norm.args[0])
    if not isinstance(x, Var) or shape is None or 0 in shape or constant_value(view, x) is not None:
        return Rejection(reason=f"the input of {core.name} is no activation of static shape")
    found = _normalization(view, core, int(norm.attrs.axis) % len(shape))
    if found is None:
        return Rejection(reason=f"{core.name} has factors that vary, or a result beside the normalized values")
    return _claimed(view, core, [x], (), int(norm.attrs.axis) % len(shape), found)


_Normalization = tuple[Line, tuple[Var, ...]]


def _normalization(view: DataflowView, norm_var: Var | None, axis: int) -> _Normalization | None:
    """Return the factors of a batch normalization along `axis` that a kernel can apply, and the variables it takes in."""
    norm: Any = None if norm_var is None else call_to(view.definition(norm_var), "nn.batch_norm")
    if norm is None or norm_var is None:
        return None
    line, item = line_of(view, norm), view.only_user(norm_var)
    value = None if item is None else view.definition(item)
    if line is None or item is None or not isinstance(value, relax.TupleGetItem) or value.index != 0:
        return None
    rank = line.factor.ndim
    if int(norm.attrs.axis) % rank != axis or not (axis == rank - 1 or (rank == 4 and axis == 1)):
        return None
    factor, shift = (np.ascontiguousarray(values.reshape(-1), np.float32) for values in (line.factor, line.shift))
    return (factor, shift), (*constants_behind(view, norm), norm_var, item)


def _claimed(
    view: DataflowView,
    core: Var,
    tensors: list[Var],
    members: tuple[Var, ...],
    axis: int,
    found: _Normalization | None = None,
) -> Region[CompositeOp]:
    """Return the region of `core`, with a normalization and the clamps that alone read what is before them."""
    output = core
    dtype = dtype_of(tensors[0])  # a norm itself is a tuple
    assert dtype is not None
    if found is None and dtype == "float32":
        found = _normalization(view, view.only_user(core), axis)
    line = None
    if found is not None:
        line, more = found
        members, output = (*members, *more), more[-1]
    low, high = -math.inf, math.inf
    while dtype == "float32" and (user := view.only_user(output)) is not None:
        bounds = float_clamp(view.definition(user))
        if bounds is None or max(low, bounds[0]) > min(high, bounds[1]):
            break
        low, high = max(low, bounds[0]), min(high, bounds[1])
        members, output = (*members, user), user
    shape = static_shape(output)
    assert shape is not None, "that of a concatenation of static shapes"
    op = FloatConcatOp(
        op=op_name(view.definition(core)),
        inputs=tuple(tensor.name for tensor in tensors),
        shape=shape,
        axis=axis,
        line=line,
        low=low,
        high=high,
        dtype=dtype,
    )
    inputs = tuple(dict.fromkeys(tensors))
    return Region(core=core, output=output, members=members, inputs=inputs, op=op)
