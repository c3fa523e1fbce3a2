"""Kernel calls of composites: reduce. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ....composites.base import ratio
from ....composites.outputs import output_spec
from ....composites.reduction import ArgReduceOp, ReduceOp
from ....graph.dataflow import dtype_of
from ....qdq.matchers.move import changes
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import Kernel, Output, Pool2dSpec, ReduceSpec
from ..kernels.int16_elementwise import int16_mean
from ..kernels.int16_pool2d import int16_pool2d
from ..kernels.int16_reduce import Int16ReduceSpec, int16_reduce
from ..kernels.int16_spec import Int16MeanSpec
from ..storage import TO_NHWC
from .move import requantized


@emits(ReduceOp)
def emit_reduce(op: ReduceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    run = run_of(context, inputs[op.x.name], op.x.shape, op.axes, f"{output.name}_rows")
    shape = op.y.tensor.shape
    is_nhwc = run.is_nhwc and len(shape) == 4
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    if op.x.kernel_dtype == "int16":
        value = context.call(output.name, _int16_kernel(op, context, run), [run.value], shape, "int16")
        context.put(output, value, is_nhwc=is_nhwc)
        return
    extreme = op.kind in ("max", "min")
    # An extreme keeps scale and zero point; a change of them is a second kernel.
    changed = extreme and changes(op.x, op.y)
    multiplier = np.float32(ratio(op.x.params, op.y.tensor.params))
    spec = ReduceSpec(
        kind="sum" if op.kind == "mean" else op.kind,
        outer=run.outer,
        extent=run.extent,
        inner=run.inner,
        multiplier=float(multiplier / np.float32(run.extent) if op.kind == "mean" else multiplier),
        input_zero_point=op.x.zero_point,
        output=Output(zero_point=op.x.zero_point) if extreme else output_spec(op.y),
        stored_even=op.rounding == "half_even_stored",
        threads=context.threads,
    )
    kernel = kernels.reduce(spec, isa=context.isa)
    value = context.call(f"{output.name}_kept" if changed else output.name, kernel, [run.value], shape)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc)


def _int16_kernel(op: ReduceOp, context: KernelContext, run: Run) -> Kernel:
    facts: dict[str, Any] = {"output": output_spec(op.y), "threads": context.threads}
    multiplier, zero_point = ratio(op.x.params, op.y.tensor.params), op.x.zero_point
    if op.kind != "mean":
        runs = {"outer": run.outer, "count": run.extent, "inner": run.inner}
        spec = Int16ReduceSpec(kind=op.kind, **runs, multiplier=multiplier, input_zero_point=zero_point, **facts)
        return int16_reduce(spec, isa=context.isa)
    if op.rounding == "fixed_point":
        scales = {"in_scale": float(op.x.params.scale), "out_scale": float(op.y.tensor.params.scale)}
        mean = Int16MeanSpec(outer=run.outer, count=run.extent, inner=run.inner, **scales, **facts)
        return int16_mean(mean, isa=context.isa)
    # Any zero point, half to even: one window over each column of the elements side by side.
    window = Pool2dSpec(
        kind="avg",
        batch=run.outer,
        in_height=run.extent,
        in_width=1,
        channels=run.inner,
        kernel=(run.extent, 1),
        out_height=1,
        out_width=1,
        multiplier=multiplier,
        input_zero_point=zero_point,
        **facts,
    )
    return int16_pool2d(window, isa=context.isa)


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


def run_of(context: KernelContext, var: Var, shape: tuple[int, ...], axes: tuple[int, ...], name: str) -> Run:
    """Return x so that the axes are neighbours: as it lies, in the kernels' layout, or permuted."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    is_nhwc = context.storage.is_kept_nhwc(var) and _same_order(shape, [axis for axis in TO_NHWC if axis in kept])
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
