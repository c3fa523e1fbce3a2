"""Kernel calls of composites: convolutions, transposed ones, matmuls by constant weights. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....ir.composites.base import FloatResult, QuantizedOutput, QuantizedTensor
from .....ir.composites.movement import cut_axis, full_axis
from .....ir.composites.outputs import output_spec
from .....ir.composites.transposed import convolution_of, spatial_sizes
from .....ir.composites.weighted import (
    BatchMatmulOp,
    Conv2dOp,
    Conv2dTransposeOp,
    DynamicTensor,
    GatheredMatmulOp,
    MatmulOp,
    QuantizedWeight,
    Result,
    StackedMatmulOp,
    WeightedOp,
)
from .....ir.graph.dataflow import dtype_of
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Conv2dSpec, GatherSpec, Kernel
from .channels import bias_for_zero_points, channel_zero_points, pad_by_channel
from .quantize import read_dynamic


@emits(Conv2dOp)
def emit_conv2d(op: Conv2dOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    result, _ = convolved(op, context, inputs, output.name)
    context.put(output, result, is_nhwc=op.layout == "NCHW")


def convolved(op: Conv2dOp, context: KernelContext, inputs: dict[str, Var], name: str) -> tuple[Var, Kernel]:
    """Write the kernel call, bound to `name`; return its result, channels last, and the kernel."""
    is_nhwc = op.layout == "NCHW"
    x = _read(context, op.x, inputs, is_nhwc=is_nhwc)
    parameters = _parameters(op)
    padding, bias = op.padding, kernel_bias(op.weight, op.y)
    zero_points = channel_zero_points(op.x)
    if zero_points is None:
        _check_overflow(op, name)
    else:
        x = [pad_by_channel(context, f"{name}_padded", x[0], padding, zero_points)]
        bias = bias_for_zero_points(bias, op.weight, zero_points, name)
        parameters["input_zero_point"], padding = 0, (0, 0, 0, 0)
    batch, height, width, channels = shape_of(x[0])
    spec = Conv2dSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels,
        out_channels=op.weight.values.shape[3],
        kernel=(op.weight.values.shape[0], op.weight.values.shape[1]),
        strides=op.strides,
        padding=padding,
        dilation=op.dilation,
        groups=op.groups,
        **parameters,
        narrow=op.narrow if op.y.kernel_dtype == "int16" else None,
        threads=context.threads,
    )
    kernel = kernels.conv2d(
        spec,
        weight=op.weight.values,
        weight_zero_point=op.weight.kernel_zero_point,
        bias=bias,
        multiplier=op.weight.multiplier if _leaves_sums(op) else op.multiplier,
        isa=context.isa,
        schedules=context.schedules,
    )
    shape = (batch, spec.out_height, spec.out_width, spec.out_channels)
    return _called(op, context, name, kernel, x, shape), kernel


@emits(MatmulOp)
def emit_matmul(op: MatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x = _read(context, op.x, inputs, is_nhwc=False)
    _check_overflow(op, output.name)
    in_features, out_features = op.weight.values.shape
    kernel = kernels.matmul(
        rows=math.prod(op.x.shape[:-1]),
        in_features=in_features,
        out_features=out_features,
        **_parameters(op),
        narrow=op.narrow if op.y.kernel_dtype == "int16" else None,
        threads=context.threads,
        weight=op.weight.values,
        weight_zero_point=op.weight.kernel_zero_point,
        bias=kernel_bias(op.weight, op.y),
        multiplier=op.weight.multiplier if _leaves_sums(op) else op.multiplier,
        isa=context.isa,
        schedules=context.schedules,
    )
    context.put(output, _called(op, context, output.name, kernel, x, op.y.shape), is_nhwc=False)


@emits(GatheredMatmulOp)
@emits(StackedMatmulOp)
def emit_stacked_matmul(op: StackedMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x = _read(context, op.x, inputs, is_nhwc=False)
    index_dtype: Any = None
    if isinstance(op, GatheredMatmulOp):
        x = [*x, context.storage.source(inputs[op.indices])]
        index_dtype = dtype_of(inputs[op.indices])
    _check_overflow(op, output.name)
    *batch, rows, in_features = op.x.shape
    kernel = kernels.matmul(
        rows=rows,
        in_features=in_features,
        out_features=op.y.shape[-1],
        **_parameters(op),
        stack=(math.prod(batch), op.stack),
        index_dtype=index_dtype,
        threads=context.threads,
        weight=op.weight.values,
        weight_zero_point=op.weight.kernel_zero_point,
        bias=kernel_bias(op.weight, op.y),
        multiplier=op.multiplier,
        isa=context.isa,
        schedules=context.schedules,
    )
    context.put(output, context.call(output.name, kernel, x, op.y.shape, op.y.kernel_dtype), is_nhwc=False)


def _called(
    op: Conv2dOp | MatmulOp, context: KernelContext, name: str, kernel: Kernel, x: list[Expr], shape: tuple[int, ...]
) -> Var:
    if _leaves_sums(op):
        return scaled_sums(op, context, name, kernel, x, shape)
    return context.call(name, kernel, x, shape, op.y.kernel_dtype)


def scaled_sums(
    op: WeightedOp | BatchMatmulOp, context: KernelContext, name: str, kernel: Kernel, x: list[Expr], shape: tuple[int, ...]
) -> Var:
    """Call a kernel that leaves its int32 sums, and one that brings them to 8 bits as the op's own accumulator holds them."""
    assert isinstance(op.y, QuantizedOutput)
    output = output_spec(op.y)
    sums = context.call(f"{name}_sums", kernel, x, shape, "int32")
    rows, channels = math.prod(shape[:-1]), shape[-1]
    machine: dict[str, Any] = {"isa": context.isa, "threads": context.threads}
    scaled = kernels.requantize_sums(rows, channels, op.multiplier, output, narrow=op.narrow, **machine)
    result = context.call(name, scaled, [sums], shape)
    context.does_the_work(kernel)
    return result


