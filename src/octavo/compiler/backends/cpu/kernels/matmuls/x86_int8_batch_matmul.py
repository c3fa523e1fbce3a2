"""Product of two uint8 activations through VNNI: sums of a * (b - 128), and what the zero points take off in closed form.

    sum((a - za) * (b - zb)) = sum(a * c) - zc * sum(a) - za * sum(c) + inner * za * zc    with c = b - 128, zc = zb - 128

The sum of a's row is shared by all columns, that of c's column by all rows. Every term is exact in int32: see `MAX_INNER`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.shapes import surpasses
from ......runtime.size import dimension, is_open
from ..language.isa import AVX512_VNNI
from ..language.partial import has_masks, lane_by_lane, load_first
from ..language.vectors import Buffer, Expr, for_tiles, kept, load, shuffled, store, where_left
from ..language.x86.vector import dot, horizontal_sum, splat_bytes
from .batch_product import LANES, BatchProduct, Operand, PanelPlace, Tile, load_tile, transposed_tile

MAX_INNER = (2**31 - 1) // (4 * 255 * 128)
"""Longest sum whose four terms together stay within int32 in any order."""

_STEP = 4
_FLIP = 0x80  # b - 128 as a byte: its highest bit flipped
_FLIPS = -0x7F7F7F80  # the same of four bytes
_VECTOR = 64  # bytes of a copied row are a multiple of it
_NARROWEST = 4  # steps from which on columns are transposed in registers
_STEPS = 4, 8  # steps that some columns are packed for at a time: by whether there are 32 registers for them

Finish = Callable[[Expr, int], Expr]
"""From int32 sums and their number of lanes to results."""


class BytesProduct(BatchProduct):
    """Emits the sums of a * c and of each alone; a derived class says what zero points take off, and makes the results."""

    def __init__(self, a: MatrixView, b: MatrixView, y: MatrixView, *, out_dtype: str, threads: int, tile: Tile) -> None:
        super().__init__(a, b, y, threads=threads, steps=-(-a.shape[-1] // _STEP), tile=tile)
        assert not surpasses(self.inner, MAX_INNER), "the caller sees to it that no sum overflows"
        self._out_dtype = out_dtype
        self._in_place = a.strides[-1] == 1 and self.inner % _STEP == 0
        self._pitch = -(-self.inner // _VECTOR) * _VECTOR

    # ---- operands

    def pack(self, b: Buffer, at: Expr) -> Buffer:
        """Emit the packing of one matrix of b: less 128, four rows woven byte by byte."""
        packed = T.alloc_buffer((dimension(self.vectors * self.steps * 64),), "uint8")
        down, across = self.b.strides[-2:]

        def pack(place: PanelPlace, vector: Expr, valid: Expr) -> None:
            stride = place.vectors * 64
            column = T.Bind(at + (place.column + vector * LANES) * across)
            target = T.Bind(place.first * (self.steps * 64) + vector * 64)
            is_full = isinstance(valid, int) and valid == LANES
            if is_full and across == 1 and (is_open(self.inner) or self.inner % _STEP == 0):
                self._pack_interleaved(b, packed, column, target, stride)
            elif across == 1 and has_masks(self.isa, "uint8") and not isinstance(valid, int):
                with T.serial(0, self.steps) as step:
                    self._pack_some(b, packed, column, target, stride, (step, valid))
            elif is_full and down == 1 and not is_open(self.inner) and self.inner % _STEP == 0 and self.steps >= _NARROWEST:
                self._pack_transposed(b, packed, column, target, stride)
            elif down == 1 and not is_open(self.inner) and self.inner % _STEP == 0:
                self._pack_steps(b, packed, column, target, stride, valid)
            else:
                self._pack_bytes(b, packed, column, target, stride, valid)

        self.for_vectors(pack)
        return packed

    def _pack_interleaved(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int) -> None:
        """Pack 16 columns that are neighbours in memory: four rows woven byte by byte; of an open number the last by bytes."""
        down = self.b.strides[-2]
        order = [row * LANES + lane for lane in range(LANES) for row in range(_STEP)]
        with T.serial(0, self.inner // _STEP) as step:
            rows = [T.Bind(load(b, column + (step * _STEP + row) * down, LANES)) for row in range(_STEP)]
            store(packed, target + step * stride, shuffled(rows, order) ^ T.broadcast(T.uint8(_FLIP), 64), 64)
        if not is_open(self.inner % _STEP):
            return
        if has_masks(self.isa, "uint8"):
            last = T.int32(0) + (self.steps - 1)
            where_left(self.inner % _STEP, lambda: self._pack_some(b, packed, column, target, stride, (last, LANES)))
            return
        self._pack_bytes(b, packed, column, target, stride, LANES, self.inner // _STEP)

    def _pack_some(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int, place: tuple[Expr, Expr]) -> None:
        """Pack `valid` neighbours of a step's rows through masks; lanes that are no columns and rows behind the last are 0."""
        step, valid = place
        order = [row * LANES + lane for lane in range(LANES) for row in range(_STEP)]
        staged = T.alloc_buffer((_STEP * LANES,), "uint8", scope="local")
        for row in range(_STEP):
            number = T.Bind(step * _STEP + row)
            count = T.Select(number < self.inner, T.int32(0) + valid, T.int32(0))
            start = column + T.min(number, self.inner - 1) * self.b.strides[-2]
            load_first(staged, row * LANES, b, start, LANES, count, T.uint8(_FLIP), isa=self.isa)
        rows = [T.Bind(load(staged, row * LANES, LANES)) for row in range(_STEP)]
        store(packed, target + step * stride, shuffled(rows, order) ^ T.broadcast(T.uint8(_FLIP), 64), 64)

    def _pack_transposed(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int) -> None:
        """Pack 16 columns whose elements are neighbours, four bytes as one element; the last tile overlaps the one before."""
        width = min(1 << (self.steps.bit_length() - 1), LANES)
        size = width * _STEP
        with T.serial(0, -(-self.steps // width)) as tile:
            step = T.Bind(T.min(tile * width, self.steps - width))
            rows = [T.Bind(row) for row in load_tile(b, column + step * _STEP, self.b.strides[-1], size)]
            vectors = rows if width == LANES else [shuffled(rows[first::width], range(4 * LANES)) for first in range(width)]
            for i, row in enumerate(transposed_tile([T.reinterpret("int32x16", each) for each in vectors])):
                flipped = T.reinterpret("uint8x64", row) ^ T.broadcast(T.uint8(_FLIP), 64)
                store(packed, target + (step + i) * stride, flipped, 64)

    def _pack_steps(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int, valid: Expr) -> None:
        """Pack columns whose elements are neighbours, four bytes at a time; lanes that are no columns are 0."""
        across = self.b.strides[-1]

        def some(first: Expr, count: int) -> None:
            def read(lane: Expr) -> list[Expr]:
                start = T.Bind(column + lane * across + first * _STEP)
                return [T.reinterpret("int32", load(b, start + step * _STEP, _STEP)) for step in range(count)]

            for step, row in enumerate(lane_by_lane(valid, LANES, [T.int32(_FLIPS)] * count, read)):
                flipped = T.reinterpret("uint8x64", row ^ T.broadcast(T.int32(_FLIPS), LANES))
                store(packed, target + (first + step) * stride, flipped, 64)

        for_tiles(self.steps, _STEPS[self.isa == AVX512_VNNI], some)

    def _pack_bytes(
        self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int, valid: Expr, first: Expr = 0
    ) -> None:
        """Pack byte by byte from a step on; lanes that are no columns and steps behind the last row are 0."""
        down, across = self.b.strides[-2:]
        with T.serial(first, self.steps) as step:
            store(packed, target + step * stride, T.broadcast(T.uint8(0), 64), 64)
        with T.serial(first * _STEP, self.inner) as row:
            start = T.Bind(target + T.floordiv(row, _STEP) * stride + T.floormod(row, _STEP))
            with T.serial(0, valid) as lane:
                value = b[column + row * down + lane * across] ^ T.uint8(_FLIP)
                T.buffer_store(packed, value, [start + lane * _STEP])

    def _source(self, a: Buffer, at: Expr) -> tuple[Buffer, Expr, Expr, Expr]:
        """Emit a copy of a whose rows are whole vectors, if need be; return it, its start, its pitch and its width."""
        if self._in_place:
            return a, at, self.a.strides[-2], self.inner
        return self._copied(a, at), T.int32(0), self._pitch, self._pitch

    def sum_range(self, vectors: Expr) -> tuple[Expr, Expr]:
        """Return which of so many whole vectors of a row are summed: the first one, and the first behind them that isn't."""
        return 0, vectors

    def _for_row_sums(self, source: Buffer, start: Expr, extent: tuple[Expr, Expr], body: Callable[[Expr, Expr], None]) -> None:
        """Emit body(row, sum of the row's integers) for every row."""
        down, width = extent
        vectors, rest = divmod(width, _VECTOR)
        ones = T.broadcast(T.int8(1), 64)
        with T.serial(0, self.rows) as row:
            first = T.Bind(start + row * down)
            total = T.alloc_buffer((1,), "int32", scope="local")
            T.buffer_store(total, T.int32(0), [0])
            if is_open(vectors) or vectors:
                acc = T.alloc_buffer((LANES,), "int32", scope="local")
                store(acc, 0, T.broadcast(T.int32(0), LANES), LANES)
                with T.serial(*self.sum_range(vectors)) as index:
                    store(acc, 0, dot(load(acc, 0, LANES), load(source, first + index * 64, 64), ones), LANES)
                T.buffer_store(total, horizontal_sum(load(acc, 0, LANES), LANES), [0])
            done = vectors * _VECTOR
            for size in () if is_open(rest) else (32, 16):
                if rest & size:
                    lanes = size // _STEP
                    acc = dot(
                        T.broadcast(T.int32(0), lanes), load(source, first + done, size), T.broadcast(T.int8(1), size), lanes
                    )
                    T.buffer_store(total, total[0] + horizontal_sum(acc, lanes), [0])
                    done, rest = done + size, rest - size
            if is_open(rest) or rest:
                with T.serial(0, rest) as index:
                    T.buffer_store(total, total[0] + source[first + done + index].astype("int32"), [0])
            body(row, total[0])

    def _copied(self, a: Buffer, at: Expr) -> Buffer:
        down, across = self.a.strides[-2:]
        copy = T.alloc_buffer((dimension(self.rows * self._pitch),), "uint8")

        def by_masks(start: Expr, source: Expr) -> None:
            vectors, rest = divmod(self.inner, _VECTOR)
            with T.serial(0, vectors) as vector:
                store(copy, start + vector * _VECTOR, load(a, source + vector * _VECTOR, _VECTOR), _VECTOR)
            done, nothing = vectors * _VECTOR, T.uint8(0)
            where_left(rest, lambda: load_first(copy, start + done, a, source + done, _VECTOR, rest, nothing, isa=self.isa))

        def by_bytes(start: Expr, source: Expr) -> None:
            with T.serial(0, self._pitch // _VECTOR) as vector:
                store(copy, start + vector * _VECTOR, T.broadcast(T.uint8(0), _VECTOR), _VECTOR)
            with T.serial(0, self.inner) as index:
                T.buffer_store(copy, a[source + index * across], [start + index])

        copy_row = by_masks if across == 1 and is_open(self.inner) and has_masks(self.isa, "uint8") else by_bytes
        with T.serial(0, self.rows) as row:
            copy_row(T.Bind(row * self._pitch), T.Bind(at + row * down))
        return copy

    def _column_sums(self, packed: Buffer, place: PanelPlace) -> list[Expr]:
        """Emit the sums of a panel's columns; return them, a vector each."""
        acc = T.alloc_buffer((place.vectors * LANES,), "int32", scope="local")
        for vector in range(place.vectors):
            store(acc, vector * LANES, T.broadcast(T.int32(0), LANES), LANES)
        base = T.Bind(place.first * (self.steps * 64))
        ones = T.broadcast(T.uint8(1), 64)
        with T.serial(0, self.steps) as step:
            for vector in range(place.vectors):
                values = T.reinterpret("int8x64", load(packed, base + (step * place.vectors + vector) * 64, 64))
                store(acc, vector * LANES, dot(load(acc, vector * LANES, LANES), ones, values), LANES)
        return [load(acc, vector * LANES, LANES) for vector in range(place.vectors)]

    # ---- tiles

    def _emit_tile(
        self,
        buffers: tuple[Operand, Operand, Buffer],
        at: tuple[Expr, Expr],
        first: Expr,
        rows: int,
        place: PanelPlace,
        shared: tuple[Sequence[Expr], Sequence[Expr]],
    ) -> None:
        _, operand, y = buffers
        packed, source = operand[0] if isinstance(operand, tuple) else operand, shared[0][0]
        down = self.a.strides[-2] if self._in_place else self._pitch
        start = T.Bind((at[0] if self._in_place else T.int32(0)) + first * down)
        weights = T.Bind(place.first * (self.steps * 64))

        def value(row: int, step: Expr) -> Expr:
            return splat_bytes(source, start + row * down + step * _STEP)

        def column(vector: int, step: Expr) -> Expr:
            return T.reinterpret("int8x64", load(packed, weights + (step * place.vectors + vector) * 64, 64))

        acc = self.emit_sums("int32", rows, place.vectors, value, column, dot)
        results: list[list[Expr]] = []
        for row in range(rows):
            sums = [load(acc, (row * place.vectors + j) * LANES, LANES) for j in range(place.vectors)]
            results.append(self._finished(sums, first + row, shared))
        self._put(y, at[1], first, results, place)

    def _put(self, y: Buffer, at: Expr, first: Expr, results: list[list[Expr]], place: PanelPlace) -> None:
        """Emit what becomes of the results of some rows, of a panel's columns; the rows of y begin at `at`."""
        self.store_tile(y, T.Bind(at + first * self.y.strides[-2] + place.column), results, place, self._out_dtype)

    @abstractmethod
    def _finished(self, sums: list[Expr], row: Expr, shared: tuple[Sequence[Expr], Sequence[Expr]]) -> list[Expr]:
        """Return the results of one row's sums, a vector each; `shared` is what `_share` and `_prepare` return."""


class Int8Product(BytesProduct):
    """Emits the product for constant zero points; `finish` makes results of type `out_dtype` of the sums."""

    def __init__(
        self, a: MatrixView, b: MatrixView, y: MatrixView, *, zero_points: tuple[int, int], finish: Finish, **how: Any
    ) -> None:
        super().__init__(a, b, y, **how)
        self._a_zero, self._b_zero = zero_points[0], zero_points[1] - 128
        self._finish = finish

    def _share(self, a: Buffer, at: Expr) -> tuple[Buffer, ...]:
        """Emit what the products read of a, and what the sum of each row takes off."""
        source, start, down, width = self._source(a, at)
        terms = T.alloc_buffer((dimension(self.rows),), "int32")
        if self._b_zero == 0:
            with T.serial(0, self.rows) as row:
                T.buffer_store(terms, T.int32(0), [row])
            return source, terms
        factor = kept(T.int32(-self._b_zero), "int32")
        self._for_row_sums(source, start, (down, width), lambda row, total: T.buffer_store(terms, total * factor, [row]))
        return source, terms

    def _prepare(self, packed: Buffer, place: PanelPlace) -> tuple[Expr, ...]:
        """Emit the sums of the panel's columns; return what they, and both zero points, take off."""
        nothing = [T.broadcast(T.int32(0), LANES)] * place.vectors
        sums = self._column_sums(packed, place) if self._a_zero else nothing
        product = self.inner * self._a_zero * self._b_zero
        constant = T.broadcast(T.int32(0) + product if is_open(product) else T.int32(product), LANES)
        factor = T.broadcast(T.int32(-self._a_zero), LANES)
        return tuple(T.Bind(each * factor + constant) for each in sums)

    def _finished(self, sums: list[Expr], row: Expr, shared: tuple[Sequence[Expr], Sequence[Expr]]) -> list[Expr]:
        (_, row_terms), column_terms = shared
        term = T.Bind(T.broadcast(row_terms[row], LANES))
        return [self._finish(each + term + of_column, LANES) for each, of_column in zip(sums, column_terms, strict=True)]
