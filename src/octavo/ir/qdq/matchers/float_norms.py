"""Rules of normalizations of float32: softmax, layer norm over the last axis, group norm of channels that lie last.

The last takes the function of single elements behind it along; a softmax what is added before it, and a quantize behind it.

Before::

    r = R.reshape(x, (1, 8, -1)); g = R.nn.group_norm(r, ...); b = R.reshape(g, ...); y = R.nn.relu(b * gamma + beta)

After: one composite "octavo.float_group_norm" from x to y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ....runtime.size import is_open
from ...composites.base import CompositeOp
from ...composites.float_ops import FloatGroupNormOp, FloatLayerNormOp, FloatSoftmaxOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.group_norm import GroupNorm, read_group_norm
from ...graph.rules import Region, Rejection
from ..values import constant_value, real_values
from .conv.float_tail import constants_behind
from .elementwise.float_chain import chain_from
from .elementwise.float_elementwise import quantized_behind


def match_float_softmax(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim softmax of float32, or its logarithm, and the quantize that alone reads it."""
    return _softmax(view, core, _Before())


def match_masked_softmax(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the same with the addend before it, a mask.

    Before::

        t = R.add(s, mask); p = R.nn.softmax(t, axis=-1); y = R.quantize(p, ...)

    After: one composite "octavo.float_softmax" from s and mask to y.
    """
    return _with_addend(view, core, takes_factor=False)


def match_scaled_softmax(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim the same with a constant factor or divisor before the addend, which is zeros where there is none."""
    return _with_addend(view, core, takes_factor=True)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Before:
    """What is computed before a softmax: of `x`, None for what the softmax reads itself; `members` compute it."""

    x: Var | None = None
    factor: float | None = None
    addend: Var | npt.NDArray[np.float32] | None = None
    members: tuple[Var, ...] = ()


def _softmax(view: DataflowView, core: Var, before: _Before) -> Region[CompositeOp] | Rejection:
    call: Any = view.definition(core)
    x, shape = call.args[0] if before.x is None else before.x, static_shape(core)
    if not isinstance(x, Var) or shape is None or 0 in shape or not shape or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name} is not a float32 softmax of static shape")
    axis = int(call.attrs.axis) % len(shape)
    if constant_value(view, x) is not None or (before.members and axis != len(shape) - 1):
        return Rejection(reason=f"{core.name} is over a constant, or its addend over another axis than the last")
    end = quantized_behind(view, core)
    addend = before.addend
    op = FloatSoftmaxOp(
        op=op_name(call),
        x=x.name,
        shape=shape,
        axis=axis,
        factor=before.factor,
        addend=addend.name if isinstance(addend, Var) else addend,
        addend_shape=(static_shape(addend) or ()) if isinstance(addend, Var) else () if addend is None else addend.shape,
        y=None if end is None else end[1],
        rounding="half_even" if end is None else end[2],
    )
    output = core if end is None else end[0]
    inputs = (x, addend) if isinstance(addend, Var) else (x,)
    members = tuple(dict.fromkeys((*before.members, core, output)))
    return Region(core=core, output=output, members=members, inputs=tuple(dict.fromkeys(inputs)), op=op)


def _with_addend(view: DataflowView, core: Var, *, takes_factor: bool) -> Region[CompositeOp] | Rejection:
    before = _before(view, core, takes_factor=takes_factor)
    if before is None:
        return Rejection(reason=f"{core.name} is no softmax of a sum with a tensor that broadcasts")
    return _softmax(view, core, before)


def _before(view: DataflowView, core: Var, *, takes_factor: bool) -> _Before | None:
    call: Any = view.definition(core)
    total, shape = call.args[0], static_shape(core)
    alone = _scaled(view, total) if takes_factor and isinstance(total, Var) and shape and not is_open(shape[-1]) else None
    if alone is not None and shape is not None:
        return _Before(x=alone[0], factor=alone[1], addend=np.zeros(shape[-1], np.float32), members=alone[2])
    added = call_to(view.definition(total), "add") if isinstance(total, Var) and view.only_user(total) is not None else None
    if added is None:
        return None
    for x, other in (added.args, added.args[::-1]):
        addend = _addend(view, other, core)
        if addend is None or not isinstance(x, Var) or dtype_of(x) != "float32" or static_shape(x) != static_shape(core):
            continue
        members = (*addend[1], total)
        if not takes_factor:
            return _Before(x=x, addend=addend[0], members=members)
        scaled = _scaled(view, x)
        if scaled is not None:
            return _Before(x=scaled[0], factor=scaled[1], addend=addend[0], members=(*scaled[2], *members))
    return None


