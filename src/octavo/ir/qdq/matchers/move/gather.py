"""Rule of ops that read their input by an index for each axis: slices, take, flip, tile, repeat, padding, nearest neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.relax import Var

from .....numerics import INTEGER_RANGE, QuantParams, nearest_indices
from .....runtime.size import is_open, is_surely
from .....target import OpSupport
from ....composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor
from ....composites.movement import AxisMap, GatherOp, IndexRun, Maps, Outside, extent_of, full_axis, padded_axis
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.rules import Region, Rejection
from ....graph.sizes import size_of
from ...pad import is_folded
from ...tail import check_activation, follow_to_quantize, integer_clamp, of_width
from ...values import dequantized, integer_params, numpy_constant


def match_gather(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(move(dequantize(x))), or a movement of integers."""
    call: Any = view.definition(core)
    if call_to(call, "nn.pad") is not None and is_folded(view, core):
        return Rejection(reason="the convolution behind it pads, too; pad in one of the two")
    source, params, members = call.args[0], None, ()
    is_integer = dtype_of(core) in INTEGER_RANGE
    if is_integer:
        params = integer_params(view, source) or integer_params(view, core)
    else:
        x = dequantized(view, source)
        if x is not None:
            source, params, members = x.source, x.params, () if x.var is None else (x.var,)
    shape = static_shape(source)
    if params is None or not isinstance(source, Var) or shape is None:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float or has no known scale, or its shape is not static")
    problem = check_activation(source.name, params, support)
    if problem is not None:
        return problem
    if is_integer:
        output, qmin, qmax = integer_clamp(view, core, params.qmin, params.qmax)
        out_shape = static_shape(core)
        assert out_shape is not None, "indices of a static shape"
        y = QuantizedOutput(tensor=QuantizedTensor(name=output.name, shape=out_shape, params=params), qmin=qmin, qmax=qmax)
        behind = () if output.same_as(core) else (output,)
    else:
        tail = follow_to_quantize(view, core, of_width(support, params))
        if isinstance(tail, Rejection):
            return tail
        output, y, behind = tail.output, tail.result, tail.members
    if params.dtype in WIDE and params != y.tensor.params:
        return Rejection(reason=f"it moves int16 values and changes scale or zero point of {source.name} at once")
    maps = maps_of(view, call, shape)
    if isinstance(maps, Rejection):
        return maps
    fill = _fill(call, params, y.tensor.params, is_integer=is_integer)
    if isinstance(fill, Rejection):
        return fill
    op = GatherOp(x=QuantizedTensor(name=source.name, shape=shape, params=params), y=y, maps=maps, fill=fill)
    return Region(
        core=core,
        output=output,
        members=(*members, core, *behind),
        inputs=(source,),
        op=op,
    )


