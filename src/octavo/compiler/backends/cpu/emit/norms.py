"""Kernel calls of composites: softmax, layer norm, group norm, division by a length. Reads no QDQ graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput
from .....ir.composites.float_ops import FloatGroupNormOp, FloatLayerNormOp, FloatSoftmaxOp
from .....ir.composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp, SoftmaxOp
from .....ir.composites.outputs import output_spec
from .....ir.qdq.matchers.norms import is_last
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import (
    ChannelGroups,
    FloatGroupNormSpec,
    FloatLayerNormSpec,
    FloatSoftmaxSpec,
    GroupNormSpec,
    Kernel,
    L2NormalizeSpec,
    LayerNormSpec,
    QuantizeSpec,
    SoftmaxAddend,
    SoftmaxSpec,
)


@emits(SoftmaxOp)
def emit_softmax(op: SoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns = op.x.shape[op.axis]
    is_fixed = op.rounding == "fixed_point"
    spec = SoftmaxSpec(
        rows=math.prod(op.x.shape) // columns,
        columns=columns,
        scale=float(op.x.params.scale) if is_fixed else float(np.float32(op.x.params.scale) * np.float32(op.beta)),
        beta=op.beta if is_fixed else 1.0,
        out_scale=_out_scale(op),
        output=output_spec(op.y),
        dtype=op.y.kernel_dtype,
        rounding="fixed_point" if is_fixed else "half_even",
        threads=context.threads,
    )
    kernel = (kernels.log_softmax if op.is_log else kernels.softmax)(spec, isa=context.isa)
    write_rows(context, inputs[op.x.name], output, op.axis, kernel, op.y.kernel_dtype)


def _out_scale(op: SoftmaxOp) -> float:
    """Return the real value of a step, or with "integer_inverse_scale" the next that goes into 1 a whole number of times."""
    scale = np.float32(op.y.tensor.params.scale)
    steps = np.floor(np.float32(1) / scale) if op.rounding == "integer_inverse_scale" else np.float32(0)
    return float(np.float32(1) / steps) if steps >= 1 else float(scale)


def write_rows(
    context: KernelContext,
    x: Var,
    output: Var,
    axis: int,
    kernel: Kernel,
    dtype: str = "uint8",
    *,
    beside: Sequence[Var] = (),
) -> None:
    """Write the call of a kernel on rows along `axis` of `x`, which is moved to the end for it where it lies elsewhere.

    So is that of the tensors of the same shape that it reads `beside`.
    """
    shape, tensors = shape_of(x), (x, *beside)
    if is_last(shape, axis) or (len(shape) == 4 and axis == 1):
        is_nhwc = not is_last(shape, axis)
        values = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
        context.put(output, context.call(output.name, kernel, values, shape_of(values[0]), dtype), is_nhwc=is_nhwc)
        return
    order = (*(other for other in range(len(shape)) if other != axis), axis)
    rows: list[Expr] = [
        context.permute(f"{output.name}_in_rows{number or ''}", context.storage.get(tensor, is_nhwc=False), order)
        for number, tensor in enumerate(tensors)
    ]
    result = context.call(f"{output.name}_by_row", kernel, rows, shape_of(rows[0]), dtype)
    back = tuple(order.index(other) for other in range(len(shape)))
    context.put(output, context.permute(output.name, result, back), is_nhwc=False)
    context.does_the_work(kernel)


@emits(LayerNormOp)
def emit_layer_norm(op: LayerNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x = context.storage.get(inputs[op.x.name], is_nhwc=False)
    columns = op.x.shape[-1]
    spec = LayerNormSpec(
        rows=math.prod(op.x.shape) // columns,
        columns=columns,
        scale=float(op.x.params.scale),
        epsilon=op.epsilon,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        threads=context.threads,
    )
    kernel = kernels.layer_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x)), is_nhwc=False)


@emits(GroupNormOp)
def emit_group_norm(op: GroupNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = GroupNormSpec(
        groups=channel_groups(op.x.shape, op.axis, op.groups, context.threads),
        scale=float(op.x.params.scale),
        epsilon=op.epsilon,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
    )
    kernel = kernels.group_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    write_rows(context, inputs[op.x.name], output, op.axis, kernel)


@emits(L2NormalizeOp)
def emit_l2_normalize(op: L2NormalizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = not is_last(op.x.shape, op.axis)
    x = context.storage.get(inputs[op.x.name], is_nhwc=is_nhwc)
    columns = op.x.shape[op.axis]
    dtype: Literal["int8", "uint8"] = "int8" if op.x.params.dtype == "int8" else "uint8"
    spec = L2NormalizeSpec(
        rows=math.prod(op.x.shape) // columns,
        columns=columns,
        input_zero_point=op.x.zero_point,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        fixed=dtype if op.rounding == "fixed_point" else None,
        threads=context.threads,
    )
    kernel = kernels.l2_normalize(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x)), is_nhwc=is_nhwc)


@emits(FloatSoftmaxOp)
def emit_float_softmax(op: FloatSoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns, y = op.shape[op.axis], op.y
    rows = math.prod(op.shape) // columns
    result = None if y is None else softmax_result(op, y)
    addend, numbers, names = softmax_addend(op)
    spec = FloatSoftmaxSpec(rows=rows, columns=columns, is_log=op.is_log, addend=addend, result=result, threads=context.threads)
    kernel = kernels.float_softmax(spec, addend=numbers, isa=context.isa)
    dtype = "float32" if y is None else y.kernel_dtype
    if not op.is_of_rows:
        write_rows(context, inputs[op.x], output, op.axis, kernel, dtype)
        return
    values = [context.storage.source(inputs[name]) for name in (op.x, *names)]
    context.put(output, context.call(output.name, kernel, values, op.shape, dtype), is_nhwc=False)


def softmax_result(op: FloatSoftmaxOp, y: QuantizedOutput) -> QuantizeSpec:
    """Return what the quotients of a softmax are quantized to."""
    return QuantizeSpec(
        size=math.prod(op.shape),
        scale=float(y.tensor.params.scale),
        zero_point=y.tensor.zero_point,
        dtype=y.kernel_dtype,
        ties=op.rounding,
    )


def softmax_addend(op: FloatSoftmaxOp) -> tuple[SoftmaxAddend | None, npt.NDArray[np.float32] | None, tuple[str, ...]]:
    """Return what a softmax's kernel is told of its addend, the numbers where it is a constant, and its name where it is none."""
    if op.addend is None:
        return None, None, ()
    addend = SoftmaxAddend(shape=op.shape, own=op.addend_shape, factor=op.factor)
    return (addend, None, (op.addend,)) if isinstance(op.addend, str) else (addend, op.addend, ())


