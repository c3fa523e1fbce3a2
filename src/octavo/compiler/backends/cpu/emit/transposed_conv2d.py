"""Kernel calls of composites: transposed_conv2d. Reads no QDQ graph."""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from .....ir.composites.transposed import convolution_of, spatial_sizes
from .....ir.composites.weighted import Conv2dTransposeOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import GatherSpec
from .conv2d import convolved


@emits(Conv2dTransposeOp)
def emit_conv2d_transpose(op: Conv2dTransposeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the calls: the convolution, the weaving of its phases, the cut to the result's size."""
    conv, axes = convolution_of(op)
    value, kernel = convolved(conv, context, inputs, f"{output.name}_phases")
    batch, rows, columns, channels = shape_of(value)
    down, across = op.strides
    of_group = channels // (op.groups * down * across)
    value = context.reshape(f"{output.name}_phases_split", value, (batch, rows, columns, op.groups, down, across, of_group))
    value = context.permute(f"{output.name}_woven", value, (0, 1, 4, 2, 5, 3, 6))
    full = (batch, rows * down, columns * across, op.groups * of_group)
    value = context.reshape(f"{output.name}_phases_merged", value, full)
    spatial = spatial_sizes(op, op.y.shape)
    if spatial != full[1:3]:
        cuts = [tuple(range(axis.first, axis.first + extent)) for axis, extent in zip(axes, spatial, strict=True)]
        maps = (tuple(range(batch)), *cuts, tuple(range(full[3])))
        dtype: Any = op.y.kernel_dtype
        cut = kernels.gather(GatherSpec(shape=full, maps=maps, dtype=dtype, threads=context.threads), isa=context.isa)
        value = context.call(output.name, cut, [value], (batch, *spatial, full[3]), dtype)
    context.does_the_work(kernel)
    context.put(output, value, is_nhwc=op.layout == "NCHW")
