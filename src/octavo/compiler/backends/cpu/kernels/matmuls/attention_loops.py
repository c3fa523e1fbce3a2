"""The loops of attention: two products for some rows at a time, and the softmax between them; no scores are written.

    for each matrix:   pack k and v        (where there are few rows and columns, loops of their own)
      for each 12 rows:   scores = q @ k;   their exponentials and sums;   what of these is read;   y = that @ v

What is multiplied, and how, a derived class says.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.size import is_open
from ..language.float_function import ElementMath
from ..language.partial import has_masks, load_first
from ..language.vectors import Buffer, Expr, chunked, load, splat, store, where_at_least
from ..norms.float_softmax import SoftmaxAddend, addend_start
from .batch_product import LANES, BatchProduct, Operand, PanelPlace, Tile, columns_of, tile_for
from .masked_columns import CHUNK
from .score_block import Range, ScoreBlock

_ROWS, _OPEN_ROWS = 12, 8
"""Rows of a block, so few that their scores stay in the nearest cache. The last block ends with the last row and may compute some
again."""
_MATH = ElementMath(LANES)


Find = Callable[[Buffer, Expr, Operand, Expr], Range]
"""From the addend, the number of a block's first row, q and where the block begins in it to the columns that count."""


class Attended(Protocol):
    """What the loops ask of a kernel's spec."""

    @property
    def addend(self) -> SoftmaxAddend | None:
        """What is added to the scores."""
        ...

    @property
    def views(self) -> tuple[MatrixView, MatrixView, MatrixView, MatrixView]:
        """How q, k, v and the result lie."""
        ...

    @property
    def parameters(self) -> tuple[MatrixView, ...]:
        """How the parameters of q's rows lie, and those of the columns of k and of v; () where they have none of their own."""
        ...


class ScoreRows(BatchProduct):
    """The first product: its results, with their addend, lie in rows of whole vectors, beside the largest value of each lane.

    Lanes that are no columns are minus infinity.
    """

    _before: SoftmaxAddend | None = None
    _within: Range | None = None

    def keeps(self, block: ScoreBlock, addend: tuple[SoftmaxAddend | None, Buffer | None], row: Expr) -> None:
        """Take the block that the results become, the addend, and which of all rows the first one is."""
        self._before, self._addend = addend
        self._largest, self._row, self._within = block.largest, row, block.within

    def panel_range(self, count: Expr, vectors: int) -> tuple[Expr, Expr]:
        """Return those of the columns that count."""
        if self._within is None:
            return super().panel_range(count, vectors)
        panels = CHUNK // LANES // vectors
        first, last = self._within
        return first * panels, T.Bind(T.min(last * panels, count))

    def _put(self, y: Buffer, at: Expr, first: Expr, results: list[list[Expr]], place: PanelPlace) -> None:
        results = [[T.Bind(result) for result in vectors] for vectors in results]

        def put(columns: Callable[[int], Expr]) -> None:
            for number, vectors in enumerate(results):
                self._put_row(
                    y, at, T.Bind(first + number), [*zip(vectors, map(columns, range(place.vectors)), strict=True)], place
                )

        if isinstance(place.columns, int):
            put(lambda vector: columns_of(place, vector))
            return
        with T.If(place.columns == place.vectors * LANES):
            with T.Then():
                put(lambda _: LANES)
            with T.Else():
                put(lambda vector: columns_of(place, vector))

    def _put_row(self, y: Buffer, at: Expr, row: Expr, vectors: list[tuple[Expr, Expr]], place: PanelPlace) -> None:
        """Emit the vectors of one row, each with how many of its lanes are columns."""
        target = T.Bind(at + row * self.y.strides[-2] + place.column)
        before = None if self._before is None else T.Bind(addend_start(self._before, self._row + row) + place.column)
        most = load(self._largest, row * LANES, LANES)
        for vector, (result, valid) in enumerate(vectors):
            score = T.Bind(self._score(result, before, vector, valid))
            store(y, target + vector * LANES, score, LANES)
            most = T.max(most, score)
        store(self._largest, row * LANES, most, LANES)

    def _score(self, result: Expr, before: Expr | None, vector: int, valid: Expr) -> Expr:
        """Return a vector of results with their addend."""
        if self._before is not None and before is not None:
            added, factor = self._added(before + vector * LANES, valid), self._before.factor
            return result + added if factor is None else _MATH.fused(result, _MATH.constant(factor), added)
        if isinstance(valid, int) and valid == LANES:
            return result
        lanes = T.Ramp(T.int32(0), T.int32(1), LANES)
        return T.Select(lanes < splat(T.int32(0) + valid, LANES), result, splat(T.float32(-math.inf), LANES))

    def _added(self, start: Expr, valid: Expr) -> Expr:
        """Return a vector of the addend; beside minus infinity any result counts for nothing."""
        if isinstance(valid, int) and valid == LANES:
            return load(self._addend, start, LANES)
        staged = T.alloc_buffer((LANES,), "float32", scope="local")
        load_first(staged, 0, self._addend, start, LANES, valid, T.float32(-math.inf), isa=self.isa)
        return load(staged, 0, LANES)


