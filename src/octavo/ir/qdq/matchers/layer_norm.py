"""Rule of layer normalization over the last axis, its factors and addends constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ....numerics import LAYER_NORM_MAX_COLUMNS
from ....target import OpSupport
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.normalization import LayerNormOp
from ...graph.dataflow import DataflowView, static_shape
from ...graph.rules import Region, Rejection
from ..tail import check_activation, follow_to_quantize
from ..values import ConstantValue, constant_value, dequantized, real_values


def match_layer_norm(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(layer_norm(dequantize(x), gamma, beta)) over the last axis."""
    call: Any = view.definition(core)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or not shape or 0 in shape:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float, or its shape is not static; quantize and dequantize it before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1] or shape[-1] > LAYER_NORM_MAX_COLUMNS:
        taken = f"the kernel takes the last, of up to {LAYER_NORM_MAX_COLUMNS}"
        return Rejection(reason=f"it normalizes axes {[int(axis) for axis in call.attrs.axes]} of {shape}; {taken}")
    constants = [constant_value(view, arg) for arg in call.args[1:3]]
    known = [constant for constant in constants if constant is not None and constant.values.size == shape[-1]]
    if len(known) < 2:
        return Rejection(reason="a factor or an addend is not a constant of one number for each element of a row; make it one")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    gamma, beta = known
    op = LayerNormOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=tail.result,
        gamma=_values(gamma) if call.attrs.scale else np.ones(shape[-1], np.float32),
        beta=_values(beta) if call.attrs.center else np.zeros(shape[-1], np.float32),
        names=(gamma.name, beta.name),
        epsilon=float(call.attrs.epsilon),
    )
    members = (x.var, *gamma.members, *beta.members, core, *tail.members)
    return Region(
        core=core,
        output=tail.output,
        members=tuple(dict.fromkeys(var for var in members if var is not None)),
        inputs=(x.source,),
        op=op,
    )


def _values(constant: ConstantValue) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(real_values(constant).reshape(-1))
