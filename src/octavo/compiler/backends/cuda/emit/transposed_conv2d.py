"""Transposed convolutions: one of stride 1 that computes all phases, and a movement that weaves them and cuts the result."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.transposed import Phases, convolution_of, spatial_sizes
from .....ir.composites.weighted import Conv2dTransposeOp
from ..emission import Emission, Value
from ..kernels.language.axes import dense_steps
from ..kernels.move.gather import MovedAxis, gather
from ..kernels.quantization.change import kept
from .conv2d import emit_conv2d


def emit_conv2d_transpose(op: Conv2dTransposeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch the convolution, and the movement of its result, both channels last."""
    conv, phases = convolution_of(op)
    value = emit_conv2d(conv, emission, inputs)
    batch, rows, columns, channels = value.lying_shape
    of_group = channels // (op.groups * op.strides[0] * op.strides[1])
    steps = dense_steps((batch, rows, columns, op.groups, *op.strides, of_group))
    sizes = spatial_sizes(op, op.y.shape)
    axes = [MovedAxis(size=batch, step=steps[0])]
    for size, stride, axis, pixel, phase in zip(sizes, op.strides, phases, steps[1:3], steps[4:6], strict=True):
        axes.append(_woven(size, stride, axis, pixel, phase))
    axes += [MovedAxis(size=op.groups, step=steps[3]), MovedAxis(size=of_group, step=steps[6])]
    result = emission.new(op.y.shape, value.dtype, is_nhwc=value.is_nhwc)
    return emission.launch(gather(axes, 0, kept(value.dtype), emission.isa, name="weave"), [value], result)


def _woven(size: int, stride: int, axis: Phases, pixel: int, phase: int) -> MovedAxis:
    """Return rows, or columns, of the result: each is a phase of a pixel of the convolution."""
    places = ((at // stride) * pixel + at % stride * phase for at in range(axis.first, axis.first + size))
    return MovedAxis(size=size, step=1, indices=tuple(places))
