"""Rule of group normalization, which instance normalization is a form of: quantized images, factors and addends constants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView
from ..graph.rules import Region, Rejection
from ..kernels import GroupNormSpec
from ..numerics import GROUP_NORM_MAX_VALUES
from ..target import OpSupport
from .context import KernelContext, shape_of
from .float_group_norm import channel_groups, group_norm_of_constants
from .float_tail import constants_behind
from .forms import TensorForm
from .layer_norm import NormalizationForm
from .softmax import write_rows
from .tail import check_activation, follow_to_quantize
from .values import dequantized


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GroupNormForm(NormalizationForm):
    """Statistics over `groups` equal parts of the channels, which are `axis`, and all pixels of an image."""

    groups: int
    axis: int

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        spec = GroupNormSpec(
            form=channel_groups(self.x.shape, self.axis, self.groups, context.threads),
            scale=float(self.x.params.scale),
            epsilon=self.epsilon,
            out_scale=float(self.y.tensor.params.scale),
            output=self.y.spec(),
        )
        kernel = kernels.group_norm(spec, gamma=self.gamma, beta=self.beta, isa=context.isa)
        write_rows(context, inputs[self.x.name], output, self.axis, kernel)


def match_group_norm(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(group_norm(dequantize(x), gamma, beta)), with the reshapes and factors around that belong to it."""
    norm = group_norm_of_constants(view, core)
    if isinstance(norm, Rejection):
        return norm
    x = dequantized(view, norm.data)
    if x is None or not isinstance(x.source, Var):
        return Rejection(reason=f"input {norm.data.name} is float; quantize and dequantize it before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    shape = shape_of(x.source)
    size = int(np.prod(shape[1:])) // norm.groups
    if size > GROUP_NORM_MAX_VALUES:
        return Rejection(reason=f"its groups have {size} values; the kernel takes up to {GROUP_NORM_MAX_VALUES}")
    tail = follow_to_quantize(view, norm.output, support)
    if isinstance(tail, Rejection):
        return tail
    call: Any = view.definition(core)
    form = GroupNormForm(
        x=TensorForm(name=x.source.name, shape=shape, params=x.params),
        y=tail.form,
        groups=norm.groups,
        axis=norm.channel_axis,
        gamma=norm.gamma,
        beta=norm.beta,
        names=(getattr(call.args[1], "name", ""), getattr(call.args[2], "name", "")),
        epsilon=norm.epsilon,
    )
    constants = [var for member in norm.members for var in constants_behind(view, view.definition(member))]
    members = () if x.var is None else (x.var,)
    return Region(
        core=core,
        output=tail.output,
        members=tuple(dict.fromkeys((*members, *constants, *norm.members, *tail.members))),
        inputs=(x.source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )
