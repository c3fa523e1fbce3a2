"""Rule of group normalization, which instance normalization is a form of: quantized images, factors and addends constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import Var

from ....numerics import GROUP_NORM_MAX_VALUES
from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.normalization import GroupNormOp
from ...graph.dataflow import DataflowView, static_shape
from ...graph.rules import Region, Rejection
from ..tail import check_activation, follow_to_quantize
from ..values import dequantized
from .float_group_norm import group_norm_of_constants
from .float_tail import constants_behind


def match_group_norm(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
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
    shape = static_shape(x.source)
    assert shape is not None, "checked with the channels"
    size = int(np.prod(shape[1:])) // norm.groups
    if size > GROUP_NORM_MAX_VALUES:
        return Rejection(reason=f"its groups have {size} values; the kernel takes up to {GROUP_NORM_MAX_VALUES}")
    tail = follow_to_quantize(view, norm.output, support)
    if isinstance(tail, Rejection):
        return tail
    call: Any = view.definition(core)
    op = GroupNormOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=tail.result,
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
        op=op,
    )