def _leaves_sums(op: WeightedOp) -> bool:
    return (op.fixed_point is not None or op.narrow is not None) and op.y.kernel_dtype == "uint8"


def _read(context: KernelContext, x: QuantizedTensor | DynamicTensor, inputs: dict[str, Var], *, is_nhwc: bool) -> list[Expr]:
    """Return the input's integers as kernels take them, then its parameters where they come at run time."""
    if isinstance(x, DynamicTensor):
        return read_dynamic(x, context, inputs, is_nhwc=is_nhwc)
    return [context.storage.get(inputs[x.name], is_nhwc=is_nhwc)]


def _check_overflow(op: WeightedOp, name: str) -> None:
    if isinstance(op.x, DynamicTensor) or op.x.kernel_dtype != "int16":  # whose sums have 64 bits where they need them
        op.weight.check_overflow_of((0, 255) if isinstance(op.x, DynamicTensor) else (op.x.zero_point,), name)


def _parameters(op: WeightedOp) -> dict[str, Any]:
    """Return the kernel's arguments that say how input and output are quantized."""
    x, y, weight = op.x, op.y, op.weight
    if not isinstance(x, DynamicTensor):
        output = kernels.SumOutput() if _leaves_sums(op) else output_spec(y)
        if isinstance(output, kernels.Output):
            output = replace(output, real_bias=weight.real_bias is not None)
        return {"input_zero_point": x.zero_point, "output": output, "dtype": x.kernel_dtype}
    assert not isinstance(y, QuantizedOutput)
    channels = weight.values.shape[-1] // (op.stack if isinstance(op, StackedMatmulOp) else 1)
    pixels = math.prod(y.shape) // channels
    return {"input_zero_point": 0, "output": replace(output_spec(y), pixels_per_scale=pixels // x.scales)}


def kernel_bias(weight: QuantizedWeight, y: Result) -> npt.NDArray[np.int32 | np.float32]:
    """Return the bias as the kernel takes it: int32 in units of the accumulator, or float32 where the source or the result is."""
    if isinstance(y, FloatResult):
        return y.bias
    return weight.bias if weight.real_bias is None else weight.real_bias


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
        cuts = [cut_axis(axis.first, extent) for axis, extent in zip(axes, spatial, strict=True)]
        maps = (full_axis(batch), *cuts, full_axis(full[3]))
        dtype: Any = op.y.kernel_dtype
        cut = kernels.gather(GatherSpec(shape=full, maps=maps, dtype=dtype, threads=context.threads), isa=context.isa)
        value = context.call(output.name, cut, [value], (batch, *spatial, full[3]), dtype)
    context.does_the_work(kernel)
    context.put(output, value, is_nhwc=op.layout == "NCHW")