def _addend(view: DataflowView, arg: Expr, core: Var) -> tuple[Var | npt.NDArray[np.float32], tuple[Var, ...]] | None:
    """Return a float32 tensor or numbers that broadcast to the softmax along other axes than the last, and what computes them."""
    constant, shape = constant_value(view, arg), static_shape(arg)
    own = static_shape(core)
    if not shape or own is None or len(shape) > len(own) or dtype_of(arg) != "float32":
        return None
    if shape[-1] != own[-1] or any(size not in (1, extent) for size, extent in zip(shape[::-1], own[::-1], strict=False)):
        return None
    if constant is not None:
        return np.ascontiguousarray(real_values(constant), np.float32), constant.members
    return (arg, ()) if isinstance(arg, Var) else None


def _scaled(view: DataflowView, var: Var) -> tuple[Var, float, tuple[Var, ...]] | None:
    """Return what is multiplied by a number, or divided, the factor, and the variables that compute it; it has one reader."""
    call = call_to(view.definition(var), "multiply", "divide") if view.only_user(var) is not None else None
    is_quotient = call_to(call, "divide") is not None
    for x, other in () if call is None else (call.args, call.args[::-1])[: 1 if is_quotient else 2]:
        constant = constant_value(view, other)
        if constant is None or constant.values.size != 1 or not isinstance(x, Var) or static_shape(x) != static_shape(var):
            continue
        number = float(real_values(constant).reshape(()))
        factor = number if not is_quotient else 1 / number if number else math.inf
        if math.isfinite(factor) and dtype_of(x) == "float32":
            return x, factor, (*constant.members, var)
    return None


def match_float_layer_norm(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim layer_norm of float32 over the last axis, its factors and addends constants."""
    call: Any = view.definition(core)
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or not shape or 0 in shape or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name} is not a float32 normalization of static shape")
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1] or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is not over the last axis of an activation")
    constants = [constant_value(view, arg) for arg in call.args[1:3]]
    known = [real_values(constant).reshape(-1) for constant in constants if constant is not None]
    if len(known) < 2 or any(values.shape != shape[-1:] for values in known):
        return Rejection(reason=f"a factor or an addend of {core.name} is not a constant")
    gamma, beta = (np.ascontiguousarray(values, np.float32) for values in known)
    op = FloatLayerNormOp(
        op="nn.layer_norm",
        x=x.name,
        shape=shape,
        gamma=gamma if call.attrs.scale else np.ones_like(gamma),
        beta=beta if call.attrs.center else np.zeros_like(beta),
        epsilon=float(call.attrs.epsilon),
    )
    members = (*constants_behind(view, call), core)
    return Region(core=core, output=core, members=members, inputs=(x,), op=op)


def group_norm_of_constants(view: DataflowView, core: Var) -> GroupNorm | Rejection:
    """Return the normalization around a group_norm by constants."""

    def constant(expr: Expr) -> npt.NDArray[np.float32] | None:
        found = constant_value(view, expr)
        return None if found is None else real_values(found)

    norm = read_group_norm(view, core, constant)
    shape = None if norm is None else static_shape(norm.data)
    if norm is None or not shape or 0 in shape:
        return Rejection(reason="it is no normalization over all axes behind the first, in groups of channels, by constants")
    return norm


def match_float_group_norm(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a group normalization of a float32 activation, and the chain of single elements that alone reads it."""
    norm = group_norm_of_constants(view, core)
    if isinstance(norm, Rejection):
        return norm
    if dtype_of(norm.data) != "float32" or constant_value(view, norm.data) is not None:
        return Rejection(reason=f"{norm.data.name} is no float32 activation")
    chain = chain_from(view, norm.output, max_inputs=2)
    inputs, members, output = (norm.data,), norm.members, norm.output
    if chain is not None:
        inputs, members, output = (norm.data, *chain.inputs[1:]), (*norm.members, *chain.members), chain.output
    op = FloatGroupNormOp(
        op="nn.group_norm",
        inputs=tuple(var.name for var in inputs),
        groups=norm.groups,
        axis=norm.channel_axis,
        gamma=norm.gamma,
        beta=norm.beta,
        epsilon=norm.epsilon,
        function=None if chain is None else chain.function,
    )
    constants = [var for member in members for var in constants_behind(view, view.definition(member))]
    return Region(
        core=core,
        output=output,
        members=tuple(dict.fromkeys((*constants, *members))),
        inputs=tuple(dict.fromkeys(inputs)),
        op=op,
    )