class AttentionLoops(ABC):
    """Emits the kernel of a spec."""

    def __init__(self, spec: Attended, isa: str) -> None:
        q, k, *_ = spec.views
        self._views, self._parameters, self._addend = spec.views, spec.parameters, spec.addend
        self.tile, self.rows, self.columns = tile_for(isa), q.shape[-2], k.shape[-1]

    @abstractmethod
    def block_of(self, rows: int, columns: int, valid: Expr | None) -> ScoreBlock:
        """Return what lies between the products for so many rows."""

    @abstractmethod
    def products(self, block: ScoreBlock, views: Sequence[MatrixView], tile: Tile) -> tuple[ScoreRows, BatchProduct]:
        """Return what emits the two products of a block; `views` are those of q, k, the scores, their softmax, v and y."""

    @abstractmethod
    def search_of(
        self, packed: tuple[Operand, Operand], products: tuple[ScoreRows, BatchProduct]
    ) -> Callable[[int], Find] | None:
        """Emit what a search for the columns that count asks of all keys and values, which are packed for the products.

        Returns what emits the search's buffers for so many rows; None where there is no need to search.
        """

    def emit(self, *buffers: Buffer) -> None:
        """Emit everything."""
        kinds = 2 if self._parameters else 1
        *addends, y = buffers[3 * kinds :]
        (q, *of_q), (k, *of_k), (v, *of_v) = (buffers[number * kinds : (number + 1) * kinds] for number in range(3))
        q_view, *_, y_view = self._views
        before_scores = self._addend, addends[0] if addends else None

        def matrix(index: Expr, columns: int, valid: Expr | None) -> None:
            scores, weighted = self._made(self.block_of(1, columns, valid))
            q_at, k_at, v_at, y_at = scores.starts(index, *self._views)
            of_at = scores.starts(index, *self._parameters)
            keys, values = scores.pack(_operand(k, of_k, of_at[1:2]), k_at), weighted.pack(_operand(v, of_v, of_at[2:]), v_at)
            before = T.Bind(index * self.rows)
            search = self.search_of((keys, values), (scores, weighted)) if valid is None else None

            def blocks(rows: int) -> None:
                block = self.block_of(rows, columns, valid)
                first, second = self._made(block)
                block.allocate()
                find = None if search is None else search(rows)
                with T.serial(0, -(-self.rows // rows)) as number:
                    start = T.Bind(T.min(number * rows, self.rows - rows))
                    block.begin()
                    of_start = [
                        T.Bind(at + start * of.strides[-2]) for at, of in zip(of_at[:1], self._parameters[:1], strict=True)
                    ]
                    row, q_start = T.Bind(before + start), T.Bind(q_at + start * q_view.strides[-2])
                    rows_of_q = _operand(q, of_q, of_start)
                    if find is not None:
                        block.within = find(addends[0], row, rows_of_q, q_start)
                    first.keeps(block, before_scores, row)
                    first.emit_rows((rows_of_q, keys, block.scores), (q_start, T.int32(0)))
                    block.finish()
                    shares, *of_shares = block.operands
                    rows_of = _operand(shares, of_shares, [T.int32(0)] * len(of_shares))
                    second.emit_rows((rows_of, values, y), (T.int32(0), T.Bind(y_at + start * y_view.strides[-2])))

            if valid is not None:
                blocks(1)
            elif is_open(self.rows):
                where_at_least(self.rows, _OPEN_ROWS, lambda: blocks(_OPEN_ROWS), lambda: blocks(1))
            elif self.rows <= _ROWS:
                blocks(self.rows)
            else:
                blocks(min((_ROWS, _OPEN_ROWS), key=lambda rows: -(-self.rows // rows) * rows))

        self._for_matrices(matrix)

    def _for_matrices(self, body: Callable[[Expr, int, Expr | None], None]) -> None:
        """Emit body(index, columns, valid) for each matrix; where there are few rows, and columns for one vector, `valid` of it.

        A decoder's first tokens are that: what the loops over open columns compute before they begin takes longer than they do.
        """
        rows, columns = self.rows, self.columns
        product, _ = self._made(self.block_of(1, columns, None))
        has_few = is_open(columns) and (is_open(rows) or rows < _OPEN_ROWS) and has_masks(self.tile.isa, "uint8")

        def every(some: Callable[[Expr], None]) -> None:
            with chunked(math.prod(product.batch), product.threads) as index:
                some(index)

        def either(emit: Callable[[Callable[[Expr], None]], None]) -> None:
            with T.If(T.Or(T.int32(0) + columns > LANES, T.int32(0) + rows >= _OPEN_ROWS)):
                with T.Then():
                    emit(lambda index: body(index, columns, None))
                with T.Else():
                    valid = T.Bind(T.int32(0) + columns)
                    emit(lambda index: body(index, LANES, valid))

        if not has_few:
            every(lambda index: body(index, columns, None))
        elif product.threads == 1:
            either(every)
        else:  # threads share a kernel that is one parallel loop
            every(lambda index: either(lambda some: some(index)))

    def _made(self, block: ScoreBlock) -> tuple[ScoreRows, BatchProduct]:
        """Return what emits the two products of a block of rows."""

        def some(view: MatrixView) -> MatrixView:
            return replace(view, shape=(*view.shape[:-2], block.rows, view.shape[-1]), room=view.room or view.shape)

        rows = {vectors: _divisor(block.rows, most) for vectors, most in self.tile.rows.items()}
        scores = MatrixView(shape=(block.rows, block.columns), axes=(0, 1), room=(block.rows, block.scores_pitch))
        shares = MatrixView(shape=(block.rows, self.columns), axes=(0, 1), room=(block.rows, block.pitch))
        q, k, v, y = self._views
        k = replace(k, shape=(*k.shape[:-1], block.columns), room=k.room or k.shape)
        made = self.products(block, (some(q), k, scores, shares, v, some(y)), replace(self.tile, rows=rows))
        made[0].valid_columns = block.valid
        return made


def _operand(values: Buffer, of: Sequence[Buffer], at: Sequence[Expr]) -> Operand:
    """Return values, with their parameters and where these begin."""
    return (values, *of, *at) if of else values


def _divisor(rows: int, most: int) -> int:
    """Return how many rows a tile has, `most` at most: a divisor of a block's, where that isn't much less."""
    found = next(each for each in range(min(rows, most), 0, -1) if rows % each == 0)
    return found if 2 * found > most else most
