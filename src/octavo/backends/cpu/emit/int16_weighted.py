"""Kernel calls of composites: int16_weighted. Reads no QDQ graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import Var

from ....composites.outputs import output_spec
from ....composites.weighted import Conv2dOp, Int16WeightedOp
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels.int16_conv2d import int16_conv2d
from ..kernels.int16_spec import Int16Conv2dSpec


@emits(Int16WeightedOp)
def emit_int16_weighted(op: Int16WeightedOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base, weight = op.base, op.base.weight
    is_nhwc = isinstance(base, Conv2dOp) and base.layout == "NCHW"
    x = context.storage.get(inputs[base.x.name], is_nhwc=is_nhwc)
    values = weight.values.astype(np.int16) - weight.zero_point.astype(np.int16)
    fields: dict[str, Any] = {}
    if isinstance(base, Conv2dOp):
        batch, height, width, channels = shape_of(x)
        for name in ("strides", "padding", "dilation", "groups"):
            fields[name] = getattr(base, name)
    else:
        values = values.reshape(1, 1, *values.shape)
        channels = values.shape[2]
        batch, height, width = 1, int(np.prod(base.x.shape[:-1])), 1
    spec = Int16Conv2dSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels,
        out_channels=values.shape[3],
        kernel=(values.shape[0], values.shape[1]),
        input_zero_point=base.x.zero_point,
        output=output_spec(op.y),
        threads=context.threads,
        **fields,
    )
    bias = weight.bias.astype(np.int64)
    kernel = int16_conv2d(spec, weight=values, bias=bias, multiplier=op.multiplier, isa=context.isa, schedules=context.schedules)
    shape = op.y.tensor.shape
    if isinstance(base, Conv2dOp):
        shape = (batch, spec.out_height, spec.out_width, spec.out_channels)
    context.put(output, context.call(output.name, kernel, [x], shape, "int16"), is_nhwc=is_nhwc)
