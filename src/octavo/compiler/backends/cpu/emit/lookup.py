"""Kernel calls of composites: functions of one or two tensors by tables, and prelu. Reads no QDQ graph."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput
from .....ir.composites.elementwise import LookupOp, PairLookupOp, PreluOp
from .....ir.composites.outputs import output_spec
from .....ir.graph.dataflow import dtype_of
from .....numerics import affine_rows
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import AffineRowsSpec, LookupSpec, PairLookupSpec, PreluSpec
from ..storage import TO_NHWC


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


@emits(PairLookupOp)
def emit_pair_lookup(op: PairLookupOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    tensors = [op.a] if op.b is None else [op.a, op.b]
    is_nhwc = _is_nhwc(op, context, [inputs[tensor.name] for tensor in tensors])
    values = [context.storage.get(inputs[tensor.name], is_nhwc=is_nhwc) for tensor in tensors]
    rows = op.rows
    if rows is not None and is_nhwc:
        rows = rows.reshape((1,) * (4 - rows.ndim) + rows.shape).transpose(TO_NHWC)
    b_shape = shape_of(values[1]) if rows is None else rows.shape
    # int8 -128 is entry 0 and, relabelled, byte 0: only the entries' values need relabelling.
    table = op.y.tensor.kernel_integers(op.table)
    lines = None if op.reals is None else affine_rows(table, op.reals, op.y.tensor.zero_point)
    if rows is not None and lines is not None:
        affine = AffineRowsSpec(a_shape=shape_of(values[0]), b_shape=b_shape, threads=context.threads)
        kernel = kernels.affine_rows(affine, lines=lines, rows=rows, isa=context.isa)
    else:
        spec = PairLookupSpec(a_shape=shape_of(values[0]), b_shape=b_shape, threads=context.threads)
        kernel = kernels.pair_lookup(spec, table=table, rows=rows, isa=context.isa)
    shape = op.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    context.put(output, context.call(output.name, kernel, values, shape), is_nhwc=is_nhwc)


@emits(PreluOp)
def emit_prelu(op: PreluOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = PreluSpec(
        shape=op.x.shape,
        x_scale=float(op.x.params.scale),
        slope_scale=op.slope_scale,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        threads=context.threads,
    )
    x = context.storage.get(inputs[op.x.name], is_nhwc=False)
    kernel = kernels.prelu(spec, slopes=op.slopes, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], op.x.shape, "int16"), is_nhwc=False)


def _is_nhwc(op: PairLookupOp, context: KernelContext, variables: list[Var]) -> bool:
    """Whether to compute in the permuted layout: where a tensor lies so, and every tensor has four dimensions."""
    tensors = [op.a, op.y.tensor] if op.b is None else [op.a, op.b, op.y.tensor]
    if any(len(tensor.shape) != 4 for tensor in tensors):
        return False
    return any(context.storage.is_kept_nhwc(var) for var in variables)
