"""Rules of reductions over any axes (mean, sum, max, min), of the places of extremes, and of the greatest or least elements.

The greatest or least elements, and their places, need no arithmetic: order needs no scale.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from tvm.relax import Expr, Var

from ....numerics import INTEGER_RANGE, PerTensor, QuantParams
from ....numerics.limits import INT16_MAX_COUNT, REDUCE_MAX_EXTENT
from ....numerics.rounding.fixed_point import SHIFTS, fixed_point_multiplier, is_power_of_two, mean_multiplier
from ....runtime.shapes import bounded, known, surpasses
from ....target import OpSupport
from ....target.vocabulary import HALF_EVEN_STORED
from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.float_ops import FloatReduceOp
from ...composites.movement import TopkOp
from ...composites.reduction import ArgReduceOp, ReduceOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import is_fixed_point, result_rounding
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import constant_value, dequantized, integer_params
from .move.move import changes

_EXTREMES: dict[str, Literal["max", "min"]] = {"max": "max", "min": "min"}


_PLACES: dict[str, Literal["argmax", "argmin"]] = {"argmax": "argmax", "argmin": "argmin"}


def match_reduce(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
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
    given_axes = range(len(shape)) if call.attrs.axis is None else [int(axis) % len(shape) for axis in call.attrs.axis]
    axes = tuple(sorted(set(given_axes)))
    extent = math.prod(shape[axis] for axis in axes)
    if surpasses(extent, REDUCE_MAX_EXTENT) or 0 in shape:
        return Rejection(reason=f"it reduces {extent} elements of {shape} at once; the kernel takes 1 to {REDUCE_MAX_EXTENT}")
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    kind = op_name(call)
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    rounding = result_rounding(view, tail.members, (HALF_EVEN_STORED,) if kind == "mean" else ())
    if source.kernel_dtype == "int16":
        is_fixed = is_fixed_point(result_rounding(view, tail.members))
        is_fixed |= kind == "sum" and _in_integers(kind, source, tail.result, extent) is not None
        problem = _wide_problem(kind, source, tail.result, extent, is_fixed=is_fixed)
        if problem is not None:
            return problem
        rounding = "fixed_point" if is_fixed and kind == "mean" else rounding
    rounding = _in_integers(kind, source, tail.result, extent) or rounding
    op = ReduceOp(
        kind=_EXTREMES.get(kind) or ("mean" if kind == "mean" else "sum"), x=source, y=tail.result, axes=axes, rounding=rounding
    )
    members = (*([x.var] if x.var is not None else []), core, *tail.members)
    return Region(core=core, output=tail.output, members=members, inputs=(x.source,), op=op)


def _in_integers(kind: str, x: QuantizedTensor, y: QuantizedOutput, count: int) -> str | None:
    """Return how a mean or sum is rounded as accelerators do; None where no kernel does that."""
    asked = y.fixed_point
    if asked is None or kind not in ("mean", "sum"):
        return None
    low, high = INTEGER_RANGE[x.params.dtype]
    largest = bounded(count, REDUCE_MAX_EXTENT) * max(high - int(x.params.zero_point), int(x.params.zero_point) - low)
    real = float(x.params.scale) / float(y.tensor.params.scale)
    if asked in SHIFTS:
        fits = is_power_of_two(real) and (kind == "mean" or largest <= fixed_point_multiplier(real, asked).max_value)
    else:
        factor = mean_multiplier(real, known(count), asked) if kind == "mean" else fixed_point_multiplier(real, asked)
        fits = largest <= factor.max_value
    return asked if fits else None


def _wide_problem(kind: str, x: QuantizedTensor, y: QuantizedOutput, count: int, *, is_fixed: bool) -> Rejection | None:
    """Return why the 16-bit kernel does not take it: means in fixed point of symmetric int16, sums in fixed point alone."""
    if kind in _EXTREMES:
        if x.params != y.tensor.params:
            return Rejection(reason="it changes scale or zero point; the 16-bit kernel of an extreme keeps them")
        return None
    if kind == "sum" and not is_fixed:
        return Rejection(reason="sums of int16 are integer in TFLite files alone; the frameworks of other sources add in float")
    offset = next((tensor for tensor in (x, y.tensor) if tensor.zero_point != 0), None)
    if kind == "mean" and is_fixed and offset is not None:
        return Rejection(reason=f"the zero point of {offset.name} is {offset.zero_point}; the 16-bit kernel takes 0")
    most = INT16_MAX_COUNT if kind == "mean" and is_fixed else INT16_MAX_COUNT // 2
    if surpasses(count, most):
        return Rejection(reason=f"it reduces {count} int16 values at once; the kernel takes {most}")
    return None


def match_place(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
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
    if surpasses(extent, REDUCE_MAX_EXTENT) or 0 in shape:
        return Rejection(reason=f"it looks through {extent} elements; the kernel takes 1 to {REDUCE_MAX_EXTENT}")
    user = view.only_user(core)
    cast = None if user is None else call_to(view.definition(user), "astype")
    output = user if user is not None and cast is not None and dtype_of(user) in ("int32", "int64") else core
    op = ArgReduceOp(kind=_PLACES[op_name(call)], x=QuantizedTensor(name=source.name, shape=shape, params=params), axis=axis)
    return Region(
        core=core,
        output=output,
        members=(*members, core, *(() if output.same_as(core) else (output,))),
        inputs=(source,),
        op=op,
    )


def _plain(dtype: str) -> QuantParams:
    return QuantParams(dtype=dtype, scale=np.asarray(1, np.float32), zero_point=np.asarray(0, np.int32), granularity=PerTensor())


_MIN_CHANNELS = 4
"""Fewer side by side are not worth a vector."""

_IMAGE_POOL = "nn.adaptive_avg_pool2d"

_FLOAT_KINDS: dict[str, Literal["sum", "mean", "max", "min", "argmax", "argmin"]] = {
    **_EXTREMES,
    **_PLACES,
    "sum": "sum",
    "mean": "mean",
}

FLOAT_REDUCTIONS = (*_FLOAT_KINDS, _IMAGE_POOL)
"""Ops that reduce float32."""


def is_of_pixels(shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Return whether a mean is over the pixels of NCHW images, or of volumes."""
    return len(shape) in (4, 5) and axes == tuple(range(2, len(shape)))


