"""Product of two uint8 activations through VNNI whose rows and columns were quantized at run time, each by itself.

    sum((a - za) * (b - zb)) = sum(a * c) + zc * (inner * za - sum(a)) - za * sum(c)    with c = b - 128, zc = zb - 128

za and the sum of a belong to a row, zc and the sum of c to a column. Every term is exact in int32: see `MAX_INNER`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......ir.composites.outputs import FloatOutput
from ......runtime.size import dimension
from ..language.float_result import float_result
from ..language.vectors import Buffer, Expr, chunked, load, store
from .batch_product import LANES, Operand, PanelPlace, Tile
from .x86_int8_batch_matmul import BytesProduct


class RowInt8Product(BytesProduct):
    """Emits the product, whose results are floats.

    `parameters` say how those of a's rows lie, [..., rows, 2], and those of b's columns, [..., 2, columns]; by default plainly.
    """

    def __init__(
        self,
        a: MatrixView,
        b: MatrixView,
        y: MatrixView,
        *,
        parameters: tuple[MatrixView, MatrixView] | None = None,
        output: FloatOutput,
        threads: int,
        tile: Tile,
    ) -> None:
        super().__init__(a, b, y, out_dtype="float32", threads=threads, tile=tile)
        self._output = output
        plain = MatrixView.plain((*a.shape[:-1], 2)), MatrixView.plain((*b.shape[:-2], 2, b.shape[-1]))
        self.of_rows, self.of_columns = plain if parameters is None else parameters

    def emit_with_parameters(self, a: Buffer, of_rows: Buffer, b: Buffer, of_columns: Buffer, y: Buffer) -> None:
        """Emit everything; parameters are float32 [rows of all, 2] and [matrices of b, 2, columns]: scales and zero points."""
        with chunked(math.prod(self.batch), self.threads) as index:
            a_at, rows_at, b_at, columns_at, y_at = self.starts(index, self.a, self.of_rows, self.b, self.of_columns, self.y)
            packed = self.pack((b, of_columns, columns_at), b_at)
            self.emit_rows(((a, of_rows, rows_at), packed, y), (a_at, y_at))

    def pack(self, b: Operand, at: Expr) -> Operand:
        """Emit the packing of one matrix of b and of its columns' parameters, and their sums."""
        integers, of_columns, parameters_at = b
        packed = super().pack(integers, at)
        down, across = self.of_columns.strides[-2:]
        parameters = self.copied_parameters(of_columns, parameters_at, (down, across))
        sums = T.alloc_buffer((dimension(self.vectors * LANES),), "int32")

        def keep(place: PanelPlace) -> None:
            for vector, each in enumerate(self._column_sums(packed, place)):
                store(sums, (place.first + vector) * LANES, each, LANES)

        self.for_panels(keep)
        return packed, parameters, sums

    def _share(self, a: Operand, at: Expr) -> tuple[Buffer, ...]:
        """Emit what the products read of a, and of each row inner * za - sum(a), -za and the scale."""
        read, of_rows, parameters_at = a
        source, start, down, width = self._source(read, at)
        step, kind = self.of_rows.strides[-2:]
        integers = T.alloc_buffer((dimension(self.rows * 2),), "int32")
        scales = T.alloc_buffer((dimension(self.rows),), "float32")

        def put(row: Expr, total: Expr) -> None:
            place = T.Bind(parameters_at + row * step)
            zero_point = T.Bind(of_rows[place + kind].astype("int32"))
            T.buffer_store(integers, zero_point * (T.int32(0) + self.inner) - total, [row * 2])
            T.buffer_store(integers, T.int32(0) - zero_point, [row * 2 + 1])
            T.buffer_store(scales, of_rows[place], [row])

        self._for_row_sums(source, start, (down, width), put)
        return source, integers, scales

    def _prepare(self, packed: Operand, place: PanelPlace) -> tuple[Expr, ...]:
        """Emit the loads of the panel's columns: their sums, then their zero points less 128, then their scales."""
        _, parameters, of_columns = packed
        vectors = [T.Bind(place.first + vector) for vector in range(place.vectors)]
        sums = [T.Bind(load(of_columns, vector * LANES, LANES)) for vector in vectors]
        starts = [T.Bind(vector * (2 * LANES)) for vector in vectors]
        zeros = [T.Bind(load(parameters, start + LANES, LANES, "int32") - T.broadcast(T.int32(128), LANES)) for start in starts]
        return (*sums, *zeros, *(T.Bind(load(parameters, start, LANES)) for start in starts))

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
