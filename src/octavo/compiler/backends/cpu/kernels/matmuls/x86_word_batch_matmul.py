"""Product of two uint8 activations for AVX2: both are packed as words less their zero points, which vpmaddwd multiplies in pairs.

    sum((a - za) * (b - zb)), two neighbouring products at a time

A word holds any difference, so nothing is corrected afterwards, whether zero points are constants or those of rows and columns
quantized at run time. Sums of up to `numerics.BATCH_MATMUL_MAX_INNER` products fit int32.

The few rows of one token read all of b once: to pack it first would be most of the time. They read it where it lies, less no
zero points, which come off their sums:    sum((a - za) * b) - zb * sum(a - za)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......ir.composites.outputs import FloatOutput
from ......runtime.shapes import evaluated
from ......runtime.size import dimension, is_open, names_in
from ..language.float_result import float_result
from ..language.partial import lane_by_lane
from ..language.vectors import Buffer, Expr, for_tiles, kept, load, shuffled, splat, store, where_at_least, where_left
from ..language.x86.vector import dot_int16, horizontal_sum, multiply_pairs
from .batch_product import LANES, BatchProduct, PanelPlace, Tile
from .spec import BatchMatmulSpec, known_result

_PAIR = 2
_FEW = 4  # rows of one token, at most, that read b where it lies
_STEPS = 4  # that some columns are packed for at a time: so many pairs of registers


class WordProduct(BatchProduct):
    """Emits the product of plain matrices."""

    def __init__(self, spec: BatchMatmulSpec, *, out_dtype: str, tile: Tile) -> None:
        steps = -(-spec.inner // _PAIR)
        super().__init__(spec.a, spec.b, spec.y, threads=spec.threads, steps=steps, tile=tile)
        self._spec, self._out_dtype = spec, out_dtype

    def emit_with_parameters(self, a: Buffer, of_rows: Buffer, b: Buffer, of_columns: Buffer, y: Buffer) -> None:
        """Emit everything; parameters are float32 [rows of all, 2] and [matrices of b, 2, columns]: scales and zero points."""
        self._of_rows, self._of_columns = of_rows, of_columns
        self.emit(a, b, y)

    # ---- few rows, which read b where it lies

    def _emit_matrix(self, buffers: tuple[Buffer, Buffer, Buffer], at: tuple[Expr, Expr, Expr]) -> None:
        """Emit one product: in place where the rows are those of one token, and columns fill a vector or are one.

        Where rows count windows, say, as `samples // 20 - 1`, one token has none.
        """
        rows = evaluated((self.rows,), dict.fromkeys(names_in((self.rows,)), 1))[0]

        def packed() -> None:
            super(WordProduct, self)._emit_matrix(buffers, at)

        if not 1 <= rows <= _FEW or (not is_open(self.columns) and 1 < self.columns < LANES):
            packed()
            return
        if not is_open(self.rows) and not is_open(self.columns):
            self._emit_few(buffers, at, rows)
            return
        are_rows, columns = T.int32(0) + self.rows == rows, T.int32(0) + self.columns
        with T.If(T.And(are_rows, T.Or(columns >= LANES, columns == 1))):
            with T.Then():
                self._emit_few(buffers, at, rows)
            with T.Else():
                packed()

    def _emit_few(self, buffers: tuple[Buffer, Buffer, Buffer], at: tuple[Expr, Expr, Expr], rows: int) -> None:
        """Emit a product of so many rows: a vector of columns at a time, the last of which ends with them, or one alone."""
        a, b, y = buffers
        words, scales = self._share(a, at[0], rows)
        totals = [kept(self._dot(words, row * self.steps * _PAIR, None, T.int32(0)), "int32") for row in range(rows)]

        def put(column: Expr, lanes: int, sums: Sequence[Expr]) -> None:
            zeros: Any = splat(T.int32(self._spec.b_zero_point), lanes)
            of_columns = T.Bind(self._parameters_at(at[1]) + column) if self._spec.by_row else column
            if self._spec.by_row:
                zeros = T.Bind(load(self._of_columns, of_columns + self.columns, lanes, "int32"))
            for row, each in enumerate(sums):
                exact = T.Bind(each - zeros * splat(totals[row], lanes))
                scale = load(self._of_columns, of_columns, lanes) if self._spec.by_row else None
                store(y, at[2] + row * self.y.strides[-2] + column, self._result(exact, scale, scales, row, lanes), lanes)

        def vectors() -> None:
            with T.serial(0, -(-self.columns // LANES)) as number:
                column = T.Bind(T.min(number * LANES, self.columns - LANES))
                put(column, LANES, self._sums_in_place(b, T.Bind(at[1] + column), words, rows))

        def one() -> None:
            put(T.int32(0), 1, [self._dot(words, row * self.steps * _PAIR, b, at[1]) for row in range(rows)])

        where_at_least(self.columns, LANES, vectors, one)

    def _sums_in_place(self, b: Buffer, at: Expr, words: Buffer, rows: int) -> list[Expr]:
        """Emit the sums of some rows with a vector of columns, whose bytes are woven two rows at a time."""
        order = [row * LANES + lane for lane in range(LANES) for row in range(_PAIR)]

        def value(row: int, step: Expr) -> Expr:
            return _pair(words, (row * self.steps + step) * _PAIR)

        def column(vector: int, step: Expr) -> Expr:
            del vector
            upper = T.Bind(
                T.min(T.int32(0) + (step * _PAIR + 1), T.int32(0) + (self.inner - 1))
            )  # its factor is 0 behind the last
            read = [T.Bind(load(b, at + row * self.columns, LANES)) for row in (step * _PAIR, upper)]
            return shuffled(read, order).astype(f"int16x{_PAIR * LANES}")

        acc = self.emit_sums("int32", rows, 1, value, column, dot_int16)
        return [load(acc, row * LANES, LANES) for row in range(rows)]

    def _dot(self, words: Buffer, start: Expr, b: Buffer | None, at: Expr) -> Expr:
        """Emit the sum of a row of words, each times an element of b's one column from `at` on, should there be a b."""
        lanes = LANES // _PAIR
        total: Any = T.alloc_buffer((1,), "int32", scope="local")
        acc: Any = T.alloc_buffer((lanes,), "int32", scope="local")
        store(acc, 0, T.broadcast(T.int32(0), lanes), lanes)
        vectors, rest = divmod(self.inner, LANES)
        with T.serial(0, vectors) as vector:
            factor: Expr = T.broadcast(T.int16(1), LANES) if b is None else load(b, at + vector * LANES, LANES, "int16")
            products = multiply_pairs(load(words, start + vector * LANES, LANES), factor, lanes)
            store(acc, 0, load(acc, 0, lanes) + products, lanes)
        T.buffer_store(total, horizontal_sum(load(acc, 0, lanes), lanes), [0])
        with T.serial(0, rest) as index:
            place = T.Bind(vectors * LANES + index)
            word = words[start + place].astype("int32")
            T.buffer_store(total, total[0] + (word if b is None else word * b[at + place].astype("int32")), [0])
        return total[0]

    def pack(self, b: Buffer, at: Expr) -> Buffer:
        """Emit the packing of one matrix of b: less its zero points, two rows woven word by word."""
        packed = T.alloc_buffer((dimension(self.vectors * self.steps * (_PAIR * LANES)),), "int16")
        if self._spec.by_row:
            self._columns = self.copied_parameters(self._of_columns, self._parameters_at(at), (self.columns, 1))

        def pack(place: PanelPlace, vector: Expr, valid: Expr) -> None:
            stride = place.vectors * (_PAIR * LANES)
            column = T.Bind(at + place.column + vector * LANES)
            target = T.Bind(place.first * (self.steps * (_PAIR * LANES)) + vector * (_PAIR * LANES))
            zeros = self._zeros(T.Bind(place.first + vector))
            if isinstance(valid, int) and valid in (LANES // 2, LANES):
                self._pack_pairs(b, packed, (column, target), stride, valid, zeros)
            else:
                self._pack_words(b, packed, (column, target), stride, valid, zeros)

        self.for_vectors(pack)
        return packed

    def _parameters_at(self, at: Expr) -> Expr:
        """Return where the parameters of a matrix's columns, or rows, begin: each has two for `inner` elements."""
        return T.Bind(T.truncdiv(at, T.int32(0) + self.inner) * 2)

    def _zeros(self, vector: Expr) -> Buffer:
        """Emit the zero points of a vector of columns, int16."""
        zeros = T.alloc_buffer((LANES,), "int16", scope="local")
        value: Any = T.broadcast(T.int16(self._spec.b_zero_point), LANES)
        if self._spec.by_row:
            value = load(self._columns, vector * (2 * LANES) + LANES, LANES, "int32").astype(f"int16x{LANES}")
        store(zeros, 0, value, LANES)
        return zeros

    def _pack_pairs(self, b: Buffer, packed: Buffer, at: tuple[Expr, Expr], stride: int, lanes: int, zeros: Buffer) -> None:
        """Pack 16 columns, or 8 with zeros behind, two rows woven word by word; a last row alone is woven with zeros."""
        (column, target), order = at, [row * lanes + lane for lane in range(lanes) for row in range(_PAIR)]

        def words(row: Expr) -> Expr:
            return T.Bind(load(b, column + row * self.columns, lanes, "int16") - load(zeros, 0, lanes))

        def put(step: Expr, rows: Sequence[Expr]) -> None:
            place = T.Bind(target + step * stride)
            store(packed, place, shuffled(rows, order), _PAIR * lanes)
            if lanes < LANES:
                store(packed, place + _PAIR * lanes, T.broadcast(T.int16(0), _PAIR * (LANES - lanes)), _PAIR * (LANES - lanes))

        with T.serial(0, self.inner // _PAIR) as step:
            put(step, [words(step * _PAIR + row) for row in range(_PAIR)])

        def last() -> None:
            rows = [words(T.int32(0) + (self.inner - 1)), T.Bind(T.broadcast(T.int16(0), lanes))]
            put(T.int32(0) + (self.steps - 1), rows)

        where_left(self.inner % _PAIR, last)

    def _pack_words(self, b: Buffer, packed: Buffer, at: tuple[Expr, Expr], stride: int, valid: Expr, zeros: Buffer) -> None:
        """Pack some columns pair by pair; lanes that are no columns, and a row behind the last, are 0."""
        column, target = at

        def pair(step: Expr, lane: Expr) -> Expr:
            words: list[Expr] = []
            for row in (T.Bind(T.int32(0) + step * _PAIR), T.Bind(T.int32(0) + (step * _PAIR + 1))):
                place = T.min(row, T.int32(0) + (self.inner - 1))
                word = b[column + place * self.columns + lane].astype("int32") - zeros[lane].astype("int32")
                words.append(T.Select(row < self.inner, word, T.int32(0)))
            return T.bitwise_and(words[0], T.int32(0xFFFF)) | T.shift_left(words[1], T.int32(16))

        def some(first: Expr, count: int) -> None:
            read = lane_by_lane(
                valid, LANES, [T.int32(0)] * count, lambda lane: [pair(first + step, lane) for step in range(count)]
            )
            for step, each in enumerate(read):
                words = T.reinterpret(f"int16x{_PAIR * LANES}", each)
                store(packed, target + (first + step) * stride, words, _PAIR * LANES)

        for_tiles(self.steps, _STEPS, some)

    def _share(self, a: Buffer, at: Expr, rows: int | None = None) -> tuple[Buffer, ...]:
        """Emit a copy of a, or of its first rows, in words; of rows quantized at run time their scales, too."""
        pitch, count = self.steps * _PAIR, self.rows if rows is None else rows
        words = T.alloc_buffer((dimension(count * pitch),), "int16")
        scales = T.alloc_buffer((dimension(count),), "float32")
        parameters = self._parameters_at(at)
        constant = kept(T.int32(self._spec.a_zero_point), "int32")
        vectors, rest = divmod(self.inner, LANES)
        with T.serial(0, count) as row:
            source, target = T.Bind(at + row * self.inner), T.Bind(row * pitch)
            zero = T.Bind(constant.astype("int16"))
            if self._spec.by_row:
                zero = T.Bind(self._of_rows[parameters + row * 2 + 1].astype("int32").astype("int16"))
                T.buffer_store(scales, self._of_rows[parameters + row * 2], [row])
            with T.serial(0, vectors) as vector:
                place = vector * LANES
                store(words, target + place, load(a, source + place, LANES, "int16") - T.broadcast(zero, LANES), LANES)
            with T.serial(0, rest) as index:
                place = vectors * LANES + index
                T.buffer_store(words, a[source + place].astype("int16") - zero, [target + place])
            where_left(self.inner % _PAIR, lambda: T.buffer_store(words, T.int16(0), [target + self.inner]))
        return words, scales

    def _emit_tile(
        self,
        buffers: tuple[Buffer, Buffer, Buffer],
        at: tuple[Expr, Expr],
        first: Expr,
        rows: int,
        place: PanelPlace,
        shared: tuple[Sequence[Expr], Sequence[Expr]],
    ) -> None:
        _, packed, y = buffers
        words, scales = shared[0]
        start = T.Bind(first * (self.steps * _PAIR))
        weights = T.Bind(place.first * (self.steps * (_PAIR * LANES)))

        def value(row: int, step: Expr) -> Expr:
            return _pair(words, start + (row * self.steps + step) * _PAIR)

        def column(vector: int, step: Expr) -> Expr:
            return load(packed, weights + (step * place.vectors + vector) * (_PAIR * LANES), _PAIR * LANES)

        acc = self.emit_sums("int32", rows, place.vectors, value, column, dot_int16)
        target = T.Bind(at[1] + first * self.y.strides[-2] + place.column)
        results: list[list[Expr]] = []
        for row in range(rows):
            sums = [load(acc, (row * place.vectors + j) * LANES, LANES) for j in range(place.vectors)]
            results.append([self._of_panel(each, first + row, place.first + j, scales) for j, each in enumerate(sums)])
        self.store_tile(y, target, results, place, self._out_dtype)

    def _of_panel(self, sums: Expr, row: Expr, vector: Expr, scales: Buffer) -> Expr:
        scale = load(self._columns, vector * (2 * LANES), LANES) if self._spec.by_row else None
        return self._result(sums, scale, scales, row, LANES)

    def _result(self, sums: Expr, scale: Expr | None, scales: Buffer, row: Expr, lanes: int) -> Expr:
        """Return the results of a row's sums; `scale` is that of their columns, where they have their own."""
        if scale is None:
            return known_result(self._spec, sums, lanes)
        assert isinstance(self._spec.output, FloatOutput), "its scale is known at run time alone"
        return float_result(self._spec.output, sums, scale, splat(T.float32(0), lanes), scales[row], lanes)


def _pair(words: Buffer, start: Expr) -> Expr:
    """Return a pair of words from `start` on in each lane."""
    pair = T.reinterpret("int32", load(words, start, _PAIR))
    return T.reinterpret(f"int16x{_PAIR * LANES}", T.broadcast(pair, LANES))