def maps_of(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    """Return which index of each axis of what it reads, of this shape, one of `GATHER_OPS` puts at each index of its result."""
    return _MAPS[op_name(call)](view, call, shape)


def _fill(call: Any, x: QuantParams, y: QuantParams, *, is_integer: bool) -> int | Rejection:
    """Return the integer that padding holds, before a change of parameters."""
    if call_to(call, "nn.pad") is None:
        return 0
    value = float(call.attrs.pad_value)
    if is_integer:
        return int(min(max(round(value), x.qmin), x.qmax))
    same = x.dtype == y.dtype and x.scale == y.scale and x.zero_point == y.zero_point
    if value != 0.0 and not same:
        return Rejection(reason=f"it pads with {value} and changes scale or zero point at once; do these in two steps")
    return int(np.clip(np.rint(np.float32(value) / x.scale) + x.zero_point, x.qmin, x.qmax))


def _full(shape: tuple[int, ...]) -> list[AxisMap]:
    return [full_axis(extent) for extent in shape]


def _numbers(view: DataflowView, expr: Any) -> list[Any] | None:
    """Return a tuple of integer literals and sizes, None if it isn't one."""
    value = view.definition(expr)
    if not isinstance(value, relax.Tuple):
        return None
    numbers = [size_of(field) for field in list(value.fields)]
    return None if None in numbers else numbers


def _slice_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    parts = [_numbers(view, arg) for arg in call.args[1:]]
    axes, begin, end = (part if part is not None else [] for part in parts[:3])
    strides = parts[3] if len(parts) > 3 else [1] * len(axes)
    if not axes or strides is None or not len(axes) == len(begin) == len(end) == len(strides):
        return Rejection(reason="axes, bounds or strides of the slice are not constants; make them so")
    maps = _full(shape)
    for axis, first, last, stride in zip(axes, begin, end, strides, strict=True):
        taken = _sliced(shape[axis], first, last, stride, is_inbound=bool(call.attrs.assume_inbound))
        if taken is None:
            return Rejection(reason=f"its bounds {first} and {last} by {stride} may lie outside of an axis of {shape[axis]}")
        maps[axis] = taken
    return _checked(maps, call)


def _sliced(extent: int, first: int, last: int, stride: int, *, is_inbound: bool) -> AxisMap | None:
    """Return the indices of a slice; None where bounds of an open one may be counted from the end, or cut off."""
    if not any(map(is_open, (extent, first, last))):
        return tuple(range(extent))[first:last:stride]
    if (
        is_open(stride)
        or stride < 1
        or not (is_inbound or (is_surely(first, 0) and is_surely(last, first) and is_surely(extent, last)))
    ):
        return None
    return IndexRun(count=(last - first + stride - 1) // stride, start=first, step=stride)


def _take_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    indices = numpy_constant(view.definition(call.args[1]))
    if indices is None or indices.ndim > 1 or call.attrs.axis is None:
        return Rejection(reason="its indices are not a constant of at most one dimension along one axis")
    axis = int(call.attrs.axis) % len(shape)
    if is_open(shape[axis]):
        return Rejection(reason=f"it takes at constant indices along axis {axis}, whose size {shape[axis]} is open")
    wanted = indices.reshape(-1).astype(np.int64)
    wanted = np.where(wanted < 0, wanted + shape[axis], wanted)
    if wanted.size and not 0 <= wanted.min() <= wanted.max() < shape[axis]:
        return Rejection(reason=f"an index is out of range on axis {axis} of {shape}")
    maps = _full(shape)
    maps[axis] = tuple(wanted.tolist())
    return tuple(maps)


def _flip_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    maps = _full(shape)
    axis = int(call.attrs.axis) % len(shape)
    extent = shape[axis]
    maps[axis] = IndexRun(count=extent, start=extent - 1, step=-1) if is_open(extent) else tuple(range(extent))[::-1]
    return tuple(maps)


def _tile_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    repeats = [int(repeat) for repeat in call.attrs.repeats]
    if len(repeats) > len(shape):
        return Rejection(reason=f"it repeats {shape} along {len(repeats)} axes; one per dimension is needed")
    repeats = [1] * (len(shape) - len(repeats)) + repeats
    if min(repeats) < 1:
        return Rejection(reason=f"it repeats {shape} {repeats} times, which leaves nothing")
    return _checked([padded_axis(extent, 0, extent * (n - 1), "wrap") for extent, n in zip(shape, repeats, strict=True)], call)


def _repeat_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    if call.attrs.axis is None:
        return Rejection(reason="it repeats the flattened tensor; repeat along an axis")
    maps = _full(shape)
    axis = int(call.attrs.axis) % len(shape)
    maps[axis] = _repeated(shape[axis], int(call.attrs.repeats))
    return _checked(maps, call)


def _repeated(extent: int, repeats: int) -> AxisMap:
    """Return each index of an axis so many times."""
    if is_open(extent):
        return IndexRun(count=extent * repeats, repeat=repeats)
    return tuple(index for index in range(extent) for _ in range(repeats))


_PAD_MODES: dict[str, Outside] = {"constant": "fill", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def _pad_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    mode = str(call.attrs.pad_mode)
    widths = [int(width) for width in call.attrs.pad_width]
    if mode not in _PAD_MODES or min(widths, default=0) < 0 or len(widths) != 2 * len(shape):
        return Rejection(reason=f"it pads in mode {mode} by {widths}")
    pairs = zip(widths[::2], widths[1::2], strict=True)
    return _checked([padded_axis(extent, *pair, _PAD_MODES[mode]) for extent, pair in zip(shape, pairs, strict=True)], call)


def _resize_maps(view: DataflowView, call: Any, shape: tuple[int, ...]) -> Maps | Rejection:
    attrs = call.attrs
    layout, method = str(attrs.layout), str(attrs.method)
    if method != "nearest_neighbor" or layout not in ("NCHW", "NHWC"):
        return Rejection(reason=f"it resizes by {method} in layout {layout}")
    out = static_shape(call)
    assert out is not None, "a resize states its size"
    maps = _full(shape)
    for axis in (layout.index("H"), layout.index("W")):
        how = str(attrs.coordinate_transformation_mode), str(attrs.rounding_method)
        try:
            found = _nearest(shape[axis], out[axis], *how)
        except ValueError as error:
            return Rejection(reason=str(error))
        if found is None:
            return Rejection(
                reason=f"it resizes an axis of open size {shape[axis]} to {out[axis]}: no factor that is exact in float32"
            )
        maps[axis] = found
    return tuple(maps)


def _nearest(extent: int, out_extent: int, mode: str, rounding: str) -> AxisMap | None:
    """Return the indices of nearest neighbours; None where they depend on an open size.

    By a power of two positions are exact in float32, so that each factor of results lies where the first ones do.
    """
    if not is_open(extent) and not is_open(out_extent):
        return nearest_indices(extent, out_extent, mode, rounding)
    for factor in (1, 2, 4, 8, 16, 32):
        if out_extent == extent * factor:
            is_exact = all(nearest_indices(n, n * factor, mode, rounding) == _repeated(n, factor) for n in (1, 2, 3, 8))
            return _repeated(extent, factor) if is_exact else None
    return None


def _checked(maps: list[AxisMap], call: Any) -> Maps | Rejection:
    """Return the maps if they give the shape that Relax inferred."""
    shape = tuple(extent_of(indices) for indices in maps)
    if shape != static_shape(call):
        return Rejection(reason=f"its result {static_shape(call)} is not the {shape} that its attributes say")
    return tuple(maps)


_MAPS: dict[str, Callable[[DataflowView, Any, tuple[int, ...]], Maps | Rejection]] = {
    "strided_slice": _slice_maps,
    "take": _take_maps,
    "flip": _flip_maps,
    "tile": _tile_maps,
    "repeat": _repeat_maps,
    "nn.pad": _pad_maps,
    "image.resize2d": _resize_maps,
}


GATHER_OPS = tuple(_MAPS)
"""Relax ops that read by an index for each axis."""
