"""Kernel calls of composites: float_elementwise and mixed_elementwise. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from ....composites.elementwise import MixedElementwiseOp
from ....composites.float_ops import FloatElementwiseOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import DequantizeSpec, FloatElementwiseSpec, QuantizeSpec


@emits(FloatElementwiseOp)
def emit_float_elementwise(op: FloatElementwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    _emit(op, context, [inputs[name] for name in op.inputs], output, {}, None)


@emits(MixedElementwiseOp)
def emit_mixed_elementwise(op: MixedElementwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    known = {tensor.name: tensor for tensor in op.integers}
    size = math.prod(shape_of(output))
    integers = {
        number: DequantizeSpec(
            size=size,
            scale=float(known[name].params.scale),
            zero_point=known[name].zero_point,
            dtype=known[name].kernel_dtype,
            threads=context.threads,
        )
        for number, name in enumerate(op.inputs)
        if name in known
    }
    result = None
    if op.y is not None:
        result = QuantizeSpec(
            size=size,
            scale=float(op.y.tensor.params.scale),
            zero_point=op.y.tensor.zero_point,
            dtype=op.y.kernel_dtype,
            ties=op.rounding,
            threads=context.threads,
        )
    _emit(op, context, [inputs[name] for name in op.inputs], output, integers, result)


def _emit(
    op: FloatElementwiseOp | MixedElementwiseOp,
    context: KernelContext,
    tensors: list[Var],
    output: Var,
    integers: dict[int, DequantizeSpec],
    result: QuantizeSpec | None,
) -> None:
    is_nhwc = any(context.storage.is_kept_nhwc(tensor) for tensor in tensors)
    arguments = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
    shape = shape_of(arguments[0])
    spec = FloatElementwiseSpec(
        size=math.prod(shape), function=op.function, integers=integers, result=result, threads=context.threads
    )
    kernel = kernels.float_elementwise(spec, isa=context.isa)
    dtype = "float32" if result is None else result.dtype
    context.put(output, context.call(output.name, kernel, arguments, shape, dtype), is_nhwc=is_nhwc)
