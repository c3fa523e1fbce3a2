"""Rules of normalizations of float32: softmax and layer norm over the last axis, group norm of channels that lie last.

The last takes the function of single elements behind it along. Nothing of them is quantized.

Before::

    r = R.reshape(x, (1, 8, -1)); g = R.nn.group_norm(r, ...); b = R.reshape(g, ...); y = R.nn.relu(b * gamma + beta)

After: one composite "octavo.float_group_norm" from x to y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatGroupNormOp, FloatLayerNormOp, FloatSoftmaxOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.group_norm import GroupNorm, read_group_norm
from ...graph.rules import Region, Rejection
from ..values import constant_value, real_values
from .conv.float_tail import constants_behind
from .elementwise.float_chain import chain_from


def match_float_softmax(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim softmax of float32 over the last axis."""
    call: Any = view.definition(core)
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or shape is None or 0 in shape or not shape or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name} is not a float32 softmax of static shape")
    if int(call.attrs.axis) % len(shape) != len(shape) - 1 or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is not over the last axis of an activation")
    op = FloatSoftmaxOp(op="nn.softmax", x=x.name, shape=shape)
    return Region(core=core, output=core, members=(core,), inputs=(x,), op=op)


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