@emits(FloatLayerNormOp)
def emit_float_layer_norm(op: FloatLayerNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    columns = op.shape[-1]
    rows = math.prod(op.shape) // columns
    spec = FloatLayerNormSpec(rows=rows, columns=columns, epsilon=op.epsilon, threads=context.threads)
    kernel = kernels.float_layer_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    result = context.call(output.name, kernel, [context.storage.source(inputs[op.x])], op.shape, "float32")
    context.put(output, result, is_nhwc=False)


@emits(FloatGroupNormOp)
def emit_float_group_norm(op: FloatGroupNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x, *beside = (inputs[name] for name in op.inputs)
    groups = channel_groups(shape_of(x), op.axis, op.groups, context.threads)
    spec = FloatGroupNormSpec(groups=groups, epsilon=op.epsilon, function=op.function)
    kernel = kernels.float_group_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    write_rows(context, x, output, op.axis, kernel, "float32", beside=beside)


def channel_groups(shape: tuple[int, ...], axis: int, groups: int, threads: int) -> ChannelGroups:
    """Return a tensor with channels along `axis` as kernels see it."""
    pixels = math.prod(shape[1:]) // shape[axis]
    return ChannelGroups(images=shape[0], pixels=pixels, channels=shape[axis], groups=groups, threads=threads)
