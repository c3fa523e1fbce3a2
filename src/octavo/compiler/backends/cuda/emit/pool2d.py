"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.reduction import Pool2dOp
from ..emission import Emission, Value
from ..kernels.pool.pool2d import image_mean, pool2d
from ..kernels.reductions.reduce import reduce


def emit_pool2d(op: Pool2dOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a pooling of channels last; a mean that drops rows and columns leaves memory as it is."""
    is_nhwc = op.layout == "NCHW"
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nhwc)
    shape = op.y.shape
    result = emission.new(shape, op.y.tensor.params.dtype, is_nhwc=is_nhwc and len(shape) == 4)
    mean = image_mean(op, x.lying_shape)
    kernel = pool2d(op, x.lying_shape, emission.isa) if mean is None else reduce(mean, emission.isa)
    return emission.launch(kernel, [x], result)
