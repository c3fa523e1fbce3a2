"""Kernel calls of composites: half_float. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from .....ir.composites.float_ops import Bfloat16Op, FloatConv2dOp, FloatMatmulOp
from .....ir.graph.dataflow import DataflowView, call_to
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Bfloat16Conv2dSpec, FloatConv2dSpec, HalfCastSpec
from .float_conv2d import float_conv2d_spec

STORED_AS = "uint16"
"""Dtype in which kernels hold 16-bit floats."""


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


def emit_cast(context: KernelContext, view: DataflowView, var: Var, value: Expr, half_names: Collection[str]) -> bool:
    """Write a cast to or from the 16-bit variables `half_names`, in the layout the tensor lies in; return whether it is one."""
    call = call_to(value, "astype")
    source = None if call is None else call.args[0]
    if not isinstance(source, Var) or not {var.name, source.name} & set(half_names):
        return False
    widens = source.name in half_names
    storage = context.storage
    is_nhwc = storage.is_kept_nhwc(source)
    x = storage.get(source, is_nhwc=is_nhwc)
    dtype = str((source if widens else var).ty.dtype)
    assert dtype in ("bfloat16", "float16"), "a half is 16 bits wide"
    size = int(np.prod(shape_of(x)))
    spec = HalfCastSpec(size=size, dtype=dtype, widens=widens, threads=context.threads)
    kernel = kernels.half_cast(spec, isa=context.isa)
    result = context.call(var.name, kernel, [x], shape_of(x), "float32" if widens else STORED_AS)
    context.put(var, result, is_nhwc=is_nhwc)
    return True
