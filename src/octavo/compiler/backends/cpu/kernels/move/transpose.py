"""Transposition of tensors of 8, 16 and 32 bits by any permutation of their axes. Oracle: `numpy.transpose`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......ir.graph.kernel_attributes import SCALAR_LOOPS_ATTR
from ......runtime.shapes import typical
from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, load, prim_func, shuffled, split, store, where_at_least, worthwhile

_TILE = 16
"""Rows and columns of a tile: what a vector register of nearly every CPU holds in bytes."""

_PIECE_BYTES = 16
"""Of a register: instructions that weave two do so within each such piece."""

_FEW = 15
"""Rows or columns up to which whole vectors are woven from one vector of each."""

_MATRICES = ((1, 0), (0, 2, 1))
"""Permutations that transpose one matrix or several."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransposeSpec:
    """x of `shape` to y with y.shape[i] = shape[axes[i]]."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    dtype: Literal["uint8", "int8", "int16", "uint16", "int32", "float32"] = "uint8"
    threads: int = 1


def transpose(spec: TransposeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = transpose(x, axes); one text serves every ISA."""
    size = math.prod(spec.shape)
    shape, axes = simplified(spec.shape, spec.axes)
    writer = _Writer(spec, size)

    def emit(x: Buffer, y: Buffer) -> None:
        if axes == tuple(range(len(axes))):
            writer.runs(x, y, (size,), (0,))
        elif axes[-1] == len(axes) - 1:
            writer.runs(x, y, shape, axes)
        elif axes in _MATRICES:
            writer.matrices(x, y, *((1, *shape) if len(shape) == 2 else shape))
        else:
            writer.elements(x, y, shape, axes)

    func: Any = prim_func([("x", size, spec.dtype), ("y", size, spec.dtype)], emit)
    if axes in _MATRICES and any(map(is_open, shape[-2:])):  # what is smaller than a tile goes element by element
        func = func.with_attr(SCALAR_LOOPS_ATTR, 1)
    return Kernel(name="transpose", isa=isa, func=func)


