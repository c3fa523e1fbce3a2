"""Convolutions and products with constant weights.

A transposed convolution is one of stride 1 that computes all phases, and a movement that weaves them and cuts the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .....ir.composites.transposed import Phases, convolution_of, spatial_sizes
from .....ir.composites.weighted import Conv2dOp, Conv2dTransposeOp, MatmulOp
from ..emission import Emission, Value
from ..kernels.conv.conv2d import conv2d
from ..kernels.conv.depthwise import depthwise_conv2d, is_depthwise
from ..kernels.conv.spec import Conv2dSpec, conv2d_spec, matmul_spec
from ..kernels.language.axes import dense_steps
from ..kernels.move.gather import GatherAxis, gather
from ..kernels.quantization.change import kept
from .tail import Followers, ended_by, read_by


def emit_conv2d(op: Conv2dOp, emission: Emission, inputs: Mapping[str, Value], followers: Followers | None = None) -> Value:
    """Launch a convolution of channels last."""
    is_nhwc = op.layout == "NCHW"
    spec = _with(conv2d_spec(op), followers)
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nhwc)
    result = emission.new(op.y.shape, spec.output.dtype, is_nhwc=is_nhwc)
    calls = depthwise_conv2d(spec, emission.isa) if is_depthwise(spec) else conv2d(spec, emission.isa, emission.choice)
    return emission.run(calls, read_by([x], followers), result)


def emit_matmul(op: MatmulOp, emission: Emission, inputs: Mapping[str, Value], followers: Followers | None = None) -> Value:
    """Launch a product with constant weights."""
    spec = _with(matmul_spec(op), followers)
    x = emission.lying(inputs[op.x.name], is_nhwc=False)
    calls = conv2d(spec, emission.isa, emission.choice)
    return emission.run(calls, read_by([x], followers), emission.new(op.y.shape, spec.output.dtype))


def _with(spec: Conv2dSpec, followers: Followers | None) -> Conv2dSpec:
    return replace(spec, output=ended_by(spec.output, followers))


def emit_conv2d_transpose(op: Conv2dTransposeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch the convolution, and the movement of its result, both channels last."""
    conv, phases = convolution_of(op)
    value = emit_conv2d(conv, emission, inputs)
    batch, rows, columns, channels = value.lying_shape
    of_group = channels // (op.groups * op.strides[0] * op.strides[1])
    steps = dense_steps((batch, rows, columns, op.groups, *op.strides, of_group))
    sizes = spatial_sizes(op, op.y.shape)
    axes = [GatherAxis(size=batch, step=steps[0])]
    for size, stride, axis, pixel, phase in zip(sizes, op.strides, phases, steps[1:3], steps[4:6], strict=True):
        axes.append(_woven(size, stride, axis, pixel, phase))
    axes += [GatherAxis(size=op.groups, step=steps[3]), GatherAxis(size=of_group, step=steps[6])]
    result = emission.new(op.y.shape, value.dtype, is_nhwc=value.is_nhwc)
    return emission.launch(gather(axes, 0, kept(value.dtype), emission.isa, name="weave"), [value], result)


def _woven(size: int, stride: int, axis: Phases, pixel: int, phase: int) -> GatherAxis:
    """Return rows, or columns, of the result: each is a phase of a pixel of the convolution."""
    places = ((at // stride) * pixel + at % stride * phase for at in range(axis.first, axis.first + size))
    return GatherAxis(size=size, step=1, indices=tuple(places))
