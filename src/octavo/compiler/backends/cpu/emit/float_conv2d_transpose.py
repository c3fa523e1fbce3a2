"""Kernel calls of composites: float_conv2d_transpose. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm.relax import Var

from .....ir.composites.float_ops import FloatConv2dTransposeOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import FloatConv2dTransposeSpec
from .float_conv2d import call


@emits(FloatConv2dTransposeOp)
def emit_float_conv2d_transpose(op: FloatConv2dTransposeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    names = [name for name in (op.x, op.addend) if name is not None]
    arguments = [context.storage.get(inputs[name], is_nhwc=is_nhwc) for name in names]
    spec = _spec(op, shape_of(arguments[0]), context.threads)
    spec = replace(spec, weight_dtype=context.weight_dtype(op.weight))
    kernel = kernels.float_conv2d_transpose(spec, weight=op.weight, bias=op.bias, isa=context.isa)
    shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    result = call(op, context, output, kernel, [*arguments], shape, inputs, is_nhwc=is_nhwc)
    context.put(output, result, is_nhwc=is_nhwc)


def _spec(op: FloatConv2dTransposeOp, shape: tuple[int, ...], threads: int) -> FloatConv2dTransposeSpec:
    """Return it as kernels take it, for an NHWC input of this shape."""
    batch, height, width, channels = shape
    rows, columns = op.output_shape[2:] if op.layout == "NCHW" else op.output_shape[1:3]
    return FloatConv2dTransposeSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels,
        out_height=rows,
        out_width=columns,
        out_channels=op.weight.shape[3],
        kernel=(op.weight.shape[0], op.weight.shape[1]),
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        groups=op.groups,
        adds=op.addend is not None,
        low=op.low if op.observation is None else -math.inf,
        high=op.high if op.observation is None else math.inf,
        threads=threads,
    )
