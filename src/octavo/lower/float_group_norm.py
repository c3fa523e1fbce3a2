"""Rule of float32 group normalization, channels last, with the function of single elements behind it.

Before::

    r = R.reshape(x, (1, 8, -1)); g = R.nn.group_norm(r, ...); b = R.reshape(g, ...); y = R.nn.relu(b * gamma + beta)

After: one composite "octavo.float_group_norm" from x to y.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, dtype_of, static_shape
from ..graph.group_norm import GroupNorm, read_group_norm
from ..graph.rules import Region, Rejection
from ..kernels import ChannelGroups, FloatGroupNormSpec
from ..numerics.floats.float_function import FloatFunction
from .context import KernelContext, shape_of
from .float_chain import chain_from
from .float_tail import constants_behind
from .forms import FloatOp
from .softmax import write_rows
from .values import constant_value, real_values


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatGroupNormForm(FloatOp):
    """function(group_norm(x), ...) in groups of the channels, `axis` of the source's layout."""

    inputs: tuple[str, ...]
    groups: int
    axis: int
    gamma: npt.NDArray[np.float32]
    beta: npt.NDArray[np.float32]
    epsilon: float
    function: FloatFunction | None

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        x, *beside = (inputs[name] for name in self.inputs)
        form = channel_groups(shape_of(x), self.axis, self.groups, context.threads)
        spec = FloatGroupNormSpec(form=form, epsilon=self.epsilon, function=self.function)
        kernel = kernels.float_group_norm(spec, gamma=self.gamma, beta=self.beta, isa=context.isa)
        write_rows(context, x, output, self.axis, kernel, "float32", beside=beside)


def channel_groups(shape: tuple[int, ...], axis: int, groups: int, threads: int) -> ChannelGroups:
    """Return a tensor with channels along `axis` as kernels see it."""
    pixels = math.prod(shape[1:]) // shape[axis]
    return ChannelGroups(images=shape[0], pixels=pixels, channels=shape[axis], groups=groups, threads=threads)


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


def match_float_group_norm(view: DataflowView, core: Var) -> Region | Rejection:
    """Claim a group normalization of a float32 activation, and the chain of single elements that alone reads it."""
    norm = group_norm_of_constants(view, core)
    if isinstance(norm, Rejection):
        return norm
    if dtype_of(norm.data) != "float32" or constant_value(view, norm.data) is not None:
        return Rejection(reason=f"{norm.data.name} is no float32 activation")
    chain = chain_from(view, norm.output, most_inputs=2)
    inputs, members, output = (norm.data,), norm.members, norm.output
    if chain is not None:
        inputs, members, output = (norm.data, *chain.inputs[1:]), (*norm.members, *chain.members), chain.output
    form = FloatGroupNormForm(
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
        attrs={},
        form=form,
    )
