"""Our converters of ONNX's normalizations over axes of one sample: each the one op that lowering knows. Reads no file.

TVM's leave zeros for the statistics of LayerNormalization, take its axes from the factors' shape, and write InstanceNormalization
in plain steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import shape_of
from .ops import Converter, NodeContext, input_at


def _layer_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """Normalize over the axes from `axis` on; the mean and the inverse of the deviation are results, too, where they are read."""
    data, shape = inputs[0], shape_of(inputs[0])
    dtype, epsilon = str(data.ty.dtype), float(context.attrs.get("epsilon", 1e-5))
    axes = list(range(int(context.attrs.get("axis", -1)) % max(len(shape), 1), len(shape)))
    normalized = [shape[axis] for axis in axes]
    if not axes:
        raise RejectedOpError("its input has no axes")
    beta = input_at(inputs, 2)
    beta = relax.const(np.zeros(normalized), dtype) if beta is None else _filling(context, beta, normalized)
    result = ops.nn.layer_norm(data, _filling(context, inputs[1], normalized), beta, axes=axes, epsilon=epsilon)
    if len(context.node.output) == 1:
        return result
    mean = context.builder.emit(ops.mean(data, axes, keepdims=True))
    shifted = context.builder.emit(ops.add(ops.variance(data, axes, keepdims=True), relax.const(epsilon, dtype)))
    return relax.Tuple([result, mean, ops.rsqrt(shifted)][: len(context.node.output)])


def _filling(context: NodeContext, value: Any, shape: list[int]) -> Any:
    """Return factors or addends, which may be broadcast, in the shape of what is normalized."""
    own = shape_of(value)
    if own == shape:
        return value
    if math.prod(own) == math.prod(shape):
        return context.builder.emit(ops.reshape(value, shape))
    return context.builder.emit(ops.broadcast_to(value, shape))


def _instance_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """A group normalization of as many groups as there are channels."""
    data, gamma, beta = inputs[:3]
    shape = shape_of(data)
    if len(shape) < 3:
        raise RejectedOpError(f"its input of shape {shape} has no axes behind the channels")
    epsilon, axes = float(context.attrs.get("epsilon", 1e-5)), list(range(2, len(shape)))
    return ops.nn.group_norm(data, gamma, beta, num_groups=shape[1], channel_axis=1, axes=axes, epsilon=epsilon)


def _mean_variance_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """(x - mean) / deviation; the variance about the mean, where TVM's converter takes the difference of two large sums."""
    data, axes = inputs[0], context.ints("axes", [0, 2, 3])
    emit = context.builder.emit
    distance = emit(ops.subtract(data, emit(ops.mean(data, axes, keepdims=True))))
    deviation = emit(ops.sqrt(emit(ops.mean(emit(ops.multiply(distance, distance)), axes, keepdims=True))))
    return ops.divide(distance, emit(ops.add(deviation, relax.const(1e-9, str(data.ty.dtype)))))


def _lp_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """x over the sum of its absolute values, or over its Euclidean norm, along an axis; 0 where all are 0, as in ONNX Runtime."""
    data, axis, order = inputs[0], int(context.attrs.get("axis", -1)), int(context.attrs.get("p", 2))
    if order not in (1, 2):
        raise RejectedOpError(f"p is {order}, expected 1 or 2")
    emit = context.builder.emit
    parts = emit(ops.abs(data) if order == 1 else ops.multiply(data, data))
    total = emit(ops.sum(parts, [axis], keepdims=True))
    norm = total if order == 1 else emit(ops.sqrt(total))
    least = relax.const(float(np.finfo(np.float32).tiny), str(data.ty.dtype))
    return ops.divide(data, emit(ops.maximum(norm, least)))


CONVERTERS: dict[str, Converter] = {
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
}
"""Our converters by ONNX op."""
