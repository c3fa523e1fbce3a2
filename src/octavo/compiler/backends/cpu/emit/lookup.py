"""Kernel calls of composites: lookup. Reads no QDQ graph."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput
from .....ir.composites.elementwise import LookupOp
from .....ir.graph.dataflow import dtype_of
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
    context.put(output, looked_up(context, output.name, x, op.y, op.table), is_nhwc=is_nhwc)


def looked_up(context: KernelContext, name: str, x: Expr, y: QuantizedOutput, table: npt.NDArray[np.integer]) -> Var:
    """Write a table of results in y's own integers; `x` holds integers as kernels read them."""
    shape = shape_of(x)
    # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
    entries = y.tensor.kernel_integers(table)
    spec = LookupSpec(size=math.prod(shape), x_dtype=dtype_of(x), y_dtype=y.kernel_dtype, threads=context.threads)
    return context.call(name, kernels.lookup(spec, table=entries, isa=context.isa), [x], shape, y.kernel_dtype)
