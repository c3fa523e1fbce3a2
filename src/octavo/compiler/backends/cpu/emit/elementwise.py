"""Kernel calls of composites: two tensors, element by element: arithmetic, comparisons, logic, choices. Reads no QDQ graph."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedTensor
from .....ir.composites.elementwise import AddOp, Choice, CompareOp, LogicalOp, Operand, PairwiseOp, SelectOp, float_sum_of
from .....ir.composites.outputs import output_spec
from .....numerics.rounding.fixed_point import FIXED_POINT_ROUNDINGS
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import AddSpec, PairwiseSpec, Side
from ..kernels.elementwise.compare import Chosen, CompareSpec, LogicalSpec, SelectSpec, compare, logical, select
from ..storage import TO_NHWC
from .move import operand_table


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
        size=math.prod(op.a.shape),
        b_size=math.prod(op.b.shape),
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


@emits(PairwiseOp)
def emit_pairwise(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    is_nhwc = is_pairwise_nhwc(op, context, inputs)
    a, b = (_laid_out(context, inputs, operand, is_nhwc=is_nhwc) for operand in (op.a, op.b))
    shape = op.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    tensors = op.a.tensor, op.b.tensor, op.y.tensor
    sum_constants, relabelling = None, 0
    if op.kind in ("add", "sub") and op.rounding not in FIXED_POINT_ROUNDINGS:
        sum_constants, relabelling = float_sum_of(op.rounding, *tensors, subtract=op.kind == "sub")
    spec = PairwiseSpec(
        kind=op.kind,
        a=side_of(tensors[0], shape_of(a)),
        b=side_of(tensors[1], shape_of(b)),
        out_scale=float(tensors[2].params.scale),
        output=output_spec(op.y),
        rounding=op.rounding,
        float_sum=sum_constants,
        relabelling=relabelling,
        threads=context.threads,
    )
    kernel = kernels.pairwise(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [a, b], shape, op.y.kernel_dtype), is_nhwc=is_nhwc)


def side_of(tensor: QuantizedTensor, shape: tuple[int, ...]) -> Side:
    """Return an operand as kernels know it; `shape` is that in which it lies."""
    scale = float(tensor.params.scale)
    return Side(shape=shape, dtype=tensor.kernel_dtype, scale=scale, zero_point=tensor.zero_point)


def is_pairwise_nhwc(op: PairwiseOp, context: KernelContext, inputs: dict[str, Var]) -> bool:
    """Whether to compute in the permuted layout: where an operand lies so, and every variable has four dimensions."""
    variables = [operand for operand in (op.a, op.b) if operand.values is None]
    if len(op.y.tensor.shape) != 4 or any(len(operand.tensor.shape) != 4 for operand in variables):
        return False
    return any(context.storage.is_kept_nhwc(inputs[operand.tensor.name]) for operand in variables)


def _laid_out(context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values = operand.tensor.kernel_integers(operand.values)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))


@emits(CompareOp)
def emit_compare(op: CompareOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a, b = (side_of(operand.tensor, operand.tensor.shape) for operand in (op.a, op.b))
    spec = CompareSpec(kind=op.kind, a=a, b=b, rounding=op.rounding, threads=context.threads)
    values = [stored_operand(context, inputs, operand) for operand in (op.a, op.b)]
    value = context.call(output.name, compare(spec, isa=context.isa), values, op.shape, "bool")
    context.put(output, value, is_nhwc=False)


@emits(LogicalOp)
def emit_logical(op: LogicalOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = LogicalSpec(kind=op.kind, shapes=op.shapes, threads=context.threads)
    values = [context.storage.source(inputs[name]) for name in op.operands]
    value = context.call(output.name, logical(spec, isa=context.isa), values, op.shape, "bool")
    context.put(output, value, is_nhwc=False)


def stored_operand(context: KernelContext, inputs: dict[str, Var], operand: Operand) -> Expr:
    """Return an operand's integers as kernels hold them, in the source's layout."""
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    return relax.const(operand.tensor.kernel_integers(operand.values))


@emits(SelectOp)
def emit_select(op: SelectOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    dtype = op.y.tensor.kernel_dtype
    spec = SelectSpec(
        condition=op.condition_shape,
        a=_chosen(op, op.a),
        b=_chosen(op, op.b),
        dtype=dtype,
        threads=context.threads,
    )
    given = op.condition_values
    values = [
        context.storage.source(inputs[op.condition]) if given is None else relax.const(given.astype(np.bool_)),
        *(_stored_choice(op, context, inputs, side) for side in (op.a, op.b)),
    ]
    value = context.call(output.name, select(spec, isa=context.isa), values, op.y.tensor.shape, dtype)
    context.put(output, value, is_nhwc=False)


def _chosen(op: SelectOp, side: Choice) -> Chosen:
    y, tensor = op.y, side.tensor
    bounds = (y.tensor.params.qmin, y.tensor.params.qmax)
    same = tensor.params == y.tensor.params and (y.qmin, y.qmax) == bounds
    if side.values is not None or same:
        return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype)
    table = operand_table(tensor, y)
    # Relabelling leaves the order of integers: the least is entry 0 in either dtype.
    return Chosen(shape=tensor.shape, dtype=tensor.kernel_dtype, table=y.tensor.kernel_integers(table))


def _stored_choice(op: SelectOp, context: KernelContext, inputs: dict[str, Var], side: Choice) -> Expr:
    if side.values is None:
        return context.storage.get(inputs[side.tensor.name], is_nhwc=False)
    return relax.const(op.y.tensor.kernel_integers(side.values))
