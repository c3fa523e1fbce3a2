"""The rules of products of a batch of matrices by constant weights, of which each has its own: mixtures of experts.

Before::

    x = R.dequantize(x_q, ...); w = <[experts, in, out] of w_q, with a scale for each expert and output>
    lv = R.matmul(x, w); y = R.quantize(lv, ...)

After: one composite "octavo.stacked_matmul" from x_q to y, the weights in it side by side, [in, experts * out]. The batch of x
ends with that of the weights. x may be quantized per row when run; where nothing quantizes the result, it is float32.

With w = R.permute_dims(R.take(<[experts, out, in] of w_q>, indices, axis=0)) it is a composite "octavo.gathered_matmul" of x_q
and the indices: each matrix is multiplied by what its index chooses, and no weights are gathered.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ....target import OpSupport
from ...composites.base import WIDE, CompositeOp
from ...composites.weighted import GatheredMatmulOp, StackedMatmulOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ...graph.weighted import read_gathered, stack_of
from ..values import ConstantValue
from .conv.conv2d import Input, follow_weighted, quantized_input, weighted_operands, weighted_region


def match_stacked_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(matmul(dequantize(x), dequantize(w)))) with a constant w [..., in, out] of several matrices."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    operands = weighted_operands(view, call, support)
    if isinstance(operands, Rejection):
        return operands
    x_shape = static_shape(call.args[0])
    stack = None if x_shape is None else stack_of(x_shape, operands[1].values.shape)
    if stack is None:
        return Rejection(
            reason=f"matmul of {x_shape} by {operands[1].values.shape}: the batch does not end with that of several weights"
        )
    return _claimed(view, core, operands, support, stack)


def match_gathered_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim it with w = permute_dims(take(dequantize(w), indices, axis=0)), of a constant [experts, out, in]."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    found = read_gathered(view, call.args[1])
    if found is None:
        return Rejection(reason=f"weight {getattr(call.args[1], 'name', '')} is not gathered of several; see simplify")
    operands = weighted_operands(view, call, support, weight=found.weights)
    if isinstance(operands, Rejection):
        return operands
    x_shape, indices = static_shape(call.args[0]), found.choice.indices
    x, weight = operands
    places = static_shape(indices)
    if weight.values.ndim != 3 or not x_shape or places is None or math.prod(places) != math.prod(x_shape[:-2]):
        found_at = f"{x_shape} by {weight.values.shape} at {places}"
        return Rejection(reason=f"matmul of {found_at}: there is not one index for each matrix")
    if dtype_of(indices) not in ("int32", "int64"):
        return Rejection(reason=f"indices {indices.name} are {dtype_of(indices)}, expected int32 or int64")
    moved = [np.swapaxes(each, -1, -2) for each in (weight.values, weight.scale, weight.zero_point) if each is not None]
    members = (*weight.members, *found.choice.members)
    turned = replace(weight, values=moved[0], scale=moved[1], zero_point=moved[2], members=members)
    region = _claimed(view, core, (x, turned), support, len(weight.values))
    if isinstance(region, Rejection):
        return region
    own = {each.name: getattr(region.op, each.name) for each in fields(StackedMatmulOp)}
    return replace(region, op=GatheredMatmulOp(**own, indices=indices.name), inputs=(*region.inputs, indices))


def _claimed(
    view: DataflowView, core: Var, operands: tuple[Input, ConstantValue], support: OpSupport, stack: int
) -> Region[CompositeOp] | Rejection:
    """Return the product of operands, the weights [..., in, out] of so many matrices, with what follows in its kernel."""
    x, weight = operands
    call: Any = view.definition(core)
    shape, x_shape = static_shape(core), static_shape(call.args[0])
    if dtype_of(core) != "float32" or shape is None or x_shape is None or 0 in (*shape, *x_shape):
        return Rejection(reason=f"{core.name} is no float32 product of static shape")
    if x.params.dtype in WIDE:
        return Rejection(reason=f"input {x.source.name} is {x.params.dtype}; kernels of several weights take 8 bits")
    laid = _side_by_side(weight)
    if isinstance(laid, Rejection):
        return laid
    followed = follow_weighted(view, core, (x, laid), (len(shape) - 1, 1), (0, 1), support)
    if isinstance(followed, Rejection):
        return followed
    weighted, weights, result = followed
    read = replace(quantized_input(x), shape=x_shape)
    op = StackedMatmulOp(x=read, weight=weights, y=result, accumulator_bits=support.bits_of(x.params.dtype), stack=stack)
    return weighted_region(core, x, weighted, op)


def _side_by_side(weight: ConstantValue) -> ConstantValue | Rejection:
    """Return weights [..., in, out] as one matrix, [in, all of them times out]."""
    assert weight.scale is not None
    assert weight.zero_point is not None
    inputs, outputs = weight.values.shape[-2:]
    count = math.prod(weight.values.shape[:-2])
    integers = weight.values.reshape(count, inputs, outputs).transpose(1, 0, 2).reshape(inputs, count * outputs)

    def by_output(values: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
        first = values[..., :1, :]
        return np.broadcast_to(first.reshape(-1), integers.shape) if (values == first).all() else None

    scale, zero_point = by_output(weight.scale), by_output(weight.zero_point)
    if scale is None or zero_point is None:
        return Rejection(reason=f"weight {weight.name} has scales that vary within one output channel; give each channel one")
    return replace(weight, values=integers, scale=scale, zero_point=zero_point)
