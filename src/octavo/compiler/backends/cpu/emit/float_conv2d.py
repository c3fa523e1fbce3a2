"""Kernel calls of composites: convolutions and matmuls by constant weights, of float32 and of bfloat16. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

from tvm.relax import Expr, Var

from .....ir.composites.float_ops import Bfloat16Op, FloatConv2dOp, FloatConv2dTransposeOp, FloatMatmulOp, FloatWeightedOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Bfloat16Conv2dSpec, FloatConv2dSpec, FloatConv2dTransposeSpec, Kernel, ObserveSpec
from .observe import observe_spec, write_observation


def call(
    op: FloatWeightedOp,
    context: KernelContext,
    output: Var,
    kernel: Kernel,
    arguments: list[Expr],
    shape: tuple[int, ...],
    inputs: dict[str, Var],
    *,
    is_nhwc: bool,
) -> Expr:
    """Write the kernel's call, and where its sums are observed the observer's, which clamps them."""
    if op.observation is None:
        return context.call(output.name, kernel, arguments, shape, "float32")
    sums = context.call(f"{output.name}_sums", kernel, arguments, shape, "float32")
    spec = observe_spec(op.observation, shape, is_nhwc=is_nhwc, low=op.low, high=op.high)
    return write_observation(op.observation, context, output.name, sums, inputs, spec)


@emits(FloatConv2dOp)
def emit_float_conv2d(op: FloatConv2dOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    x = context.storage.get(inputs[op.x], is_nhwc=is_nhwc)
    arguments = [x] if op.addend is None else [x, context.storage.get(inputs[op.addend], is_nhwc=is_nhwc)]
    spec = replace(float_conv2d_spec(op, shape_of(x), context.threads), weight_dtype=context.weight_dtype(op.weight))
    shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    observe = _observed_in_kernel(op, context, spec, shape, is_nhwc=is_nhwc)
    kernel = kernels.float_conv2d(
        spec, weight=op.weight, bias=op.bias, isa=context.isa, observe=observe, schedules=context.schedules
    )
    if observe is not None and op.observation is not None:
        result = context.call(output.name, kernel, [x, *op.observation.states(inputs)], shape, "float32")
    else:
        result = call(op, context, output, kernel, arguments, shape, inputs, is_nhwc=is_nhwc)
    context.put(output, result, is_nhwc=is_nhwc)


def float_conv2d_spec(op: FloatConv2dOp, shape: tuple[int, ...], threads: int) -> FloatConv2dSpec:
    """Return it as kernels take it, for an NHWC input of this shape."""
    batch, height, width, channels = shape
    return FloatConv2dSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels,
        out_channels=op.weight.shape[3],
        kernel=(op.weight.shape[0], op.weight.shape[1]),
        strides=op.strides,
        padding=op.padding,
        dilation=op.dilation,
        groups=op.groups,
        adds=op.addend is not None,
        low=-math.inf if op.observation is not None else op.low,
        high=math.inf if op.observation is not None else op.high,
        function=op.function,
        threads=threads,
    )


def _observed_in_kernel(
    op: FloatConv2dOp, context: KernelContext, spec: FloatConv2dSpec, shape: tuple[int, ...], *, is_nhwc: bool
) -> ObserveSpec | None:
    """Return what the convolution's own kernel is to observe, if it can."""
    if op.observation is None or not kernels.can_observe(spec, isa=context.isa):
        return None
    observe = observe_spec(op.observation, shape, is_nhwc=is_nhwc, low=op.low, high=op.high)
    return observe if observe.inner == 1 and observe.channels == spec.out_channels else None


@emits(FloatMatmulOp)
def emit_float_matmul(op: FloatMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    arguments = [context.storage.source(inputs[name]) for name in (op.x, op.addend) if name is not None]
    kernel = kernels.float_matmul(
        rows=math.prod(shape_of(arguments[0])[:-1]),
        weight=op.weight,
        bias=op.bias,
        low=-math.inf if op.observation is not None else op.low,
        high=math.inf if op.observation is not None else op.high,
        threads=context.threads,
        isa=context.isa,
        adds=op.addend is not None,
        function=op.function,
        weight_dtype=context.weight_dtype(op.weight),
        schedules=context.schedules,
    )
    result = call(op, context, output, kernel, arguments, op.output_shape, inputs, is_nhwc=False)
    context.put(output, result, is_nhwc=False)


@emits(FloatConv2dTransposeOp)
def emit_float_conv2d_transpose(op: FloatConv2dTransposeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = op.layout == "NCHW"
    names = [name for name in (op.x, op.addend) if name is not None]
    arguments = [context.storage.get(inputs[name], is_nhwc=is_nhwc) for name in names]
    spec = _transposed_spec(op, shape_of(arguments[0]), context.threads)
    spec = replace(spec, weight_dtype=context.weight_dtype(op.weight))
    kernel = kernels.float_conv2d_transpose(spec, weight=op.weight, bias=op.bias, isa=context.isa)
    shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    result = call(op, context, output, kernel, [*arguments], shape, inputs, is_nhwc=is_nhwc)
    context.put(output, result, is_nhwc=is_nhwc)


def _transposed_spec(op: FloatConv2dTransposeOp, shape: tuple[int, ...], threads: int) -> FloatConv2dTransposeSpec:
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


@emits(Bfloat16Op)
def emit_bfloat16(op: Bfloat16Op, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    float_op = op.float_op
    is_nhwc = isinstance(float_op, FloatConv2dOp) and float_op.layout == "NCHW"
    names = [name for name in (op.x, op.addend) if name is not None]
    arguments = [context.storage.get(inputs[name], is_nhwc=is_nhwc) for name in names]
    plain = _plain_spec(float_op, shape_of(arguments[0]), context.threads)
    values: dict[str, Any] = {field.name: getattr(plain, field.name) for field in fields(plain)}
    spec = Bfloat16Conv2dSpec(**values, addend=op.addend_dtype, output=op.output_dtype)
    operands: dict[str, Any] = {"weight": float_op.weight, "bias": float_op.bias}
    operands |= {"extension": kernels.bfloat16_extension_of(context.isa), "schedules": context.schedules}
    if isinstance(float_op, FloatConv2dOp):
        kernel = kernels.bfloat16_conv2d(spec, **operands)
        shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    else:
        kernel = kernels.bfloat16_matmul(spec, **operands)
        shape = float_op.output_shape
    context.put(output, context.call(output.name, kernel, arguments, shape, op.output_dtype), is_nhwc=is_nhwc)


def _plain_spec(float_op: FloatConv2dOp | FloatMatmulOp, shape: tuple[int, ...], threads: int) -> FloatConv2dSpec:
    """Return what is computed of an input of this shape, as the float32 kernels take it; a row of a matrix is a pixel."""
    if isinstance(float_op, FloatConv2dOp):
        return float_conv2d_spec(float_op, shape, threads)
    return FloatConv2dSpec(
        batch=1,
        in_height=math.prod(shape[:-1]),
        in_width=1,
        in_channels=shape[-1],
        out_channels=float_op.weight.shape[1],
        kernel=(1, 1),
        adds=float_op.addend is not None,
        low=float_op.low,
        high=float_op.high,
        threads=threads,
    )
