"""Product of two float32 activations, batch by batch, through strides; plain vectors, one text for every ISA.

Each output is one sum in the order of the inner axis, so it depends neither on tiles nor on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.size import dimension, is_open
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, load, prim_func, store, store_partial
from .batch_product import LANES, BatchProduct, PanelPlace, columns_of, load_tile, transposed_tile


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
    product = _FloatProduct(spec)
    arguments = [(name, view.size, "float32") for name, view in (("a", spec.a), ("b", spec.b), ("y", spec.y))]
    return Kernel(name="float.batch_matmul", isa=isa, func=prim_func(arguments, product.emit))


class _FloatProduct(BatchProduct):
    def __init__(self, spec: FloatBatchMatmulSpec) -> None:
        super().__init__(spec.a, spec.b, spec.y, spec.threads, steps=spec.a.shape[-1])
        self._factor = spec.factor

    def _pack(self, b: Buffer, at: Expr) -> Buffer:
        packed = T.alloc_buffer((dimension(self.vectors * self.steps * LANES),), "float32")
        down, across = self.b.strides[-2:]

        def panel(place: PanelPlace) -> None:
            base = T.Bind(place.first * (self.steps * LANES))
            for vector in range(place.vectors):
                valid = columns_of(place, vector)
                column = T.Bind(at + (place.column + vector * LANES) * across)
                target = T.Bind(base + vector * LANES)
                is_full = isinstance(valid, int) and valid == LANES
                if is_full and across == 1:
                    with T.serial(0, self.steps) as step:
                        store(packed, target + step * (place.vectors * LANES), load(b, column + step * down, LANES), LANES)
                elif is_full and down == 1 and is_open(self.steps):
                    with T.If(T.int32(0) + self.steps >= LANES):
                        with T.Then():
                            self._pack_transposed(b, packed, column, target, place.vectors * LANES)
                        with T.Else():
                            self._pack_elements(b, packed, column, target, place.vectors * LANES, valid)
                elif is_full and down == 1 and self.steps >= LANES:
                    self._pack_transposed(b, packed, column, target, place.vectors * LANES)
                else:
                    self._pack_elements(b, packed, column, target, place.vectors * LANES, valid)

        self.for_panels(panel)
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
        target = T.Bind(at[1] + first * self.y.strides[-2] + place.column)
        for row in range(rows):
            for j in range(place.vectors):
                result = load(acc, (row * place.vectors + j) * LANES, LANES)
                if self._factor != 1.0:
                    result = result * T.broadcast(T.float32(float(np.float32(self._factor))), LANES)
                index = target + row * self.y.strides[-2] + j * LANES
                store_partial(y, index, result, LANES, columns_of(place, j), "float32")
