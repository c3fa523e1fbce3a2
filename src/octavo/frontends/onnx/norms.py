"""Our converters of ONNX's normalizations over axes of one sample: each the one op that lowering knows. Reads no file.

TVM's leave zeros for the statistics of LayerNormalization, take its axes from the factors' shape, and write InstanceNormalization
and the factors of GroupNormalization in plain steps.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of
from .ops import Converter, NodeContext, input_at


def _first_axis(context: NodeContext, rank: int) -> int:
    axis = int(context.attrs.get("axis", -1))
    if not -rank <= axis < rank:
        raise RejectedOpError(f"axis {axis} is none of an input of {rank} dimensions")
    return axis % rank


def _layer_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """Normalize over the axes from `axis` on; the mean and the inverse of the deviation are results, too, where they are read."""
    data, shape = inputs[0], shape_of(inputs[0])
    dtype, epsilon = str(data.ty.dtype), float(context.attrs.get("epsilon", 1e-5))
    axes = list(range(_first_axis(context, len(shape)), len(shape)))
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


def _rms_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """Normalize a whole sample with an axis of size 1 ahead of it, which TVM's op needs; leave all others to TVM."""
    data, scale, shape = inputs[0], inputs[1], shape_of(inputs[0])
    axis = _first_axis(context, len(shape))
    if axis or dtype_of(data) != "float32":
        return None
    emit, axes = context.builder.emit, list(range(1, len(shape) + 1))
    rows = emit(ops.reshape(data, [1, *shape]))
    normal = ops.nn.rms_norm(rows, _filling(context, scale, shape), axes, float(context.attrs.get("epsilon", 1e-5)))
    return ops.reshape(emit(normal), shape)


def batch_norm_of_training(context: NodeContext, inputs: list[Any]) -> Any:
    """Normalize by mean and variance of the batch itself, in plain steps; TVM's op takes those that it is given."""
    data, gamma, beta, mean, variance = inputs[:5]
    emit, dtype, shape = context.builder.emit, dtype_of(data), shape_of(data)
    axes = [axis for axis in range(len(shape)) if axis != 1]
    own_mean, own_variance = (emit(op(data, axes, keepdims=True)) for op in (ops.mean, ops.variance))
    by_channel = [1, -1, *[1] * (len(shape) - 2)]
    scale, shift = (emit(ops.reshape(each, [shape[1] if size == -1 else size for size in by_channel])) for each in (gamma, beta))
    distance = emit(ops.subtract(data, own_mean))
    epsilon = relax.const(float(context.attrs.get("epsilon", 1e-5)), dtype)
    deviation = emit(ops.sqrt(emit(ops.add(own_variance, epsilon))))
    result = ops.add(emit(ops.multiply(emit(ops.divide(distance, deviation)), scale)), shift)
    kept = float(context.attrs.get("momentum", 0.9))

    def running(old: Any, new: Any) -> Any:
        flat = emit(ops.reshape(new, [shape[1]]))
        parts = [emit(ops.multiply(each, relax.const(share, dtype))) for each, share in ((old, kept), (flat, 1 - kept))]
        return ops.add(*parts)

    return relax.Tuple([result, running(mean, own_mean), running(variance, own_variance)][: len(context.node.output)])


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
    shape = shape_of(inputs[0])
    if len(shape) < 3:
        raise RejectedOpError(f"its input of shape {shape} has no axes behind the channels")
    return _by_group(context, inputs, shape[1])


def _group_norm(context: NodeContext, inputs: list[Any]) -> Any:
    """A float32 one with factors of each channel, as since operator set 21; leave all others to TVM."""
    shape, groups = shape_of(inputs[0]), int(context.attrs.get("num_groups", 0))
    is_known = len(shape) > 2 and isinstance(shape[1], int) and groups > 0 and shape[1] % groups == 0
    is_ours = is_known and dtype_of(inputs[0]) == "float32" and int(context.attrs.get("stash_type", 1)) == 1
    return _by_group(context, inputs, groups) if is_ours and context.opset >= 21 else None


def _by_group(context: NodeContext, inputs: list[Any], groups: int) -> Any:
    data, gamma, beta = inputs[:3]
    epsilon, axes = float(context.attrs.get("epsilon", 1e-5)), list(range(2, len(shape_of(data))))
    return ops.nn.group_norm(data, gamma, beta, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon)


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
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
}
"""Our converters by ONNX op."""
