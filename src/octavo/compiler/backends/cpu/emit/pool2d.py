"""Kernel calls of composites: pooling. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from .....ir.composites.base import ratio
from .....ir.composites.float_ops import HalfPool2dOp
from .....ir.composites.outputs import Output, output_spec
from .....ir.composites.reduction import Pool2dOp
from .....numerics import FloatMeanParameters
from .....numerics.rounding.fixed_point import SHIFTS
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import HalfPool2dSpec, Pool2dSpec
from .half_float import STORED_AS
from .move import requantized


@emits(Pool2dOp)
def emit_pool2d(op: Pool2dOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    x = context.storage.get(inputs[op.x.name], is_nhwc=is_nhwc)
    batch, height, width, channels = shape_of(x)
    in_zero, out = op.x.zero_point, output_spec(op.y)
    multiplier = ratio(op.x.params, op.y.tensor.params)
    is_wide, rounding = op.x.kernel_dtype == "int16", "half_even" if op.rounding == "float32" else op.rounding
    if is_wide and rounding == "half_away":
        multiplier = 1.0
    elif is_wide:
        rounding = rounding if rounding in SHIFTS else "half_even"
    elif rounding == "half_away":
        # The mean is that of the integers as the source stores them: 0 stays 0, relabelled or not.
        in_zero, multiplier = op.x.relabelling, 1.0
        out = Output(zero_point=in_zero, qmin=out.qmin, qmax=out.qmax)
    # A maximum keeps scale and zero point; a change of them is a second kernel.
    changes = op.kind == "max" and (multiplier != 1.0 or in_zero != out.zero_point)
    spec = Pool2dSpec(
        kind=op.kind,
        batch=batch,
        in_height=height,
        in_width=width,
        channels=channels,
        kernel=op.kernel,
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        out_height=op.out_height,
        out_width=op.out_width,
        count_include_pad=op.count_include_pad,
        multiplier=1.0 if op.kind == "max" else multiplier,
        input_zero_point=in_zero,
        output=Output(zero_point=in_zero) if changes else out,
        dtype=op.x.kernel_dtype,
        rounding=rounding,
        float_mean=_float_mean(op) if op.rounding == "float32" else None,
        threads=context.threads,
    )
    shape = (batch, op.out_height, op.out_width, channels)
    kernel = kernels.pool2d(spec, isa=context.isa)
    value = context.call(f"{output.name}_max" if changes else output.name, kernel, [x], shape, op.x.kernel_dtype)
    if changes:
        value = requantized(context, output.name, value, op.x.params, op.y)
    # A mean without kept dimensions drops the two axes of size 1, which leaves memory as it is.
    if len(op.y.tensor.shape) != 4:
        value = context.reshape(f"{output.name}_flat", value, op.y.tensor.shape)
        is_nhwc = False
    context.put(output, value, is_nhwc=is_nhwc)


def _float_mean(op: Pool2dOp) -> FloatMeanParameters:
    return FloatMeanParameters(
        in_scale=float(op.x.params.scale),
        input_zero_point=op.x.zero_point,
        out_scale=float(op.y.tensor.params.scale),
        zero_point=op.y.tensor.zero_point,
        relabelling=op.y.tensor.relabelling,
    )


@emits(HalfPool2dOp)
def emit_half_pool2d(op: HalfPool2dOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    x = context.storage.get(inputs[op.x], is_nhwc=is_nhwc)
    batch, height, width, channels = shape_of(x)
    rows, columns = op.output_shape[2:] if is_nhwc else op.output_shape[1:3]
    spec = HalfPool2dSpec(
        dtype=op.dtype,
        kind=op.kind,
        batch=batch,
        in_height=height,
        in_width=width,
        out_height=rows,
        out_width=columns,
        channels=channels,
        kernel=op.kernel,
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        count_include_pad=op.count_include_pad,
        threads=context.threads,
    )
    kernel = kernels.half_pool2d(spec, isa=context.isa)
    result = context.call(output.name, kernel, [x], (batch, rows, columns, channels), STORED_AS)
    context.put(output, result, is_nhwc=is_nhwc)
