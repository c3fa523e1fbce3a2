"""Kernel calls of composites: float_concat. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from .....ir.composites.float_ops import FloatConcatOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import FloatConcatSpec
from ..storage import TO_NHWC


@emits(FloatConcatOp)
def emit_float_concat(op: FloatConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call; factors need their axis last."""
    tensors = [inputs[name] for name in op.inputs]
    if op.line is None:
        is_nhwc = len(op.shape) == 4 and any(context.storage.is_kept_nhwc(tensor) for tensor in tensors)
    else:
        is_nhwc = op.axis != len(op.shape) - 1
    arguments = [context.storage.get(tensor, is_nhwc=is_nhwc) for tensor in tensors]
    shape, axis = op.shape, op.axis
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    spec = FloatConcatSpec(
        outer=math.prod(shape[:axis]),
        inners=tuple(math.prod(shape_of(argument)[axis:]) for argument in arguments),
        low=op.low,
        high=op.high,
        threads=context.threads,
    )
    kernel = kernels.float_concat(spec, line=op.line, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [*arguments], shape, "float32"), is_nhwc=is_nhwc)
