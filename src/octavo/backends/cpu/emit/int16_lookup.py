"""Kernel calls of composites: int16_lookup. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm.relax import Var

from ....composites.elementwise import Int16LookupOp
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels.int16_elementwise import int16_lookup
from ..kernels.int16_spec import Int16LookupSpec
from ..storage import RELABELLED


@emits(Int16LookupOp)
def emit_int16_lookup(op: Int16LookupOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    is_nhwc = context.storage.is_kept_nhwc(var)
    x = context.storage.get(var, is_nhwc=is_nhwc)
    # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
    x_dtype, y_dtype = (_kept(tensor.params.dtype) for tensor in (op.x, op.y.tensor))
    table = (op.table.astype(np.int32) + op.y.tensor.relabelling).astype(y_dtype)
    size = int(np.prod(shape_of(x)))
    spec = Int16LookupSpec(size=size, x_dtype=x_dtype, y_dtype=y_dtype, threads=context.threads)
    kernel = int16_lookup(spec, table=table, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x), y_dtype), is_nhwc=is_nhwc)


def _kept(dtype: str) -> str:
    """Return the dtype in which kernels hold integers."""
    return RELABELLED.get(dtype, dtype)
