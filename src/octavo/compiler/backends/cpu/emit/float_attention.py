"""Kernel calls of composites: float_attention. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from .....ir.composites.float_ops import FloatBatchMatmulOp, FloatLayerNormOp, FloatSoftmaxOp
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import FloatBatchMatmulSpec, FloatLayerNormSpec, FloatSoftmaxSpec


@emits(FloatBatchMatmulOp)
def emit_float_batch_matmul(op: FloatBatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = FloatBatchMatmulSpec(a=op.a_view, b=op.b_view, y=op.y_view, factor=op.factor, threads=context.threads)
    operands = [context.storage.source(inputs[name]) for name in (op.a, op.b)]
    kernel = kernels.float_batch_matmul(spec, isa=context.isa)
    result = context.call(output.name, kernel, operands, op.output_shape, "float32")
    context.put(output, result, is_nhwc=False)


@emits(FloatSoftmaxOp)
def emit_float_softmax(op: FloatSoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns = op.shape[-1]
    spec = FloatSoftmaxSpec(rows=math.prod(op.shape) // columns, columns=columns, threads=context.threads)
    kernel = kernels.float_softmax(spec, isa=context.isa)
    result = context.call(output.name, kernel, [context.storage.source(inputs[op.x])], op.shape, "float32")
    context.put(output, result, is_nhwc=False)


@emits(FloatLayerNormOp)
def emit_float_layer_norm(op: FloatLayerNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns = op.shape[-1]
    rows = math.prod(op.shape) // columns
    spec = FloatLayerNormSpec(rows=rows, columns=columns, epsilon=op.epsilon, threads=context.threads)
    kernel = kernels.float_layer_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    result = context.call(output.name, kernel, [context.storage.source(inputs[op.x])], op.shape, "float32")
    context.put(output, result, is_nhwc=False)
