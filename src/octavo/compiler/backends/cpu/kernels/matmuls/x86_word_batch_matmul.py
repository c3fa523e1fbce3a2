"""Product of two uint8 activations for AVX2: both are packed as words less their zero points, which vpmaddwd multiplies in pairs.

    sum((a - za) * (b - zb)), two neighbouring products at a time

A word holds any difference, so nothing is corrected afterwards, whether zero points are constants or those of rows and columns
quantized at run time. Sums of up to `numerics.BATCH_MATMUL_MAX_INNER` products fit int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.script.ir_builder import tirx as T

from ......ir.composites.outputs import FloatOutput
from ......runtime.size import dimension
from ..language.float_result import float_result
from ..language.partial import lane_by_lane
from ..language.vectors import Buffer, Expr, for_tiles, kept, load, shuffled, store, where_left
from ..language.x86.vector import dot_int16
from .batch_product import LANES, BatchProduct, PanelPlace, Tile
from .spec import BatchMatmulSpec, known_result

_PAIR = 2
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

    def pack(self, b: Buffer, at: Expr) -> Buffer:
        """Emit the packing of one matrix of b: less its zero points, two rows woven word by word."""
        packed = T.alloc_buffer((dimension(self.vectors * self.steps * (_PAIR * LANES)),), "int16")
        if self._spec.by_row:
            start = T.Bind(T.truncdiv(at, T.int32(0) + self.inner) * 2)
            self._columns = self.copied_parameters(self._of_columns, start, (self.columns, 1))

        def pack(place: PanelPlace, vector: Expr, valid: Expr) -> None:
            stride = place.vectors * (_PAIR * LANES)
            column = T.Bind(at + place.column + vector * LANES)
            target = T.Bind(place.first * (self.steps * (_PAIR * LANES)) + vector * (_PAIR * LANES))
            zeros = self._zeros(T.Bind(place.first + vector))
            if isinstance(valid, int) and valid == LANES:
                self._pack_pairs(b, packed, (column, target), stride, zeros)
            else:
                self._pack_words(b, packed, (column, target), stride, valid, zeros)

        self.for_vectors(pack)
        return packed

    def _zeros(self, vector: Expr) -> Buffer:
        """Emit the zero points of a vector of columns, int16."""
        zeros = T.alloc_buffer((LANES,), "int16", scope="local")
        value: Any = T.broadcast(T.int16(self._spec.b_zero_point), LANES)
        if self._spec.by_row:
            value = load(self._columns, vector * (2 * LANES) + LANES, LANES, "int32").astype(f"int16x{LANES}")
        store(zeros, 0, value, LANES)
        return zeros

    def _pack_pairs(self, b: Buffer, packed: Buffer, at: tuple[Expr, Expr], stride: int, zeros: Buffer) -> None:
        """Pack 16 columns, two rows woven word by word; a last row alone is woven with zeros."""
        (column, target), order = at, [row * LANES + lane for lane in range(LANES) for row in range(_PAIR)]

        def words(row: Expr) -> Expr:
            return T.Bind(load(b, column + row * self.columns, LANES, "int16") - load(zeros, 0, LANES))

        with T.serial(0, self.inner // _PAIR) as step:
            rows = [words(step * _PAIR + row) for row in range(_PAIR)]
            store(packed, target + step * stride, shuffled(rows, order), _PAIR * LANES)

        def last() -> None:
            rows = [words(T.int32(0) + (self.inner - 1)), T.Bind(T.broadcast(T.int16(0), LANES))]
            store(packed, target + (T.int32(0) + (self.steps - 1)) * stride, shuffled(rows, order), _PAIR * LANES)

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

    def _share(self, a: Buffer, at: Expr) -> tuple[Buffer, ...]:
        """Emit a copy of a in words; of rows quantized at run time their scales, too."""
        pitch = self.steps * _PAIR
        words = T.alloc_buffer((dimension(self.rows * pitch),), "int16")
        scales = T.alloc_buffer((dimension(self.rows),), "float32")
        parameters = T.Bind(T.truncdiv(at, T.int32(0) + self.inner) * 2)
        constant = kept(T.int32(self._spec.a_zero_point), "int32")
        vectors, rest = divmod(self.inner, LANES)
        with T.serial(0, self.rows) as row:
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
            pair = T.reinterpret("int32", load(words, start + (row * self.steps + step) * _PAIR, _PAIR))
            return T.reinterpret(f"int16x{_PAIR * LANES}", T.broadcast(pair, LANES))

        def column(vector: int, step: Expr) -> Expr:
            return load(packed, weights + (step * place.vectors + vector) * (_PAIR * LANES), _PAIR * LANES)

        acc = self.emit_sums("int32", rows, place.vectors, value, column, dot_int16)
        target = T.Bind(at[1] + first * self.y.strides[-2] + place.column)
        results: list[list[Expr]] = []
        for row in range(rows):
            sums = [load(acc, (row * place.vectors + j) * LANES, LANES) for j in range(place.vectors)]
            results.append([self._result(each, first + row, place.first + j, scales) for j, each in enumerate(sums)])
        self.store_tile(y, target, results, place, self._out_dtype)

    def _result(self, sums: Expr, row: Expr, vector: Expr, scales: Buffer) -> Expr:
        if not self._spec.by_row:
            return known_result(self._spec, sums, LANES)
        assert isinstance(self._spec.output, FloatOutput), "its scale is known at run time alone"
        of_columns = load(self._columns, vector * (2 * LANES), LANES)
        return float_result(self._spec.output, sums, of_columns, T.broadcast(T.float32(0), LANES), scales[row], LANES)
