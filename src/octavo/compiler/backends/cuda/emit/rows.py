"""Tensors as rows along an axis, or as [outer, extent, inner] about axes that lie together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..emission import TO_NHWC, Emission, Value
from ..kernels.move.gather import gather
from ..kernels.quantization.change import kept
from .move import gather_axes


def lying_order(x: Value) -> tuple[int, ...]:
    """Return the source's axes in their order in memory."""
    return TO_NHWC if x.is_nhwc else tuple(range(len(x.shape)))


def in_order(emission: Emission, x: Value, order: Sequence[int]) -> Value:
    """Return a plain tensor whose axes are those of x, as the source counts them, in this order."""
    shape = tuple(x.shape[axis] for axis in order)
    long = [axis for axis in order if x.shape[axis] != 1]
    if long == [axis for axis in lying_order(x) if x.shape[axis] != 1]:
        return Value(buffer=x.buffer, shape=shape, dtype=x.dtype)
    result = emission.new(shape, x.dtype)
    return emission.launch(gather(gather_axes(x, order), 0, kept(x.dtype), emission.isa), [x], result)


def rows_last(emission: Emission, x: Value, axis: int) -> tuple[Value, tuple[int, ...]]:
    """Return x with an axis of the source last in memory, as a plain tensor, and the order of its axes."""
    order = lying_order(x)
    if order[-1] != axis:
        order = (*(each for each in range(len(x.shape)) if each != axis), axis)
    return in_order(emission, x, order), order


def as_source(emission: Emission, value: Value, order: tuple[int, ...]) -> Value:
    """Return a plain tensor, whose axes are the source's in this order, as one of the source's shape."""
    if order == TO_NHWC:
        shape = tuple(value.shape[order.index(axis)] for axis in range(4))
        return Value(buffer=value.buffer, shape=shape, dtype=value.dtype, is_nhwc=True)
    return in_order(emission, value, [order.index(axis) for axis in range(len(order))])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Run:
    """x as [outer, extent, inner], what is reduced in the middle; `is_nhwc` says how a result of rank 4 then lies."""

    value: Value
    outer: int
    extent: int
    inner: int
    is_nhwc: bool


def run_of(emission: Emission, x: Value, axes: tuple[int, ...], rank: int) -> Run:
    """Return x so that axes of the source are neighbours: as it lies, or moved. The result has `rank` axes."""
    order = lying_order(x)
    is_nhwc = x.is_nhwc and rank == len(order)
    remaining = [axis for axis in order if axis not in axes and x.shape[axis] != 1]
    places = [place for place, axis in enumerate(order) if axis in axes and x.shape[axis] != 1]
    between = order[min(places) : max(places)] if places else ()
    are_neighbours = all(axis in axes or x.shape[axis] == 1 for axis in between)
    if not are_neighbours or not (is_nhwc or remaining == sorted(remaining)):
        kept_axes = tuple(axis for axis in range(len(x.shape)) if axis not in axes)
        value = in_order(emission, x, (*kept_axes, *axes))
        extent = math.prod(x.shape[axis] for axis in axes)
        return Run(value=value, outer=math.prod(x.shape) // extent, extent=extent, inner=1, is_nhwc=False)
    value = Value(buffer=x.buffer, shape=x.lying_shape, dtype=x.dtype)
    first, last = (min(places), max(places)) if places else (len(order), len(order) - 1)
    return Run(
        value=value,
        outer=math.prod(value.shape[:first]),
        extent=math.prod(value.shape[first : last + 1]),
        inner=math.prod(value.shape[last + 1 :]),
        is_nhwc=is_nhwc,
    )