def simplified(shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shape and permutation without axes of extent 1, and with axes that stay neighbours merged into one."""
    kept = [axis for axis in axes if shape[axis] != 1]
    groups: list[list[int]] = []
    for axis in kept:
        present = [other for other in range(len(shape)) if shape[other] != 1]
        if groups and present.index(groups[-1][-1]) + 1 == present.index(axis):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    order = sorted(range(len(groups)), key=lambda index: groups[index][0])
    extents = tuple(math.prod(shape[axis] for axis in groups[index]) for index in order)
    return (extents or (1,)), (tuple(order.index(index) for index in range(len(groups))) or (0,))


class _Writer:
    """Emits the loops."""

    def __init__(self, spec: TransposeSpec, size: int) -> None:
        self._threads = spec.threads
        self._dtype = spec.dtype
        self._size = size

    def _shared(self, pieces: int) -> int:
        return worthwhile(self._threads, self._size, pieces)

    def runs(self, x: Buffer, y: Buffer, shape: Sequence[int], axes: Sequence[int]) -> None:
        """Copy runs of the last axis, which stays the last."""
        self._nest(x, y, shape, axes, run=shape[-1])

    def elements(self, x: Buffer, y: Buffer, shape: Sequence[int], axes: Sequence[int]) -> None:
        """Copy element by element, in the order of the result."""
        self._nest(x, y, shape, axes, run=1)

    def _nest(self, x: Buffer, y: Buffer, shape: Sequence[int], axes: Sequence[int], *, run: int) -> None:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        moved = axes if run == 1 else axes[:-1]
        source: Expr = 0
        target: Expr = 0
        with ExitStack() as loops:
            for position, axis in enumerate(moved):
                index = loops.enter_context(chunked(shape[axis], self._shared(shape[axis]) if position == 0 else 1))
                source = source + index * strides[axis]
                target = target * shape[axis] + index
            if run == 1:
                B.buffer_store(y, x[source], [target])
                return
            with chunked(run, 1 if moved else self._shared(run)) as index:
                B.buffer_store(y, x[source + index], [target * run + index])

    def matrices(self, x: Buffer, y: Buffer, batch: int, rows: int, columns: int) -> None:
        """Transpose `batch` matrices [rows, columns]."""
        known = [extent for extent in (rows, columns) if not is_open(extent)]
        if all(extent >= _TILE for extent in known):
            self._tiles(x, y, batch, rows, columns)
        elif len(known) < 2 or max(known) >= _TILE:
            self._woven(x, y, batch, rows, columns)
        else:
            self.elements(x, y, (batch, rows, columns), (0, 2, 1))

    def _tiles(self, x: Buffer, y: Buffer, batch: int, rows: int, columns: int) -> None:
        """Transpose tiles of 16 x 16; the last of a row or column overlaps the one before. Fewer rows go by elements."""
        down, across = -(-rows // _TILE), -(-columns // _TILE)
        with chunked(batch * across, self._shared(batch * across)) as strip:
            if is_open(rows) and not is_open(across):
                across = B.Bind(B.int32(across))  # a number that matrices of other widths can share the code with, too
            matrix, place = split(strip, across)
            base = matrix * (rows * columns)

            def tiles() -> None:
                with B.serial(0, down) as tile:
                    column = B.min(place * _TILE, columns - _TILE)
                    row = B.min(tile * _TILE, rows - _TILE)
                    first = B.Bind(base + row * columns + column)
                    target = B.Bind(base + column * rows + row)
                    _transposed_tile(x, y, first, columns, target, rows, self._dtype)

            def elements() -> None:
                first = place * _TILE
                with B.serial(0, B.min(columns - first, B.int32(_TILE))) as column:
                    _copy_column(x, y, base, rows, columns, B.Bind(first + column))

            def few_rows() -> None:
                column = B.Bind(B.min(place * _TILE, columns - _TILE))
                with B.serial(0, rows) as row:  # 16 columns are written out: of a loop over them most would be its own turns
                    first, target = B.Bind(base + row * columns + column), B.Bind(base + column * rows + row)
                    for i in range(_TILE):
                        B.buffer_store(y, x[first + i], [target + i * rows])

            where_at_least(columns, _TILE, lambda: where_at_least(rows, _TILE, tiles, few_rows), elements)

    def _woven(self, x: Buffer, y: Buffer, batch: int, rows: int, columns: int) -> None:
        """Transpose where rows (or columns) are few: 16 columns of every row make as many whole vectors of the result."""
        interleave = is_open(columns) or (not is_open(rows) and rows < columns)
        few, many = (rows, columns) if interleave else (columns, rows)
        blocks = -(-many // _TILE)
        with chunked(batch * blocks, self._shared(batch * blocks)) as piece:
            matrix, place = split(piece, blocks)
            base = matrix * (rows * columns)

            def vectors() -> None:
                at = B.min(place * _TILE, many - _TILE)
                strided = [base + i * many + at for i in range(few)]
                contiguous = [base + at * few + i * _TILE for i in range(few)]
                loaded = [B.Bind(load(x, start, _TILE)) for start in (strided if interleave else contiguous)]
                for i, start in enumerate(contiguous if interleave else strided):
                    places = range(i * _TILE, (i + 1) * _TILE) if interleave else range(i, few * _TILE, few)
                    picks = [place % few * _TILE + place // few for place in places] if interleave else list(places)
                    store(y, start, shuffled(loaded, picks), _TILE)

            def elements() -> None:
                with B.serial(0, columns) as column:
                    _copy_column(x, y, base, rows, columns, column)

            where_at_least(many, _TILE, vectors, elements)


def _copy_column(x: Buffer, y: Buffer, base: Expr, rows: Expr, columns: Expr, column: Expr) -> None:
    """Copy a column of a matrix to a row of the result, element by element."""
    with B.serial(0, rows) as row:
        B.buffer_store(y, x[base + row * columns + column], [base + column * rows + row])


def _transposed_tile(x: Buffer, y: Buffer, source: Expr, columns: Expr, target: Expr, rows: Expr, dtype: str) -> None:
    """Emit the transposition of a 16 x 16 tile, whose rows are `columns` apart in x and `rows` in y.

    It is cut into blocks of 16 bytes' width, the pieces that registers are made of. A vector has as many rows as make
    two pieces (of bytes one): woven within each, four rounds of bytes, three of words or two of floats leave a column in each
    vector. What crosses from one half of a register to the other takes an instruction more. Rows of the longer matrix lie so far
    apart that lines of them may share a place in the nearest cache: each line is done with first.
    """
    width = _PIECE_BYTES // np.dtype(dtype).itemsize
    pieces = min(2, _TILE // width)
    blocks = list(itertools.product(range(0, _TILE, width * pieces), range(0, _TILE, width)))
    if typical(rows) > typical(columns):
        blocks.sort(key=lambda block: block[1])
    for row, column in blocks:
        starts = [source + (row + i) * columns + column for i in range(width * pieces)]
        loaded = [load(x, start, width) for start in starts]
        vectors = loaded if pieces == 1 else [shuffled(loaded[i::width], range(width * pieces)) for i in range(width)]
        for i, vector in enumerate(_columns(vectors, pieces)):
            store(y, target + (column + i) * rows + row, vector, width * pieces)


def _columns(rows: list[Expr], pieces: int) -> list[Expr]:
    """Return the columns of square tiles, `pieces` side by side: each round weaves row i with the one half of a tile below."""
    count = len(rows)
    half = count // 2

    def weave(a: Expr, b: Expr, first: int) -> Expr:
        places = [piece * count + i for piece in range(pieces) for i in range(first, first + half)]
        return B.Bind(shuffled([a, b], [place for i in places for place in (i, pieces * count + i)]))

    vectors = [B.Bind(row) for row in rows]
    for _ in range(count.bit_length() - 1):
        vectors = [weave(vectors[i], vectors[i + half], first) for i in range(half) for first in (0, half)]
    return vectors
