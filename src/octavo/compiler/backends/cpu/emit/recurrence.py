"""Kernel calls of composites: recurrences. Reads no graph."""

from __future__ import annotations

import numpy as np
from tvm.relax import Var

from .....ir.composites.float_ops import FloatRecurrenceOp
from .....ir.composites.weighted import RecurrenceOp
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import RecurrenceSpec


@emits(FloatRecurrenceOp)
@emits(RecurrenceOp)
def emit_recurrence(op: FloatRecurrenceOp | RecurrenceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    steps, batch, width = op.output_shape
    initial = {"hidden": op.hidden, "cell": op.cell}
    spec = RecurrenceSpec(
        steps=steps - op.states,
        batch=batch,
        width=width,
        kind=op.kind,
        activations=op.activations,
        backwards=op.backwards,
        resets_products=op.resets_products,
        states=op.states,
        clip=op.clip,
        inputs=tuple(name for name, value in initial.items() if isinstance(value, str)),
        threads=context.threads,
    )
    constants = {name: value for name, value in initial.items() if isinstance(value, np.ndarray)}
    kernel = kernels.recurrence(
        spec,
        weights=op.weights,
        scale=op.params.scale if isinstance(op, RecurrenceOp) else None,
        bias=op.bias,
        peepholes=op.peepholes,
        initial=constants,
        isa=context.isa,
    )
    values = [
        context.storage.source(inputs[name]) for name in (op.x, *(value for value in initial.values() if isinstance(value, str)))
    ]
    context.put(output, context.call(output.name, kernel, values, op.output_shape, "float32"), is_nhwc=False)
