"""Padding of open sizes: planes are filled with one number, and rows are copied over that within bounds of each axis.

    for each plane of the result:    result[plane] = fill
      if it is within its bounds:
        for row within its bounds:   result[plane, row, first:last] = source[plane, row, ...]    (in vectors)

Every size is an argument, so one kernel does for all paddings of as many axes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from ......runtime.size import Size
from ..language.vectors import Buffer, Expr, bound, load, prim_func, splat, store, tirx

_LANES = 8


class PaddedAxis(NamedTuple):
    """One axis: of its `extent`, [first; last) is copied from what is `offset` further in a source of the size `source`."""

    extent: Any
    first: Any
    last: Any
    offset: Any
    source: Any


def padded_rows(rank: int, dtype: str, fill: float) -> Any:
    """Return the PrimFunc; its sizes are named after the fields of PaddedAxis and the axes: "extent.0"."""
    axes = [PaddedAxis(*(Size.named(f"{name}.{axis}") for name in PaddedAxis._fields)) for axis in range(rank)]

    def body(source: Buffer, result: Buffer) -> None:
        *planes, row, column = (PaddedAxis(*map(bound, axis)) for axis in axes)
        value = tirx.const(fill, dtype)
        area = T.Bind(row.extent * column.extent)
        count = T.Bind(T.max(column.last - column.first, T.int32(0)))

        def plane(to: Expr, taken: Expr, conditions: list[Expr], outer: list[PaddedAxis]) -> None:
            if outer:
                axis, *inner = outer
                with T.serial(0, axis.extent) as turn:
                    bounds = [turn >= axis.first, turn < axis.last]
                    within = T.Bind(to * axis.extent + turn), T.Bind(taken * axis.source + turn + axis.offset)
                    plane(*within, [*conditions, *bounds], inner)
                return
            start = T.Bind(to * area)
            _by_vectors(area, lambda at, lanes: store(result, start + at, splat(value, lanes), lanes), _LANES)
            if conditions:
                with T.If(reduce(T.And, conditions)), T.Then():
                    rows(start, taken)
            else:
                rows(start, taken)

        def rows(start: Expr, taken: Expr) -> None:
            with T.serial(0, T.max(row.last - row.first, T.int32(0))) as turn:
                line = T.Bind(row.first + turn)
                to = T.Bind(start + line * column.extent + column.first)
                come = T.Bind((taken * row.source + line + row.offset) * column.source + column.first + column.offset)
                _by_vectors(
                    count, lambda at, lanes: store(result, to + at, load(source, come + at, lanes), lanes), _LANES, _LANES // 2
                )

        plane(T.int32(0), T.int32(0), [], planes)

    return prim_func([("source", Size.named("elements.0"), dtype), ("result", Size.named("elements.1"), dtype)], body)


def _by_vectors(count: Expr, body: Callable[[Expr, int], None], *sizes: int) -> None:
    """Emit `body(first, lanes)` over all elements by the first of these sizes of which there are as many, or one by one.

    The last vector ends with the last element: it may store some again.
    """
    if not sizes:
        with T.serial(0, count) as at:
            body(at, 1)
        return
    lanes, *smaller = sizes
    with T.If(count >= lanes):
        with T.Then(), T.serial(0, T.truncdiv(count + (lanes - 1), T.int32(lanes))) as index:
            body(T.Bind(T.min(index * lanes, count - lanes)), lanes)
        with T.Else():
            _by_vectors(count, body, *smaller)
