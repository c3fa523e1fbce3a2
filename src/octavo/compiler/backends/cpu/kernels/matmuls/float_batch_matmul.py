"""Product of two float32 activations, batch by batch, through strides; plain vectors, one text for every ISA.

Each output is one sum in the order of the inner axis, so it depends neither on tiles nor on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.size import dimension
from ..language.kernel import Kernel
from ..language.partial import load_first
from ..language.vectors import Buffer, Expr, load, prim_func, store, where_at_least
from .batch_product import LANES, BatchProduct, PanelPlace, Tile, load_tile, tile_for, transposed_tile


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatBatchMatmulSpec:
    """a (..., rows, inner) @ b (..., inner, columns) * factor, the batch axes broadcast; see `MatrixView` for the operands."""

    a: MatrixView
    b: MatrixView
    y: MatrixView
    factor: float = 1.0
    threads: int = 1


def float_batch_matmul(spec: FloatBatchMatmulSpec, *, isa: str) -> Kernel:
    """Return the kernel."""
    product = FloatProduct(spec.a, spec.b, spec.y, factor=spec.factor, threads=spec.threads, tile=tile_for(isa))
    arguments = [(name, view.size, "float32") for name, view in (("a", spec.a), ("b", spec.b), ("y", spec.y))]
    return Kernel(name="float.batch_matmul", isa=isa, func=prim_func(arguments, product.emit))


class FloatProduct(BatchProduct):
    """Emits the product times a factor."""

    def __init__(self, a: MatrixView, b: MatrixView, y: MatrixView, *, factor: float, threads: int, tile: Tile) -> None:
        super().__init__(a, b, y, threads=threads, steps=a.shape[-1], tile=tile)
        self._factor = factor

    def pack(self, b: Buffer, at: Expr) -> Buffer:
        """Emit the packing of one matrix of b."""
        packed = T.alloc_buffer((dimension(self.vectors * self.steps * LANES),), "float32")
        down, across = self.b.strides[-2:]

        def pack(place: PanelPlace, vector: Expr, valid: Expr) -> None:
            stride = place.vectors * LANES
            column = T.Bind(at + (place.column + vector * LANES) * across)
            target = T.Bind(place.first * (self.steps * LANES) + vector * LANES)
            is_full = isinstance(valid, int) and valid == LANES
            if is_full and across == 1:
                with T.serial(0, self.steps) as step:
                    store(packed, target + step * stride, load(b, column + step * down, LANES), LANES)
            elif across == 1 and not isinstance(valid, int):
                with T.serial(0, self.steps) as step:
                    nothing = T.float32(0)
                    load_first(packed, target + step * stride, b, column + step * down, LANES, valid, nothing, isa=self.isa)
            elif down == 1 and is_full:
                where_at_least(
                    self.steps,
                    LANES,
                    lambda: self._pack_transposed(b, packed, column, target, stride),
                    lambda: self._pack_elements(b, packed, column, target, stride, LANES),
                )
            else:
                self._pack_elements(b, packed, column, target, stride, valid)

        self.for_vectors(pack)
        return packed

    def _pack_elements(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int, valid: Expr) -> None:
        """Pack one by one; lanes that are no columns are 0."""
        down, across = self.b.strides[-2:]
        with T.serial(0, self.steps) as step:
            row = T.Bind(target + step * stride)
            store(packed, row, T.broadcast(T.float32(0), LANES), LANES)
            with T.serial(0, valid) as lane:
                T.buffer_store(packed, b[column + step * down + lane * across], [row + lane])

    def _pack_transposed(self, b: Buffer, packed: Buffer, column: Expr, target: Expr, stride: int) -> None:
        """Pack 16 columns whose elements are neighbours in memory; the last tile overlaps the one before."""
        with T.serial(0, -(-self.steps // LANES)) as tile:
            step = T.Bind(T.min(tile * LANES, self.steps - LANES))
            for i, row in enumerate(transposed_tile(load_tile(b, column + step, self.b.strides[-1], LANES))):
                store(packed, target + (step + i) * stride, row, LANES)

    def _emit_tile(
        self,
        buffers: tuple[Buffer, Buffer, Buffer],
        at: tuple[Expr, Expr],
        first: Expr,
        rows: int,
        place: PanelPlace,
        shared: tuple[Sequence[Expr], Sequence[Expr]],
    ) -> None:
        del shared
        a, packed, y = buffers
        down, across = self.a.strides[-2:]
        start = T.Bind(at[0] + first * down)
        weights = T.Bind(place.first * (self.steps * LANES))

        def value(row: int, step: Expr) -> Expr:
            return T.broadcast(a[start + row * down + step * across], LANES)

        def column(vector: int, step: Expr) -> Expr:
            return load(packed, weights + (step * place.vectors + vector) * LANES, LANES)

        acc = self.emit_sums("float32", rows, place.vectors, value, column, lambda acc, x, w: acc + x * w)
        results: list[list[Expr]] = []
        for row in range(rows):
            results.append([load(acc, (row * place.vectors + j) * LANES, LANES) for j in range(place.vectors)])
        if self._factor != 1.0:
            factor = T.broadcast(T.float32(float(np.float32(self._factor))), LANES)
            results = [[each * factor for each in row] for row in results]
        self._put(y, at[1], first, results, place)

    def _put(self, y: Buffer, at: Expr, first: Expr, results: list[list[Expr]], place: PanelPlace) -> None:
        """Emit what becomes of the results of some rows, of a panel's columns; the rows of y begin at `at`."""
        self.store_tile(y, T.Bind(at + first * self.y.strides[-2] + place.column), results, place, "float32")
