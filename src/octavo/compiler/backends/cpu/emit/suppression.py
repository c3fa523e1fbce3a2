"""Kernel calls of composites whose rows data counts: the choice of boxes, places. Reads no graph."""

from __future__ import annotations

import math
from typing import Any

from tvm.relax import Var

from .....ir.composites.float_ops import FloatSuppressionOp, PlacesOp
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import PlacesSpec, SuppressionSpec


@emits(FloatSuppressionOp)
def emit_suppression(op: FloatSuppressionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    batch, classes, boxes = op.scores_shape
    limits: Any = {"most": op.most, "overlap": op.overlap, "score": op.score, "reached": op.reached, "sigma": op.sigma}
    spec = SuppressionSpec(batch=batch, classes=classes, boxes=boxes, **limits)
    values = [context.storage.source(inputs[name]) for name in (op.boxes, op.scores)]
    kernel = kernels.suppression(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, values, (batch * classes * op.most, 3), "int64"), is_nhwc=False)


@emits(PlacesOp)
def emit_places(op: PlacesOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    kernel = kernels.places(PlacesSpec(shape=op.shape), isa=context.isa)
    shape = (math.prod(op.shape), len(op.shape))
    value = context.call(output.name, kernel, [context.storage.source(inputs[op.x])], shape, "int64")
    context.put(output, value, is_nhwc=False)
