"""Kernel calls of composites: lookup. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm.relax import Var

from ....composites.elementwise import LookupOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import LookupSpec


@emits(LookupOp)
def emit_lookup(op: LookupOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    is_nhwc = context.storage.is_kept_nhwc(var)
    x = context.storage.get(var, is_nhwc=is_nhwc)
    size, x_dtype, y_dtype = int(np.prod(shape_of(x))), op.x.kernel_dtype, op.y.kernel_dtype
    # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
    table = op.y.tensor.kernel_integers(op.table)
    spec = LookupSpec(size=size, x_dtype=x_dtype, y_dtype=y_dtype, threads=context.threads)
    kernel = kernels.lookup(spec, table=table, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x), y_dtype), is_nhwc=is_nhwc)
