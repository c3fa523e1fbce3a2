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
    spec = LookupSpec(size=int(np.prod(shape_of(x))), threads=context.threads)
    # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
    table = (op.table.astype(np.int16) + op.y.tensor.relabelling).astype(np.uint8)
    kernel = kernels.lookup(spec, table=table, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x)), is_nhwc=is_nhwc)
