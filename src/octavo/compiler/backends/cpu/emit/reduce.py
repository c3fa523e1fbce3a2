"""Kernel calls of composites: reductions, their places, the greatest elements. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from tvm.relax import Expr, Var

from .....ir.composites.base import ratio
from .....ir.composites.float_ops import FloatReduceOp
from .....ir.composites.movement import TopkOp
from .....ir.composites.outputs import Output, output_spec
from .....ir.composites.reduction import ArgReduceOp, ReduceOp
from .....ir.graph.dataflow import dtype_of, static_shape
from .....ir.qdq.matchers.move.move import changes
from .....ir.qdq.matchers.reduce import is_of_pixels
from .....numerics.rounding.fixed_point import (
    FIXED_POINT_ROUNDINGS,
    SHIFTS,
    FixedPointMultiplier,
    ShiftRounding,
    fixed_point_multiplier,
    mean_multiplier,
)
from .....runtime.shapes import known
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import FloatReduceSpec, Pool2dSpec, ReduceSpec
from ..kernels.reductions.topk import TopkSpec, topk
from ..storage import TO_NHWC
from .move import requantized

Given = Literal["values", "indices"]


@emits(ReduceOp)
def emit_reduce(op: ReduceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    run = run_of(context, inputs[op.x.name], op.x.shape, op.axes, f"{output.name}_rows")
    shape = op.y.tensor.shape
    is_nhwc = run.is_nhwc and len(shape) == 4
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    if op.kind == "mean" and op.rounding in SHIFTS:
        context.put(output, _mean_by_shift(op, context, run, output.name, shape), is_nhwc=is_nhwc)
        return
    # An extreme keeps scale and zero point; a change of them, which int16 never has, is a second kernel.
    changed = op.kind in ("max", "min") and op.x.kernel_dtype == "uint8" and changes(op.x, op.y)
    spec = ReduceSpec(
        kind=op.kind,
        outer=run.outer,
        extent=run.extent,
        inner=run.inner,
        dtype=op.x.kernel_dtype,
        multiplier=_multiplier(op, run.extent),
        input_zero_point=op.x.zero_point,
        output=Output(zero_point=op.x.zero_point) if changed else output_spec(op.y),
        stored_even=op.rounding == "half_even_stored",
        threads=context.threads,
    )
    kernel = kernels.reduce(spec, isa=context.isa)
    value = context.call(f"{output.name}_kept" if changed else output.name, kernel, [run.value], shape, op.x.kernel_dtype)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc)


def _mean_by_shift(op: ReduceOp, context: KernelContext, run: Run, name: str, shape: tuple[int, ...]) -> Var:
    """Write the exact mean, rounded once, as an average of one window."""
    spec = Pool2dSpec(
        kind="avg",
        batch=run.outer,
        in_height=run.extent,
        in_width=1,
        channels=run.inner,
        kernel=(run.extent, 1),
        out_height=1,
        out_width=1,
        multiplier=ratio(op.x.params, op.y.tensor.params),
        input_zero_point=op.x.zero_point,
        output=output_spec(op.y),
        dtype=op.x.kernel_dtype,
        rounding=cast("ShiftRounding", op.rounding),
        threads=context.threads,
    )
    return context.call(name, kernels.pool2d(spec, isa=context.isa), [run.value], shape, op.x.kernel_dtype)


def _multiplier(op: ReduceOp, extent: int) -> float | FixedPointMultiplier:
    """Return the factor from the sum of differences to steps of the result; it has a mean's divisor only in fixed point."""
    real = float(op.x.params.scale) / float(op.y.tensor.params.scale)
    asked = FIXED_POINT_ROUNDINGS.get(op.rounding) or ("twice_away" if op.rounding == "fixed_point" else None)
    if asked is not None:
        return mean_multiplier(real, known(extent), asked) if op.kind == "mean" else fixed_point_multiplier(real, asked)
    return float(np.float32(ratio(op.x.params, op.y.tensor.params)))


