"""Rule of float32 group normalization, channels last, with the function of single elements behind it.

Before::

    r = R.reshape(x, (1, 8, -1)); g = R.nn.group_norm(r, ...); b = R.reshape(g, ...); y = R.nn.relu(b * gamma + beta)

After: one composite "octavo.float_group_norm" from x to y.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatGroupNormOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.group_norm import GroupNorm, read_group_norm
from ...graph.rules import Region, Rejection
from ..values import constant_value, real_values
from .float_chain import chain_from
from .float_tail import constants_behind


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
