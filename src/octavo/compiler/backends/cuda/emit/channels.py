"""Depthwise convolutions of activations whose channels have zero points of their own.

Kernels take one zero point. The image is padded first, each channel by its own zero point, so that every tap lies in it; a kernel
for a zero point of 0 then multiplies it, and what the zero points add to each channel's sum, a constant, goes into the bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from .....ir.composites.base import RELABELLING, FloatResult, QuantizedTensor
from .....ir.composites.weighted import Conv2dOp, QuantizedWeight
from .....numerics import INTEGER_RANGE, QuantParams
from ..emission import TO_NCHW, Emission, Value
from ..kernels.elementwise.pair import INTEGER_SUM, PairFunction, pair
from ..kernels.language.axes import Operand, dense_steps
from ..kernels.move.gather import GatherAxis, gather
from ..kernels.quantization.change import kept
from .conv2d import emit_conv2d

Padding = tuple[int, int, int, int]


def emit_conv2d_of_channels(op: Conv2dOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch the padding, where there is any, and the convolution."""
    assert isinstance(op.x, QuantizedTensor)
    params, is_nchw = op.x.params, op.layout == "NCHW"
    zero_points = params.zero_point.astype(np.int64)
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nchw)
    sizes = x.lying_shape
    if any(op.padding):
        x = _padded(x, op.padding, zero_points, emission)
        sizes = x.shape
    shape = tuple(sizes[axis] for axis in TO_NCHW) if is_nchw else sizes
    tensor = QuantizedTensor(name=op.x.name, shape=shape, params=QuantParams.per_tensor(params.dtype, 1.0, 0))
    value = Value(buffer=x.buffer, shape=shape, dtype=x.dtype, is_nhwc=is_nchw)
    moved = _with_zero_points_in_bias(op, zero_points)
    return emit_conv2d(replace(moved, x=tensor, padding=(0, 0, 0, 0)), emission, {op.x.name: value})


def _padded(x: Value, padding: Padding, zero_points: npt.NDArray[np.int64], emission: Emission) -> Value:
    """Return an image that lies NHWC with each channel's zero point around it: zeros, to which a constant is added."""
    batch, height, width, channels = x.lying_shape
    top, left, bottom, right = padding
    steps = dense_steps(x.lying_shape)
    rows = (*(-1,) * top, *range(height), *(-1,) * bottom)
    columns = (*(-1,) * left, *range(width), *(-1,) * right)
    axes = [
        GatherAxis(size=batch, step=steps[0]),
        GatherAxis(size=len(rows), step=steps[1], indices=rows),
        GatherAxis(size=len(columns), step=steps[2], indices=columns),
        GatherAxis(size=channels, step=steps[3]),
    ]
    shape = (batch, len(rows), len(columns), channels)
    zeros = emission.launch(gather(axes, 0, kept(x.dtype), emission.isa, name="pad"), [x], emission.new(shape, x.dtype))
    around = np.broadcast_to(zero_points, shape[1:]).astype(x.dtype)
    around[top : top + height, left : left + width] = 0
    low, high = INTEGER_RANGE[x.dtype]
    numbers = {"a_multiplier": 1, "b_multiplier": 1, "bias": 0, "shift": 0, "zero_point": 0, "qmin": low, "qmax": high}
    total = PairFunction(name="pad", parameters={"function": INTEGER_SUM, **numbers}, table=np.zeros(1, x.dtype))
    dense = dense_steps(shape)
    sides = Operand(dtype=x.dtype, steps=dense), Operand(dtype=x.dtype, steps=(0, *dense[1:]))
    kernel = pair(total, shape, sides, x.dtype, emission.isa, b_values=around)
    return emission.launch(kernel, [zeros], emission.new(shape, x.dtype))


def _with_zero_points_in_bias(op: Conv2dOp, zero_points: npt.NDArray[np.int64]) -> Conv2dOp:
    """Return the op with what the zero points add in its bias; one of float32 is that of integers as CPUs hold them, in uint8."""
    weight, y = op.weight, op.y
    assert isinstance(op.x, QuantizedTensor)
    relabelling = RELABELLING.get(op.x.params.dtype, 0)
    outputs = weight.values.shape[-1]
    sums = (weight.values.astype(np.int64) - weight.zero_point).reshape(-1, outputs).sum(axis=0)
    excess = np.repeat(zero_points + relabelling, outputs // zero_points.size) * sums
    relabelled = (relabelling * sums).astype(np.int32)
    if isinstance(y, FloatResult):
        return replace(op, weight=replace(weight, bias=relabelled), y=replace(y, bias=_less(y.bias, excess, weight)))
    if weight.real_bias is not None:
        return replace(op, weight=replace(weight, bias=relabelled, real_bias=_less(weight.real_bias, excess, weight)))
    return replace(op, weight=replace(weight, bias=(weight.bias + relabelled - excess).astype(np.int32)))


def _less(bias: npt.NDArray[np.float32], excess: npt.NDArray[np.int64], weight: QuantizedWeight) -> npt.NDArray[np.float32]:
    return (bias - excess * weight.multiplier.astype(np.float64)).astype(np.float32)
