"""Movement of elements by an index for each axis: slices, padding, repetition, nearest neighbours. Oracle: `numerics.gather`."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......ir.composites.movement import AxisMap, IndexRun, Maps, Outside, extent_of
from ......runtime.size import is_open
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    for_each_vector,
    for_open_tiles,
    load,
    prim_func,
    splat,
    split,
    store,
    tirx,
    worthwhile,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherSpec:
    """x of `shape` to y[i, j, ...] = x[maps[0][i], maps[1][j], ...]; an index of -1 gives `fill`.

    `fill` is one number, or one for each index of the last axis, which then is not padded.
    The indices of a map that are not -1 are neighbours in it: padding is before or after, never between.
    """

    shape: tuple[int, ...]
    maps: Maps
    fill: int | tuple[int, ...] = 0
    dtype: Literal["uint8", "int16", "int32", "float32"] = "uint8"
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """One axis: extents of x and y, and which of y's indices are read from x (`first` to `first + count`), from where.

    These are start + step * (place // repeat), or those of a table, or of the whole axis and what is around it (`outside`).
    """

    extent: int
    out_extent: int
    first: int
    count: int
    start: int = 0
    step: int = 1
    repeat: int = 1
    table: tuple[int, ...] | None = None
    outside: Outside = "fill"

    @property
    def are_neighbours(self) -> bool:
        return self.table is None and self.step == 1 and self.repeat == 1 and self.outside == "fill"

    @property
    def is_full(self) -> bool:
        return self.are_neighbours and self.extent == self.out_extent == self.count and self.start == 0


def gather(spec: GatherSpec, *, isa: str) -> Kernel:
    """Return the kernel of y[i, j, ...] = x[maps[0][i], maps[1][j], ...]."""
    axes = _merged([_axis(extent, indices) for extent, indices in zip(spec.shape, spec.maps, strict=True)])
    tables = [np.asarray(axis.table, np.int32) for axis in axes if axis.table is not None]
    fills = [] if isinstance(spec.fill, int) else [np.asarray(spec.fill, spec.dtype)]
    assert isinstance(spec.fill, int) or len(spec.fill) == extent_of(spec.maps[-1]), "a number for each index of the last axis"
    out_size = math.prod(axis.out_extent for axis in axes)
    width = lanes_of(isa)
    read = math.prod(axis.count for axis in axes)
    has_padding = any(axis.count != axis.out_extent for axis in axes)

    def emit(x: Buffer, *rest: Buffer) -> None:
        *indices, y = rest
        if has_padding and isinstance(spec.fill, int):
            fill = tirx.const(spec.fill, spec.dtype)
            for_each_vector(out_size, width, spec.threads, lambda start, lanes: store(y, start, splat(fill, lanes), lanes))
        elif has_padding:
            _fill_rows(indices.pop(), y, out_size, fills[0].size, width, spec.threads)
        if is_open(read) or read:
            _copy(x, list(indices), y, axes, width, spec.threads)

    arguments = [("x", math.prod(spec.shape), spec.dtype)]
    arguments += [(f"indices{i}", table.size, "int32") for i, table in enumerate(tables)]
    arguments += [("fill", array.size, spec.dtype) for array in fills]
    func = prim_func([*arguments, ("y", out_size, spec.dtype)], emit)
    return Kernel(name="gather", isa=isa, func=func, constants=(*tables, *fills))


def _fill_rows(fill: Buffer, y: Buffer, size: int, length: int, width: int, threads: int) -> None:
    """Emit a copy of `fill` to every row of y."""
    rows = size // length
    with chunked(rows, worthwhile(threads, size, rows)) as row:
        for_each_vector(length, width, 1, lambda at, lanes: store(y, row * length + at, load(fill, at, lanes), lanes))


def _copy(x: Buffer, tables: list[Buffer], y: Buffer, axes: list[_Axis], width: int, threads: int) -> None:
    """Emit a loop for each axis; along the last, runs of neighbours are vectors."""
    *outer, last = axes
    size = math.prod(axis.count for axis in axes)
    source: Expr = 0
    target: Expr = 0
    with ExitStack() as loops:
        for position, axis in enumerate(outer):
            shared = worthwhile(threads, size, axis.count) if position == 0 else 1
            index = loops.enter_context(chunked(axis.count, shared))
            source = source * axis.extent + _at(axis, index, tables)
            target = target * axis.out_extent + axis.first + index
        source, target = source * last.extent, target * last.out_extent + last.first
        inner_threads = 1 if outer else threads
        if last.are_neighbours:
            start = source + last.start
            _copy_row(last.count, width, inner_threads, x, start, y, target)
            return
        if last.outside != "fill":
            _copy_around(x, y, source, target, last, width)
            return
        with chunked(last.count, worthwhile(inner_threads, size, last.count)) as index:
            B.buffer_store(y, x[source + _at(last, index, tables)], [target + index])


def _copy_row(count: int, width: int, threads: int, x: Buffer, source: Expr, y: Buffer, target: Expr) -> None:
    """Emit a copy of neighbours. Of an open number the last vector ends with the last one, and may copy some again."""

    def copy(at: Expr, lanes: int) -> None:
        store(y, target + at, load(x, source + at, lanes), lanes)

    if is_open(count) and threads == 1:
        source, target = B.Bind(B.int32(0) + source), B.Bind(B.int32(0) + target)
        for_open_tiles(count, width, copy)
    else:
        for_each_vector(count, width, threads, copy)


def _copy_around(x: Buffer, y: Buffer, source: Expr, target: Expr, axis: _Axis, width: int) -> None:
    """Emit a copy of an axis as it lies in memory, and of what is around it, which is read one by one; tiles are copies."""

    def copied(start: Expr) -> None:
        _copy_row(axis.extent, width, 1, x, source, y, start)

    if axis.outside == "wrap" and axis.start == 0 and axis.out_extent % axis.extent == 0:
        with B.serial(0, axis.out_extent // axis.extent) as tile:
            copied(B.Bind(target + tile * axis.extent))
        return
    copied(target - axis.start)
    for first, last in ((0, -axis.start), (axis.extent - axis.start, axis.out_extent)):
        with B.serial(0, last - first) as index:
            place = B.Bind(index + first)
            B.buffer_store(y, x[source + _around(axis, place + axis.start)], [target + place])


def _at(axis: _Axis, index: Expr, tables: list[Buffer]) -> Expr:
    """Return x's index for the `index`-th that is read; an axis without a constant step takes the next of `tables`."""
    if axis.table is not None:
        return tables.pop(0)[index]
    if axis.outside != "fill":
        return _around(axis, index + axis.start)
    return axis.start + (index if axis.repeat == 1 else split(index, axis.repeat)[0]) * axis.step


def _around(axis: _Axis, place: Expr) -> Expr:
    """Return which element of an axis stands at a place that may lie before or behind it: as NumPy pads, however far."""
    if axis.outside == "edge":
        return tirx.min(tirx.max(place, 0), axis.extent - 1)
    is_before = axis.start != 0
    if axis.outside == "wrap":
        return _remainder(place, axis.extent, is_before=is_before)
    period = B.Bind(tirx.max((axis.extent - 1) * 2, 1))  # there and back; an axis of one element stands still
    there = _remainder(place, period, is_before=is_before)
    return tirx.min(there, period - there)


def _remainder(place: Expr, count: Expr, *, is_before: bool) -> Expr:
    """Return place % count, rounded down where places may be negative."""
    rest = split(place, count)[1]
    return B.Bind(rest + B.Select(rest < 0, count, 0)) if is_before else rest


def _axis(extent: int, indices: AxisMap) -> _Axis:
    if isinstance(indices, IndexRun) and indices.outside != "fill":
        # All that is around the axis is read from it.
        return _Axis(
            extent=extent,
            out_extent=indices.extent,
            first=0,
            count=indices.extent,
            start=-indices.before,
            outside=indices.outside,
        )
    if isinstance(indices, IndexRun):
        facts: dict[str, Any] = {name: getattr(indices, name) for name in ("count", "start", "step", "repeat")}
        return _Axis(extent=extent, out_extent=indices.extent, first=indices.before, **facts)
    interior = [position for position, index in enumerate(indices) if index >= 0]
    first, count = (interior[0], len(interior)) if interior else (0, 0)
    assert interior == list(range(first, first + count)), "padding stands before or after what is read"
    read = indices[first : first + count]
    step = read[1] - read[0] if count > 1 else 1
    start = read[0] if read else 0
    table = None if read == tuple(range(start, start + step * count, step or 1)) else read
    return _Axis(extent=extent, out_extent=len(indices), first=first, count=count, start=start, step=step, table=table)


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Join an axis of neighbours with the whole axis behind it: together they are neighbours in memory, too."""
    result = [axes[-1]]
    for axis in reversed(axes[:-1]):
        behind = result[0]
        if not (behind.is_full and axis.are_neighbours and axis.count != 0):
            result.insert(0, axis)
            continue
        inner = behind.extent
        result[0] = _Axis(
            extent=axis.extent * inner,
            out_extent=axis.out_extent * inner,
            first=axis.first * inner,
            count=axis.count * inner,
            start=axis.start * inner,
        )
    return result
