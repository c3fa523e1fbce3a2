"""Kernel calls of composites: float_elementwise. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from ....composites.float_ops import FloatElementwiseOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import FloatElementwiseSpec


@emits(FloatElementwiseOp)
def emit_float_elementwise(op: FloatElementwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    tensors = [inputs[name] for name in op.inputs]
    is_nhwc = any(context.storage.is_kept_nhwc(tensor) for tensor in tensors)
    arguments = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
    shape = shape_of(arguments[0])
    spec = FloatElementwiseSpec(size=math.prod(shape), function=op.function, threads=context.threads)
    kernel = kernels.float_elementwise(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, arguments, shape, "float32"), is_nhwc=is_nhwc)