def match_float_reduce(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a reduction, or an average pool of a whole NCHW image, of a float32 activation, and a cast of its places."""
    call: Any = view.definition(core)
    x, shape, result = call.args[0], static_shape(call.args[0]), static_shape(core)
    if not isinstance(x, Var) or shape is None or result is None or 0 in shape or dtype_of(x) != "float32":
        return Rejection(reason=f"{core.name} is no reduction of a float32 activation of static shape")
    if constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} reduces a constant")
    kind = "mean" if op_name(call) == _IMAGE_POOL else op_name(call)
    axes = _reduced_axes(call, shape, result)
    if not axes:
        return Rejection(reason=f"{core.name} is a pool of parts of an image")
    behind = 1 if not are_neighbours(axes) else math.prod(shape[axes[-1] + 1 :])
    channels = shape[1] if is_of_pixels(shape, axes) and len(shape) == 4 else behind
    if channels != 1 and not surpasses(channels, _MIN_CHANNELS - 1):
        return Rejection(reason=f"{core.name} is over axes {axes} of {shape}, which leaves {channels} side by side")
    if surpasses(math.prod(shape[axis] for axis in axes), REDUCE_MAX_EXTENT):
        return Rejection(reason=f"{core.name} reduces too many elements at once")
    user = view.only_user(core)
    is_cast = kind in _PLACES and user is not None and call_to(view.definition(user), "astype") is not None
    output = user if is_cast and user is not None and dtype_of(user) in ("int32", "int64") else core
    members = (core,) if output.same_as(core) else (core, output)
    op = FloatReduceOp(op=op_name(call), kind=_FLOAT_KINDS[kind], x=x.name, shape=shape, axes=axes, output_shape=result)
    return Region(core=core, output=output, members=members, inputs=(x,), op=op)


def _reduced_axes(call: Any, shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    if op_name(call) == _IMAGE_POOL:
        is_image = str(call.attrs.layout) == "NCHW" and str(call.attrs.out_layout) in ("", "NCHW") and result[2:] == (1, 1)
        return (2, 3) if is_image else ()
    given = call.attrs.axis
    if given is None:
        return tuple(range(len(shape)))
    return tuple(sorted({int(axis) % len(shape) for axis in ([given] if op_name(call) in _PLACES else given)}))


def are_neighbours(axes: tuple[int, ...]) -> bool:
    """Return whether no other axis lies between some."""
    return axes == tuple(range(axes[0], axes[-1] + 1))


def match_topk(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(topk(dequantize(x))) of values, or topk(dequantize(x)) of places."""
    call: Any = view.definition(core)
    gives = str(call.attrs.ret_type)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if gives not in ("values", "indices"):
        return Rejection(reason="it gives values and places at once; ask for each by an op of its own")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    axis, count = int(call.attrs.axis) % len(shape), int(call.attrs.k)
    if not 1 <= count <= shape[axis] or 0 in shape or (axis != len(shape) - 1 and dtype_of(core) == "int64"):
        return Rejection(reason=f"it looks for {count} of {shape} along axis {axis}, as {dtype_of(core)}")
    y: QuantizedOutput | None = None
    output, behind = core, ()
    if gives == "values":
        tail = follow_to_quantize(view, core, of_width(support, x.params))
        if isinstance(tail, Rejection):
            return tail
        y, output, behind = tail.result, tail.output, tail.members
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    if y is not None and changes(source, y):
        return Rejection(reason=f"it chooses values of {source.name} and changes their scale, zero point or bounds at once")
    op = TopkOp(x=source, y=y, axis=axis, count=count, largest=bool(call.attrs.largest))
    members = (*([x.var] if x.var is not None else []), core, *behind)
    return Region(core=core, output=output, members=members, inputs=(x.source,), op=op)
