"""Rules of reductions over any axes (mean, sum, max, min), and of the places of extremes (argmax, argmin)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.relax import Expr, Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import REDUCE_MAX_EXTENT, Output, ReduceSpec
from ..numerics import INTEGER_RANGE, PerTensor, QuantParams
from ..target import OpSupport
from .context import KernelContext, ratio, shape_of
from .forms import Form, OutputForm, TensorForm
from .move import changes, requantized
from .rounding import rounding_of
from .storage import TO_NHWC
from .tail import check_activation, follow_to_quantize
from .values import dequantized, integer_params

_EXTREMES: dict[str, Literal["max", "min"]] = {"max": "max", "min": "min"}
_PLACES: dict[str, Literal["argmax", "argmin"]] = {"argmax": "argmax", "argmin": "argmin"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReduceForm(Form):
    """A reduction of x over `axes`, counted in the source's layout."""

    kind: Literal["mean", "sum", "max", "min"]
    x: TensorForm
    y: OutputForm
    axes: tuple[int, ...]
    rounding: str

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding where it is not half to even."""
        info = {"input": self.x.info(), "output": self.y.info()}
        return info if self.rounding == "half_even" else {**info, "rounding": self.rounding}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        run = run_of(context, inputs[self.x.name], self.x.shape, self.axes, f"{output.name}_rows")
        shape = self.y.tensor.shape
        extreme = self.kind in ("max", "min")
        # An extreme keeps scale and zero point; a change of them is a second kernel.
        changed = extreme and changes(self.x, self.y)
        multiplier = np.float32(ratio(self.x.params, self.y.tensor.params))
        spec = ReduceSpec(
            kind="sum" if self.kind == "mean" else self.kind,
            outer=run.outer,
            extent=run.extent,
            inner=run.inner,
            multiplier=float(multiplier / np.float32(run.extent) if self.kind == "mean" else multiplier),
            input_zero_point=self.x.zero_point,
            output=Output(zero_point=self.x.zero_point) if extreme else self.y.spec(),
            stored_even=self.rounding == "half_even_stored",
            threads=context.threads,
        )
        is_nhwc = run.is_nhwc and len(shape) == 4
        shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
        kernel = kernels.reduce(spec, isa=context.isa)
        value = context.call(f"{output.name}_kept" if changed else output.name, kernel, [run.value], shape)
        if changed:
            value = requantized(context, output.name, value, self.x.params, self.y)
        context.put(output, value, is_nhwc=is_nhwc)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlaceForm(Form):
    """The place of the largest or least element of x along `axis`, or among all of them where it is None."""

    kind: Literal["argmax", "argmin"]
    x: TensorForm
    axis: int | None

    def quantize_info(self) -> dict[str, Any]:
        """Return its input; the result is no quantized tensor."""
        return {"input": self.x.info()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        axes = tuple(range(len(self.x.shape))) if self.axis is None else (self.axis,)
        dtype: Any = dtype_of(output)
        value = context.storage.get(inputs[self.x.name], is_nhwc=False)
        outer, extent, inner = _split(self.x.shape, axes)
        spec = ReduceSpec(
            kind=self.kind,
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


def match_reduce(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim quantize(clamp(reduce(dequantize(x)))) over any axes."""
    call: Any = view.definition(core)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    stated = range(len(shape)) if call.attrs.axis is None else [int(axis) % len(shape) for axis in call.attrs.axis]
    axes = tuple(sorted(set(stated)))
    extent = math.prod(shape[axis] for axis in axes)
    if not 1 <= extent <= REDUCE_MAX_EXTENT or 0 in shape:
        return Rejection(reason=f"it reduces {extent} elements of {shape} at once; the kernel takes 1 to {REDUCE_MAX_EXTENT}")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    kind = op_name(call)
    form = ReduceForm(
        kind=_EXTREMES.get(kind) or ("mean" if kind == "mean" else "sum"),
        x=TensorForm(name=x.source.name, shape=shape, params=x.params),
        y=tail.form,
        axes=axes,
        rounding="half_even" if kind in _EXTREMES else rounding_of(view, kind),
    )
    members = (*([x.var] if x.var is not None else []), core, *tail.members)
    attrs = {"quantize_info": form.quantize_info()}
    return Region(core=core, output=tail.output, members=members, inputs=(x.source,), attrs=attrs, form=form)


def match_place(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
    """Claim argmax(dequantize(x)), or of integers, and the cast of its result to int32 or int64."""
    call: Any = view.definition(core)
    source: Expr = call.args[0]
    x = dequantized(view, source)
    source, members = (x.source, () if x.var is None else (x.var,)) if x is not None else (source, ())
    shape, dtype = static_shape(source), dtype_of(source)
    if not isinstance(source, Var) or shape is None or dtype not in INTEGER_RANGE:
        return Rejection(reason=f"input {getattr(source, 'name', 'constant')} is {dtype}, or its shape is not static")
    # Order needs no scale; where nothing states one, that of the integers themselves serves.
    params = (x.params if x is not None else integer_params(view, source)) or _plain(dtype)
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    axis = None if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    extent = math.prod(shape) if axis is None else shape[axis]
    if not 1 <= extent <= REDUCE_MAX_EXTENT or 0 in shape:
        return Rejection(reason=f"it looks through {extent} elements; the kernel takes 1 to {REDUCE_MAX_EXTENT}")
    user = view.only_user(core)
    cast = None if user is None else call_to(view.definition(user), "astype")
    output = user if user is not None and cast is not None and dtype_of(user) in ("int32", "int64") else core
    form = PlaceForm(kind=_PLACES[op_name(call)], x=TensorForm(name=source.name, shape=shape, params=params), axis=axis)
    return Region(
        core=core,
        output=output,
        members=(*members, core, *(() if output.same_as(core) else (output,))),
        inputs=(source,),
        attrs={"quantize_info": form.quantize_info()},
        form=form,
    )


def _plain(dtype: str) -> QuantParams:
    return QuantParams(dtype=dtype, scale=np.asarray(1, np.float32), zero_point=np.asarray(0, np.int32), granularity=PerTensor())


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
