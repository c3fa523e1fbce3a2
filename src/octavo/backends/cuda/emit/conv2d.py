"""Convolutions and products with constant weights."""

from __future__ import annotations

from collections.abc import Mapping

from ....composites.weighted import Conv2dOp, MatmulOp
from ..emission import Emission, Value
from ..kernels.conv2d import conv2d
from ..kernels.conv2d_spec import conv2d_spec, matmul_spec
from ..kernels.depthwise import depthwise_conv2d, is_depthwise


def emit_conv2d(op: Conv2dOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a convolution of channels last."""
    is_nhwc = op.layout == "NCHW"
    spec = conv2d_spec(op)
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nhwc)
    result = emission.new(op.y.shape, spec.output.dtype, is_nhwc=is_nhwc)
    calls = depthwise_conv2d(spec, emission.isa) if is_depthwise(spec) else conv2d(spec, emission.isa, emission.choice)
    return emission.run(calls, [x], result)


def emit_matmul(op: MatmulOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a product with constant weights."""
    spec = matmul_spec(op)
    x = emission.lying(inputs[op.x.name], is_nhwc=False)
    return emission.run(conv2d(spec, emission.isa, emission.choice), [x], emission.new(op.y.shape, spec.output.dtype))
