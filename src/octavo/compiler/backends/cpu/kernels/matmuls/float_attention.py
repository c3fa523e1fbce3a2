"""Attention in float32: scores, softmax and the product with the values for some rows at a time; no scores are written.

Columns at both ends that are masked for all of these rows are left out. Plain vectors, one text for every ISA. Every value is
that of the kernels of its steps: `float_batch_matmul`, `float_softmax`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.size import is_open
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, prim_func
from ..norms.float_softmax import SoftmaxAddend
from .attention_loops import AttentionLoops, Find, ScoreRows
from .batch_product import LANES, BatchProduct, Operand, Tile
from .float_batch_matmul import FloatBatchMatmulSpec, FloatProduct
from .masked_columns import CHUNK, SCORE_LIMIT, MaskedColumns, largest_magnitude
from .score_block import Range, RealBlock, ScoreBlock

FLOAT_ATTENTION = "float.attention"

_FINITE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatAttentionSpec:
    """softmax(q (..., rows, width) @ k (..., width, columns)) @ v (..., columns, features), the scores with their addend.

    `scores` and `weighted` are the two products; what lies between them is no tensor, so its views say shapes alone.
    """

    scores: FloatBatchMatmulSpec
    weighted: FloatBatchMatmulSpec
    addend: SoftmaxAddend | None = None
    threads: int = 1

    @property
    def views(self) -> tuple[MatrixView, MatrixView, MatrixView, MatrixView]:
        """How q, k, v and the result lie."""
        return self.scores.a, self.scores.b, self.weighted.b, self.weighted.y

    @property
    def parameters(self) -> tuple[MatrixView, ...]:
        """None."""
        return ()


def float_attention(spec: FloatAttentionSpec, *, addend: npt.NDArray[np.float32] | None = None, isa: str) -> Kernel:
    """Return the kernel of q, k and v; the addend is the next argument, or the constant `addend`."""
    q, k, v, y = spec.views
    arguments = [(name, view.size, "float32") for name, view in (("q", q), ("k", k), ("v", v))]
    if spec.addend is not None:
        arguments.append(("addend", math.prod(spec.addend.own), "float32"))
    arguments.append(("y", y.size, "float32"))
    constants = () if addend is None else (addend.reshape(-1),)
    func = prim_func(arguments, _FloatAttention(spec, isa).emit)
    return Kernel(name=FLOAT_ATTENTION, isa=isa, func=func, constants=constants)


class _FloatScores(ScoreRows, FloatProduct):
    """Scores in float32."""

    def _score(self, result: Expr, before: Expr | None, vector: int, valid: Expr) -> Expr:
        """Return a vector of results with their addend; the factor's product is rounded on its own."""
        return super()._score(ElementMath(LANES).fenced(result), before, vector, valid)


class _FloatWeighted(FloatProduct):
    """The second product, of the columns that count."""

    block: ScoreBlock | None = None

    def step_range(self) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        if self.block is None or self.block.within is None:
            return super().step_range()
        first, last = self.block.within
        return first * CHUNK, T.Bind(T.min(last * CHUNK, self.steps))


class _FloatAttention(AttentionLoops):
    """Emits the kernel."""

    def __init__(self, spec: FloatAttentionSpec, isa: str) -> None:
        super().__init__(spec, isa)
        self._spec = spec

    def block_of(self, rows: int, columns: int, valid: Expr | None) -> RealBlock:
        """Return what becomes a softmax for so many rows."""
        return RealBlock(rows, columns, valid)

    def products(self, block: ScoreBlock, views: Sequence[MatrixView], tile: Tile) -> tuple[ScoreRows, FloatProduct]:
        """Return what emits the two products of a block."""
        spec, (q, k, scores, shares, v, y) = self._spec, views
        first = _FloatScores(q, k, scores, factor=spec.scores.factor, threads=spec.threads, tile=tile)
        second = _FloatWeighted(shares, v, y, factor=spec.weighted.factor, threads=spec.threads, tile=tile)
        second.block = block
        return first, second

    def search_of(
        self, packed: tuple[Operand, Operand], products: tuple[ScoreRows, BatchProduct]
    ) -> Callable[[int], Find] | None:
        """Emit the largest magnitudes of keys and values: where scores have no bound, or a value is infinite, all count."""
        spec, (first, second) = self._spec, products
        if spec.addend is None or not (is_open(self.columns) or self.columns > CHUNK):
            return None
        addend, width, (down, across) = spec.addend, first.inner, first.a.strides[-2:]
        of_keys, of_values = (
            largest_magnitude(each, LANES, product.vectors * product.steps, LANES)
            for each, product in zip(packed, (first, second), strict=True)
        )
        factor = abs(spec.scores.factor) * (1.0 if addend.factor is None else abs(addend.factor))

        def search(rows: int) -> Find:
            masked = MaskedColumns(addend, rows, self.columns)

            def find(values: Buffer, row: Expr, q: Operand, q_start: Expr) -> Range:
                of_q = _largest_of_rows(q, q_start, (rows, width), (down, across))
                bound = of_q * of_keys * (T.float32(factor) * T.Cast("float32", T.int32(0) + width))
                return masked.found(values, row, T.And(bound <= T.float32(SCORE_LIMIT), of_values <= T.float32(_FINITE)))

            return find

        return search


def _largest_of_rows(q: Operand, start: Expr, extents: tuple[int, int], strides: tuple[int, int]) -> Expr:
    """Emit the largest magnitude of some rows; NaN where one is."""
    largest = T.alloc_buffer((1,), "int32", scope="local")
    T.buffer_store(largest, T.int32(0), [0])
    with T.serial(0, extents[0]) as row, T.serial(0, extents[1]) as column:
        bits = T.reinterpret("int32", q[start + row * strides[0] + column * strides[1]]) & T.int32(0x7FFFFFFF)
        T.buffer_store(largest, T.max(largest[0], bits), [0])
    return T.Bind(T.reinterpret("float32", largest[0]))
