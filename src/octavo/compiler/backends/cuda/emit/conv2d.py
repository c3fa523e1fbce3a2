"""Convolutions and products with constant weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .....ir.composites.weighted import Conv2dOp, MatmulOp
from ..emission import Emission, Value
from ..kernels.conv.conv2d import conv2d
from ..kernels.conv.depthwise import depthwise_conv2d, is_depthwise
from ..kernels.conv.spec import Conv2dSpec, conv2d_spec, matmul_spec
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
