"""Loops over two tensors whose shapes broadcast, as few and as long as the shapes allow. Knows no op."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ......ir.composites.matrix_view import MatrixView
from .vectors import Expr, chunked, for_each_vector, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of the result, or several neighbours as one: its extent, and which operands move along it."""

    extent: int
    has_a: bool
    has_b: bool


def broadcast_shape(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the result; each pair of extents, aligned at the end, is equal or holds a 1 (ValueError otherwise).

    An open size is taken to be equal to no other, and broadcasts with 1 alone.
    """
    rank = max(len(a_shape), len(b_shape))
    pairs = zip(_padded(a_shape, rank), _padded(b_shape, rank), strict=True)
    shape: list[int] = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise ValueError(f"shapes {a_shape} and {b_shape} do not broadcast")
        shape.append(b if a == 1 else a)
    return tuple(shape)


def merged_axes(a_shape: tuple[int, ...], b_shape: tuple[int, ...]) -> list[Axis]:
    """Return the axes of the result from the outermost, with neighbours of one kind merged; at least one axis."""
    rank = max(len(a_shape), len(b_shape))
    axes: list[Axis] = []
    for a, b in zip(_padded(a_shape, rank), _padded(b_shape, rank), strict=True):
        extent = b if a == 1 else a
        if extent == 1:
            continue
        axis = Axis(extent=extent, has_a=a != 1, has_b=b != 1)
        if axes and (axes[-1].has_a, axes[-1].has_b) == (axis.has_a, axis.has_b):
            axis = Axis(extent=extent * axes.pop().extent, has_a=axis.has_a, has_b=axis.has_b)
        axes.append(axis)
    return axes or [Axis(extent=1, has_a=True, has_b=True)]


def for_each_pair(
    a_shape: tuple[int, ...],
    b_shape: tuple[int, ...],
    width: int,
    threads: int,
    body: Callable[[Expr, Expr, Expr, int, Axis], None],
) -> None:
    """Emit loops that call `body(a_at, b_at, y_at, lanes, inner)` for vectors along the innermost merged axis `inner`.

    Parameters
    ----------
    width
        Length of a full vector.
    threads
        Chunks that the outermost loop is cut into; too little work stays in one.
    body
        Emits the work on `lanes` neighbours of the result from `y_at` on; an operand that does not move along `inner` gives one
        value for all of them.
    """
    *outer, inner = merged_axes(a_shape, b_shape)
    size = inner.extent
    for axis in outer:
        size *= axis.extent
    a_at: Expr = 0
    b_at: Expr = 0
    y_at: Expr = 0
    with ExitStack() as loops:
        for position, axis in enumerate(outer):
            shared = worthwhile(threads, size, axis.extent) if position == 0 else 1
            index = loops.enter_context(chunked(axis.extent, shared))
            a_at = a_at * axis.extent + index if axis.has_a else a_at
            b_at = b_at * axis.extent + index if axis.has_b else b_at
            y_at = y_at * axis.extent + index
        a_base = a_at * inner.extent if inner.has_a else a_at
        b_base = b_at * inner.extent if inner.has_b else b_at

        def one(start: Expr, lanes: int) -> None:
            body(
                a_base + start if inner.has_a else a_base,
                b_base + start if inner.has_b else b_base,
                y_at * inner.extent + start,
                lanes,
                inner,
            )

        for_each_vector(inner.extent, width, threads if not outer else 1, one)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def for_each_element(shapes: Sequence[tuple[int, ...]], threads: int, body: Callable[[list[Expr], Expr], None]) -> None:
    """Emit loops over the shape that `shapes` broadcast to; call `body(places, at)` once, for single elements.

    `places` are where the operands' elements lie, `at` where the result's does. The innermost loop moves every operand by one
    element or none, so that compilers make vectors of it.
    """
    shape: tuple[int, ...] = ()
    for own in shapes:
        shape = broadcast_shape(shape, own)
    rank = len(shape)
    padded = [_padded(own, rank) for own in shapes]
    axes: list[tuple[int, tuple[bool, ...]]] = []
    for axis in range(rank):
        moves = tuple(own[axis] != 1 for own in padded)
        if shape[axis] == 1:
            continue
        if axes and axes[-1][1] == moves:
            axes[-1] = (axes[-1][0] * shape[axis], moves)
        else:
            axes.append((shape[axis], moves))
    places: list[Expr] = [0] * len(shapes)
    at: Expr = 0
    with ExitStack() as loops:
        for position, (extent, moves) in enumerate(axes or [(1, (True,) * len(shapes))]):
            shared = worthwhile(threads, math.prod(shape), extent) if position == 0 else 1
            index = loops.enter_context(chunked(extent, shared))
            places = [place * extent + index if moved else place for place, moved in zip(places, moves, strict=True)]
            at = at * extent + index
        body(places, at)


def matrix_start(view: MatrixView, index: Expr, batch: tuple[int, ...]) -> Expr:
    """Return where the matrix lies that meets matrix `index` of the result, whose batch axes are `batch` (broadcast)."""
    own, strides = view.shape[:-2], view.strides
    padding = len(batch) - len(own)
    at: Expr = B.int32(0)
    inner = 1
    for axis in reversed(range(len(batch))):
        if axis >= padding and own[axis - padding] != 1:
            at = at + B.floormod(B.floordiv(index, inner), batch[axis]) * strides[axis - padding]
        inner *= batch[axis]
    return at
