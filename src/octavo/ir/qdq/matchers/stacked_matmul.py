"""The rule of products of a batch of matrices by constant weights, of which each has its own: mixtures of experts.

Before::

    x = R.dequantize(x_q, ...); w = <[experts, in, out] of w_q, with a scale for each expert and output>
    lv = R.matmul(x, w); y = R.quantize(lv, ...)

After: one composite "octavo.stacked_matmul" from x_q to y, the weights in it side by side, [in, experts * out]. The batch of x
ends with that of the weights. x may be quantized per row when run; where nothing quantizes the result, it is float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ....target import OpSupport
from ...composites.base import WIDE, CompositeOp
from ...composites.weighted import StackedMatmulOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ...graph.rules import Region, Rejection
from ...graph.weighted import stack_of
from ..values import ConstantValue
from .conv.conv2d import follow_weighted, quantized_input, weighted_operands, weighted_region


def match_stacked_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(matmul(dequantize(x), dequantize(w)))) with a constant w [..., in, out] of several matrices."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    operands = weighted_operands(view, call, support)
    if isinstance(operands, Rejection):
        return operands
    x, weight = operands
    shape, x_shape = static_shape(core), static_shape(call.args[0])
    if dtype_of(core) != "float32" or shape is None or x_shape is None or 0 in (*shape, *x_shape):
        return Rejection(reason=f"{core.name} is no float32 product of static shape")
    stack = stack_of(x_shape, weight.values.shape)
    if stack is None:
        return Rejection(
            reason=f"matmul of {x_shape} by {weight.values.shape}: the batch does not end with that of several weights"
        )
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
