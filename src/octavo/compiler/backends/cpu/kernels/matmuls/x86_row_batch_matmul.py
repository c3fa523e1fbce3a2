"""Product of two uint8 activations through VNNI whose rows and columns were quantized at run time, each by itself.

    sum((a - za) * (b - zb)) = sum(a * c) + zc * (inner * za - sum(a)) - za * sum(c)    with c = b - 128, zc = zb - 128

za and the sum of a belong to a row, zc and the sum of c to a column. Every term is exact in int32: see `MAX_INNER`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......ir.composites.outputs import FloatOutput
from ......runtime.size import dimension
from ..language.float_result import float_result
from ..language.vectors import Buffer, Expr, load
from .batch_product import LANES, PanelPlace, Tile
from .x86_int8_batch_matmul import BytesProduct


class RowInt8Product(BytesProduct):
    """Emits the product of plain matrices, whose results are floats."""

    def __init__(self, a: MatrixView, b: MatrixView, y: MatrixView, *, output: FloatOutput, threads: int, tile: Tile) -> None:
        super().__init__(a, b, y, out_dtype="float32", threads=threads, tile=tile)
        self._output = output

    def emit_with_parameters(self, a: Buffer, of_rows: Buffer, b: Buffer, of_columns: Buffer, y: Buffer) -> None:
        """Emit everything; parameters are float32 [rows of all, 2] and [matrices of b, 2, columns]: scales and zero points."""
        self._of_rows, self._of_columns = of_rows, of_columns
        self.emit(a, b, y)

    def _pack(self, b: Buffer, at: Expr) -> Buffer:
        packed = super()._pack(b, at)
        self._columns = self.copied_parameters(self._of_columns, T.Bind(T.floordiv(at, T.int32(0) + self.inner) * 2))
        return packed

    def _share(self, a: Buffer, at: Expr) -> tuple[Buffer, ...]:
        """Emit what the products read of a, and of each row inner * za - sum(a), -za and the scale."""
        source, start, down, width = self._source(a, at)
        integers = T.alloc_buffer((dimension(self.rows * 2),), "int32")
        scales = T.alloc_buffer((dimension(self.rows),), "float32")
        parameters = T.Bind(T.floordiv(at, T.int32(0) + self.inner) * 2)

        def put(row: Expr, total: Expr) -> None:
            place = T.Bind(parameters + row * 2)
            zero_point = T.Bind(self._of_rows[place + 1].astype("int32"))
            T.buffer_store(integers, zero_point * (T.int32(0) + self.inner) - total, [row * 2])
            T.buffer_store(integers, T.int32(0) - zero_point, [row * 2 + 1])
            T.buffer_store(scales, self._of_rows[place], [row])

        self._for_row_sums(source, start, (down, width), put)
        return source, integers, scales

    def _prepare(self, packed: Buffer, place: PanelPlace) -> tuple[Expr, ...]:
        """Emit the sums of the panel's columns; return them, then their zero points less 128, then their scales."""
        sums = [T.Bind(each) for each in self._column_sums(packed, place)]
        starts = [T.Bind((place.first + vector) * (2 * LANES)) for vector in range(place.vectors)]
        zeros = [
            T.Bind(load(self._columns, start + LANES, LANES, "int32") - T.broadcast(T.int32(128), LANES)) for start in starts
        ]
        return (*sums, *zeros, *(T.Bind(load(self._columns, start, LANES)) for start in starts))

    def _finished(self, sums: list[Expr], row: Expr, shared: tuple[Sequence[Expr], Sequence[Expr]]) -> list[Expr]:
        (_, integers, scales), of_columns = shared
        term, zero = (T.Bind(T.broadcast(integers[row * 2 + kind], LANES)) for kind in range(2))
        scale, count = T.Bind(scales[row]), len(sums)
        none = T.broadcast(T.float32(0), LANES)
        results: list[Expr] = []
        for vector, acc in enumerate(sums):
            column_sum, column_zero, column_scale = (of_columns[kind * count + vector] for kind in range(3))
            exact = T.Bind(acc + column_zero * term + column_sum * zero)
            results.append(float_result(self._output, exact, column_scale, none, scale, LANES))
        return results
