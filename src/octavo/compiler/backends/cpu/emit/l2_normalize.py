"""Kernel calls of composites: l2_normalize. Reads no QDQ graph."""

from __future__ import annotations

import math
from typing import Literal

from tvm.relax import Var

from .....ir.composites.normalization import L2NormalizeOp
from .....ir.composites.outputs import output_spec
from .....ir.qdq.matchers.l2_normalize import is_last
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import L2NormalizeSpec


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
