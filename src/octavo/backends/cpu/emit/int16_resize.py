"""Kernel calls of composites: int16_resize. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from ....composites.reduction import Int16ResizeOp
from ..context import KernelContext
from ..emitters import emits
from ..kernels.int16_resize import Int16ResizeSpec, int16_resize_bilinear
from .resize import TappedInput


@emits(Int16ResizeOp)
def emit_int16_resize(op: Int16ResizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    image = TappedInput.of(context, op.base, inputs, op.rows, op.columns)
    kernel = int16_resize_bilinear(Int16ResizeSpec(**image.facts), isa=context.isa)
    resized = context.call(output.name, kernel, [image.value], image.result_shape, "int16")
    context.put(output, resized, is_nhwc=image.is_nhwc)
