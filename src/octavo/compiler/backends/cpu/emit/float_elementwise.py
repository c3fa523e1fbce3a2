"""Kernel calls of composites: float_elementwise and mixed_elementwise. Reads no QDQ graph."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .....ir.composites.elementwise import MixedElementwiseOp
from .....ir.composites.float_ops import FloatElementwiseOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import DequantizeSpec, FloatElementwiseSpec, QuantizeSpec
from ..storage import TO_NHWC


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
    constants = _along(op, shape, is_nhwc=is_nhwc) if isinstance(op, MixedElementwiseOp) else []
    spec = FloatElementwiseSpec(
        size=math.prod(shape),
        function=op.function,
        integers=integers,
        result=result,
        period=constants[0].size if constants else 0,
        threads=context.threads,
    )
    kernel = kernels.float_elementwise(spec, constants=constants, isa=context.isa)
    dtype = "float32" if result is None else result.dtype
    context.put(output, context.call(output.name, kernel, arguments, shape, dtype), is_nhwc=is_nhwc)


def _along(op: MixedElementwiseOp, shape: tuple[int, ...], *, is_nhwc: bool) -> list[npt.NDArray[np.float32]]:
    """Return numbers of channels as they follow each other in a tensor that is stored in this shape, until they repeat."""
    if op.axis is None:
        return []
    axis = TO_NHWC.index(op.axis) if is_nhwc else op.axis
    return [np.repeat(values, math.prod(shape[axis + 1 :])) for values in op.channels]