@emits(ArgReduceOp)
def emit_arg_reduce(op: ArgReduceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    axes = tuple(range(len(op.x.shape))) if op.axis is None else (op.axis,)
    dtype: Any = dtype_of(output)
    value = context.storage.get(inputs[op.x.name], is_nhwc=False)
    outer, extent, inner = _split(op.x.shape, axes)
    spec = ReduceSpec(
        kind=op.kind,
        outer=outer,
        extent=extent,
        inner=inner,
        output=Output(zero_point=0),
        index_dtype=dtype,
        threads=context.threads,
    )
    context.put(
        output,
        context.call(output.name, kernels.reduce(spec, isa=context.isa), [value], shape_of(output), dtype),
        is_nhwc=False,
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """x as [outer, extent, inner], with what is reduced in the middle."""

    value: Expr
    outer: int
    extent: int
    inner: int
    is_nhwc: bool


def run_of(
    context: KernelContext, var: Var, shape: tuple[int, ...], axes: tuple[int, ...], name: str, *, as_nhwc: bool = False
) -> Run:
    """Return x so that the axes are neighbours: as it lies, in the kernels' layout (`as_nhwc`: in any case), or permuted."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    keeps_order = context.storage.is_kept_nhwc(var) and _same_order(shape, [axis for axis in TO_NHWC if axis in kept])
    is_nhwc = as_nhwc or keeps_order
    order = TO_NHWC if is_nhwc else tuple(range(len(shape)))
    value = context.storage.get(var, is_nhwc=is_nhwc)
    laid, moved = tuple(shape[axis] for axis in order), tuple(order.index(axis) for axis in axes)
    if not _are_neighbours(laid, moved):
        rest = tuple(axis for axis in range(len(laid)) if axis not in moved)
        value = context.permute(name, value, (*rest, *moved))
        laid, moved = shape_of(value), tuple(range(len(rest), len(laid)))
    outer, extent, inner = _split(laid, moved)
    return Run(value=value, outer=outer, extent=extent, inner=inner, is_nhwc=is_nhwc)


def _same_order(shape: tuple[int, ...], axes: list[int]) -> bool:
    long = [axis for axis in axes if shape[axis] != 1]
    return long == sorted(long)


def _are_neighbours(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    long = [axis for axis in axes if shape[axis] != 1]
    return not long or all(axis in axes or shape[axis] == 1 for axis in range(min(long), max(long)))


def _split(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the elements before, along and behind neighbouring axes."""
    long = [axis for axis in axes if shape[axis] != 1]
    if not long:
        return math.prod(shape), 1, 1
    return math.prod(shape[: min(long)]), math.prod(shape[axis] for axis in long), math.prod(shape[max(long) + 1 :])


@emits(FloatReduceOp)
def emit_float_reduce(op: FloatReduceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call: of pixels before their channels."""
    shape = op.output_shape
    has_pixels = len(op.shape) == 4 and is_of_pixels(op.shape, op.axes)
    run = run_of(context, inputs[op.x], op.shape, op.axes, f"{output.name}_rows", as_nhwc=has_pixels)
    is_nhwc = run.is_nhwc and len(shape) == 4
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    dtype: Any = dtype_of(output)
    spec = FloatReduceSpec(
        kind=op.kind,
        outer=run.outer,
        count=run.extent,
        inner=run.inner,
        index_dtype=dtype if op.kind in ("argmax", "argmin") else "int64",
        threads=context.threads,
    )
    value = context.call(output.name, kernels.float_reduce(spec, isa=context.isa), [run.value], shape, spec.out_dtype)
    context.put(output, value, is_nhwc=is_nhwc)


@emits(TopkOp)
def emit_topk(op: TopkOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call; another axis than the last one is brought there, and back."""
    shape = op.x.shape
    rest = tuple(axis for axis in range(len(shape)) if axis != op.axis)
    order = (*rest, op.axis)
    is_last = op.axis == len(shape) - 1
    x: Expr = context.storage.get(inputs[op.x.name], is_nhwc=False)
    x = x if is_last else context.permute(f"{output.name}_rows", x, order)
    gives: Given = "indices" if op.y is None else "values"
    dtype: Any = dtype_of(output) if op.y is None else "int64"
    spec = TopkSpec(
        rows=math.prod(shape[axis] for axis in rest),
        extent=shape[op.axis],
        count=op.count,
        largest=op.largest,
        gives=gives,
        dtype=op.x.kernel_dtype,
        index_dtype=dtype,
        threads=context.threads,
    )
    rows = (*(shape[axis] for axis in rest), op.count)
    name = output.name if is_last else f"{output.name}_found"
    value: Expr = context.call(name, topk(spec, isa=context.isa), [x], rows, spec.out_dtype)
    if not is_last:
        back = tuple(order.index(axis) for axis in range(len(shape)))
        value = context.permute(output.name, value, back)
    assert shape_of(value) == (static_shape(output) or ())
    context.put(output, value, is_nhwc=False)
