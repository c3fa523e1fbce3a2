"""Inputs quantized at run time: what hybrid layers are made of.

Three forms lead to the same kernels, with parameters that the form of `ir.qdq.dynamic` computes:

    matmul(dequantize(x_q, scale, zero_point), dequantize(w_q, ...)) + bias                        weights with scales
    matmul(reshape(dequantize(x_q, scale, zero_point), shape), dequantize(w_q, ...)) + bias        rows of several axes
    astype(matmul(astype(x_q) - zero_point, astype(w_q) - w_zero), float) * (scale * w_scale) + bias     `integer_sums` (ONNX)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tvm.relax import Expr, Var

from ...numerics import QuantParams
from ...numerics.dynamic import PER_ROW, is_by_row
from ..composites.weighted import DynamicTensor
from ..graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ..graph.weighted import swapped_matrices
from ..untyped import ops
from .dynamic import Emit, FoundDynamic, find_dynamic, write_dynamic
from .values import numpy_constant

UNIT = QuantParams.per_tensor("uint8", 1.0, 0)
"""Parameters of reals, and of an input whose own come at run time: they leave multipliers as the weights have them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DynamicInput:
    """A float32 activation that is quantized at run time, and the variables that quantize it and dequantize or center it.

    `shape` is that of its integers; they may have axes of size 1 that it has not.
    """

    found: FoundDynamic
    source: Var
    shape: tuple[int, ...]
    members: tuple[Var, ...]

    @property
    def params(self) -> QuantParams:
        """Stand-ins: scale and zero point are not known."""
        return UNIT


def dynamic_tensor(x: DynamicInput, *, by_column: bool = False) -> DynamicTensor:
    """Return the form of an input that is quantized at run time."""
    scales = x.found.shape[0] if is_by_row(x.found.style) else 1
    return DynamicTensor(name=x.source.name, shape=x.shape, style=x.found.style, scales=scales, by_column=by_column)


def dynamic_input(view: DataflowView, expr: Expr) -> DynamicInput | None:
    """Return the float32 value behind dequantize(x_q, scale, zero_point), or behind x_q less its zero point in int32."""
    call = call_to(view.definition(expr), "dequantize")
    if call is not None:
        is_constant = numpy_constant(view.definition(call.args[1])) is not None
        found = None if is_constant else find_dynamic(view, *call.args[:3])
        if found is None or (is_by_row(found.style) and int(call.attrs.axis) != 0):
            return None
        return DynamicInput(found=found, source=found.x, shape=found.shape, members=(*found.members, *names_of(view, expr)))
    rows = call_to(view.definition(expr), "reshape")
    if rows is not None:
        return _of_rows(view, expr, rows.args[0])
    line = call_to(view.definition(expr), "expand_dims")  # of a one-dimensional convolution
    if line is not None and dtype_of(expr) == "float32":
        found, shape = dynamic_input(view, line.args[0]), static_shape(expr)
        if found is None or shape is None:
            return None
        return replace(found, shape=shape, members=(*found.members, *names_of(view, expr)))
    centered = call_to(view.definition(expr), "subtract")
    if centered is None or dtype_of(expr) != "int32":
        return None
    wide, shape = call_to(view.definition(centered.args[0]), "astype"), static_shape(expr)
    if wide is None or shape is None:
        return None
    integers, between = wide.args[0], names_of(view, centered.args[0])
    row = call_to(view.definition(integers), "expand_dims")
    if row is not None:
        between, integers = (*between, *names_of(view, integers)), row.args[0]
    found = find_dynamic(view, integers, None, centered.args[1])
    if found is None:
        return None
    return DynamicInput(found=found, source=found.x, shape=shape, members=(*found.members, *between, *names_of(view, expr)))


def write_rows(x: Expr, emit: Emit, axis: int | None = -1) -> Expr:
    """Write the values of a float32 tensor that is quantized when run, each row with parameters of its own values.

    A row lies along `axis`: the last one, or the one before, whose rows are the columns of matrices; or it is a sample, all that
    an index of the first axis has: None. `emit` binds expressions.
    """
    shape = static_shape(x)
    assert shape is not None, "whoever asks for integers of it knows its shape"
    if axis == -2:
        axes = swapped_matrices(len(shape))
        return emit(ops.permute_dims(write_rows(emit(ops.permute_dims(x, axes)), emit), axes))
    is_matrix, first = len(shape) == 2, 1 if axis is None else len(shape) - 1
    rows = x if is_matrix else emit(ops.reshape(x, [math.prod(shape[:first]), math.prod(shape[first:])]))
    value = write_dynamic(rows, static_shape(rows) or (), PER_ROW, emit)
    real = emit(ops.dequantize(value.integers, value.scale, value.zero_point, axis=0))
    return real if is_matrix else emit(ops.reshape(real, list(shape)))


def product_operand(view: DataflowView, expr: Expr, *, by_column: bool) -> DynamicInput | None:
    """Return the float32 value behind an operand of a product that is quantized per row or, `by_column`, per column when run."""
    if not by_column:
        found = dynamic_input(view, expr) if dtype_of(expr) == "float32" else None
        return found if found is not None and found.found.style == PER_ROW and found.found.shape[-1] == found.shape[-1] else None
    turned = call_to(view.definition(expr), "permute_dims")
    found = None if turned is None else product_operand(view, turned.args[0], by_column=False)
    before = None if found is None else call_to(view.definition(found.source), "permute_dims")
    if turned is None or found is None or before is None or not isinstance(before.args[0], Var):
        return None
    axes = swapped_matrices(len(found.shape))
    if [*map(int, turned.attrs.axes or ())] != axes or [*map(int, before.attrs.axes or ())] != axes:
        return None
    shape, source = static_shape(expr), view.root_of(before.args[0])
    assert shape is not None, "its rows have one"
    members = (*names_of(view, found.source), *found.members, *names_of(view, expr))
    return DynamicInput(found=found.found, source=source, shape=shape, members=members)


def _of_rows(view: DataflowView, expr: Expr, rows: Expr) -> DynamicInput | None:
    """Return the float32 value behind the matrix `rows` where that was made of one of the shape that `expr` has again.

    Its rows are those of the last axis, or samples.
    """
    found = dynamic_input(view, rows) if call_to(view.definition(rows), "dequantize") is not None else None
    flat = None if found is None else call_to(view.definition(found.source), "reshape")
    shape = static_shape(expr)
    if found is None or flat is None or not shape or not is_by_row(found.found.style) or len(found.shape) != 2:
        return None
    source = view.root_of(flat.args[0]) if isinstance(flat.args[0], Var) else None
    if source is None or static_shape(source) != shape or (found.shape[-1] != shape[-1] and found.shape[0] != shape[0]):
        return None
    members = (*names_of(view, found.source), *found.members, *names_of(view, expr))
    return DynamicInput(found=found.found, source=source, shape=shape, members=members)


def dynamic_members(view: DataflowView) -> set[Var]:
    """Return the variables of all quantizations at run time: several kernels may hold the same one, which runs once."""
    members: set[Var] = set()
    for binding in view.bindings:
        if call_to(binding.value, "dequantize", "subtract", "reshape", "permute_dims") is not None:
            found = dynamic_input(view, binding.var) or product_operand(view, binding.var, by_column=True)
            members.update(() if found is None else found.members)
    return members


def names_of(view: DataflowView, expr: Expr) -> tuple[Var, ...]:
    """Return the variables of an expression that is bound: its own, and the one that it renames."""
    source = view.binding_of(expr)
    own = (expr,) if isinstance(expr, Var) else ()
    return own if source is None or any(source.same_as(var) for var in own) else (*own, source)
