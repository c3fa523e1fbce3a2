"""Kernel calls of composites: add. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.elementwise import AddOp, float_sum_of
from .....ir.composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import AddSpec


@emits(AddOp)
def emit_add(op: AddOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a_var, b_var = inputs[op.a.name], inputs.get(op.b.name)
    same = op.a.shape == op.b.shape and b_var is not None
    is_nhwc = same and any(context.storage.is_kept_nhwc(var) for var in (a_var, b_var) if var is not None)
    a = context.storage.get(a_var, is_nhwc=is_nhwc)
    if op.b_values is not None:
        b: Expr = relax.const(op.b.kernel_integers(op.b_values))
    else:
        assert b_var is not None
        b = context.storage.get(b_var, is_nhwc=is_nhwc)
    constants, relabelling = float_sum_of(op.rounding, op.a, op.b, op.y.tensor)
    spec = AddSpec(
        size=int(np.prod(op.a.shape)),
        b_size=int(np.prod(op.b.shape)),
        a_scale=float(op.a.params.scale),
        a_zero_point=op.a.zero_point,
        b_scale=float(op.b.params.scale),
        b_zero_point=op.b.zero_point,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        float_sum=constants,
        relabelling=relabelling,
        threads=context.threads,
    )
    kernel = kernels.add(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [a, b], shape_of(a)), is_nhwc=is_nhwc)
