"""Kernel calls of composites: float_mean. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from .....ir.composites.float_ops import FloatMeanOp
from .....ir.qdq.matchers.float_mean import is_of_pixels
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import FloatMeanSpec


@emits(FloatMeanOp)
def emit_float_mean(op: FloatMeanOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = is_of_pixels(op.shape, op.axes)
    x = context.storage.get(inputs[op.x], is_nhwc=is_nhwc)
    shape, axes, result = op.shape, op.axes, op.output_shape
    if is_nhwc:
        shape, axes = (shape[0], shape[2], shape[3], shape[1]), (1, 2)
        result = result if len(result) == 2 else (result[0], 1, 1, result[1])
    spec = FloatMeanSpec(
        outer=math.prod(shape[: axes[0]]),
        count=math.prod(shape[axis] for axis in axes),
        inner=math.prod(shape[axes[-1] + 1 :]),
        threads=context.threads,
    )
    value = context.call(output.name, kernels.mean_in_order(spec, isa=context.isa), [x], result, "float32")
    context.put(output, value, is_nhwc=is_nhwc and len(result) == 4)
