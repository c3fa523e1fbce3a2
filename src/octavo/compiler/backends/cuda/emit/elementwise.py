"""Functions of single elements in float32 that read integers, or give them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.elementwise import MixedElementwiseOp
from ..emission import TO_NHWC, Emission, Value
from ..kernels.elementwise.elementwise import ElementwiseSpec, elementwise
from .operands import shared_layout


def emit_mixed_elementwise(op: MixedElementwiseOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a function of tensors of one shape, which are brought to one layout."""
    known = {tensor.name: tensor for tensor in op.integers}
    shape = inputs[op.inputs[0]].shape
    is_nhwc = shared_layout([inputs[name] for name in op.inputs], shape)
    values = [emission.lying(inputs[name], is_nhwc=is_nhwc) for name in op.inputs]
    inner = 1
    if op.axis is not None:
        axis = TO_NHWC.index(op.axis) if is_nhwc else op.axis
        inner = math.prod(values[0].lying_shape[axis + 1 :])
    spec = ElementwiseSpec(
        function=op.function,
        size=math.prod(shape),
        inputs=[known.get(name) for name in op.inputs],
        channels=op.channels,
        inner=inner,
        y=op.y,
        rounding=op.rounding,
    )
    result = emission.new(shape, spec.dtypes[-1], is_nhwc=is_nhwc)
    return emission.launch(elementwise(spec, "mixed_elementwise", emission.isa), values, result)
