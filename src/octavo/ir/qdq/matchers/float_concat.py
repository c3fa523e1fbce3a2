"""Rules of float32 concatenations, and of batch normalizations that no convolution absorbed: with the clamps behind, in one pass.

Before::

    c = R.concat((a, b), axis=1); n = R.nn.batch_norm(c, ...); n0 = n[0]; y = R.nn.relu(n0)

After: one composite "octavo.float_concat" from a and b to y.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatConcatOp, Line
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..batch_norm import line_of
from ..tail import float_clamp
from ..values import constant_value
from .float_tail import constants_behind


def match_float_concat(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the concatenation of float32 activations, and the normalization of it if that alone reads it."""
    call: Any = view.definition(core)
    fields, shape = view.definition(call.args[0]), static_shape(core)
    if not isinstance(fields, relax.Tuple) or shape is None or 0 in shape or dtype_of(core) != "float32":
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
    if found is None:
        found = _normalization(view, view.only_user(core), axis)
    line = None
    if found is not None:
        line, more = found
        members, output = (*members, *more), more[-1]
    low, high = -math.inf, math.inf
    while (user := view.only_user(output)) is not None:
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
    )
    inputs = tuple(dict.fromkeys(tensors))
    return Region(core=core, output=output, members=members, inputs=inputs, op=op)
