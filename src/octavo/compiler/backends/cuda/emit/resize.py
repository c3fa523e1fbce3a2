"""Bilinear resizing."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.reduction import FloatResizeOp, ResizeOp
from ..emission import Emission, Value
from ..kernels.resize.resize import float_resize, resize


def emit_resize(op: ResizeOp | FloatResizeOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a resizing of channels last."""
    is_nhwc = op.layout == "NCHW"
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nhwc)
    result = emission.new(op.y.shape, op.y.tensor.params.dtype, is_nhwc=is_nhwc)
    shape = x.lying_shape
    kernel = resize(op, shape, emission.isa) if isinstance(op, ResizeOp) else float_resize(op, shape, emission.isa)
    return emission.launch(kernel, [x], result)
