"""Kernel calls of composites: the choice of boxes. Reads no graph."""

from __future__ import annotations

from tvm.relax import Var

from .....ir.composites.float_ops import FloatSuppressionOp
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import SuppressionSpec


@emits(FloatSuppressionOp)
def emit_suppression(op: FloatSuppressionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    batch, classes, boxes = op.scores_shape
    spec = SuppressionSpec(batch=batch, classes=classes, boxes=boxes, most=op.most, overlap=op.overlap, score=op.score)
    values = [context.storage.source(inputs[name]) for name in (op.boxes, op.scores)]
    kernel = kernels.suppression(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, values, (batch * classes * op.most, 3), "int64"), is_nhwc=False)
