"""The loops of a batch of matrix products of two activations: b packed matrix by matrix, tiles of rows x vectors in registers.

    for each pair of matrices:   pack b as [panel][step][vectors of the panel][16 columns]
      for each panel:  for each tile of rows:   (emitted by the class that derives from this)

It emits loops and addresses; how a step's product is formed, its caller says. Operands and result are read and written through
strides (see matrix_view).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ......ir.composites.matrix_view import MatrixView
from ......runtime.size import dimension, is_open
from ..language.broadcast import broadcast_shape, matrix_start
from ..language.isa import AVX512_VNNI
from ..language.partial import lane_by_lane, load_first, store_first
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    for_open_tiles,
    least,
    load,
    shuffled,
    store,
    store_partial,
    where_at_least,
    where_left,
    worthwhile,
)

LANES = 16

Operand = Buffer | tuple[Buffer, ...]
"""A matrix, and what else there is to know of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """What lies in registers of an ISA: so many vectors of columns at most, and for each number of them so many rows.

    The open ones hold where columns, or rows, are open.
    """

    isa: str
    vectors: int
    rows: Mapping[int, int]
    open_vectors: int
    open_rows: Mapping[int, int]


_WIDE = Tile(isa=AVX512_VNNI, vectors=4, rows={1: 12, 2: 12, 3: 8, 4: 6}, open_vectors=2, open_rows={1: 8, 2: 8, 3: 4, 4: 4})
"""24 accumulators where they can be had, and enough of them to hide the latency; 16 hide it, too, and where rows are open what is
left behind whole tiles is less."""
_NARROW = Tile(isa="", vectors=1, rows={1: 6}, open_vectors=1, open_rows={1: 4})
"""Where a vector takes two registers of 16, or four of 32."""


def tile_for(isa: str) -> Tile:
    """Return the tile that an ISA has registers for."""
    return _WIDE if isa == AVX512_VNNI else replace(_NARROW, isa=isa)


@dataclass(frozen=True, kw_only=True, slots=True)
class PanelPlace:
    """A panel of columns: its first vector among the packed ones, its first column, how many vectors it has and how many columns.

    `columns` is an expression where that is known only when the kernel runs.
    """

    first: Expr
    column: Expr
    vectors: int
    columns: Expr


class BatchProduct(ABC):
    """Emits y = a @ b for each pair of matrices.

    Parameters
    ----------
    a, b, y
        How the operands and the result lie; batch axes of a and b broadcast to y's.
    threads
        Chunks that the batch is cut into.
    steps
        Steps of the reduction: vectors of b's panel for each 16 columns.
    tile
        What lies in registers.
    """

    valid_columns: Expr | None = None
    """How many columns there are, where b has room for one vector of them and their number is known when the kernel runs."""

    def __init__(self, a: MatrixView, b: MatrixView, y: MatrixView, *, threads: int, steps: int, tile: Tile) -> None:
        assert a.shape[-1] == b.shape[-2], "the columns of a meet the rows of b"
        self.a, self.b, self.y = a, b, y
        self.rows, self.inner = a.shape[-2:]
        self.columns = b.shape[-1]
        self.batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
        assert y.shape[-2:] == (self.rows, self.columns), "the result has the shape of the product"
        assert y.strides[-1] == 1, "results are stored as whole vectors"
        self.steps, self._tile, self.isa = steps, tile, tile.isa
        self.vectors = -(-self.columns // LANES)
        if is_open(self.columns):
            self.vectors = -(-self.columns // (tile.open_vectors * LANES)) * tile.open_vectors
        count = math.prod(self.batch)
        self.threads = worthwhile(threads, count * self.rows * steps * self.vectors, count)

    def emit(self, a: Buffer, b: Buffer, y: Buffer) -> None:
        """Emit everything."""
        with chunked(math.prod(self.batch), self.threads) as index:
            a_at, b_at, y_at = self.starts(index, self.a, self.b, self.y)
            self._emit_matrix((a, b, y), (a_at, b_at, y_at))

    def _emit_matrix(self, buffers: tuple[Buffer, Buffer, Buffer], at: tuple[Expr, Expr, Expr]) -> None:
        """Emit one product: buffers are a, b and y, `at` where their matrices begin."""
        (a, b, y), (a_at, b_at, y_at) = buffers, at
        self.emit_rows((a, self.pack(b, b_at), y), (a_at, y_at))

    def starts(self, index: Expr, *views: MatrixView) -> list[Expr]:
        """Return where the matrices of some views begin that make matrix `index` of the result."""
        return [T.Bind(matrix_start(view, index, self.batch)) for view in views]

    def emit_rows(self, buffers: tuple[Operand, Operand, Buffer], at: tuple[Expr, Expr]) -> None:
        """Emit the rows of one matrix: buffers are a, what `pack` returned and y; `at` says where the rows of a and y begin."""
        _, packed, _ = buffers
        shared = self._share(buffers[0], at[0])

        def panel(place: PanelPlace) -> None:
            terms = self._prepare(packed, place)

            def tile(first: Expr, rows: int) -> None:
                self._emit_tile(buffers, at, first, rows, place, (shared, terms))

            if is_open(self.rows):
                for_open_tiles(self.rows, self._tile.open_rows[place.vectors], tile, overlaps=False)
                return
            rows = min(self._tile.rows[place.vectors], self.rows)
            if self.rows // rows:
                with T.serial(0, self.rows // rows) as number:
                    tile(T.Bind(number * rows), rows)
            if self.rows % rows:
                tile(T.int32(self.rows - self.rows % rows), self.rows % rows)

        self.for_panels(panel)

    def panel_range(self, count: Expr, vectors: int) -> tuple[Expr, Expr]:
        """Return the first of `count` panels of so many vectors that is computed, and the first behind them that isn't."""
        del vectors
        return 0, count

    def step_range(self) -> tuple[Expr, Expr]:
        """Return the first step of the reduction that is taken, an even one, and the first behind them that isn't."""
        return 0, self.steps

    def for_panels(self, body: Callable[[PanelPlace], None]) -> None:
        """Call body(PanelPlace) for every panel in the range; those alike in a loop."""
        if self.valid_columns is not None:
            body(PanelPlace(first=T.int32(0), column=T.int32(0), vectors=1, columns=self.valid_columns))
            return
        if is_open(self.columns):
            self._for_open_panels(body)
            return
        most = self._tile.vectors
        full, left = divmod(self.vectors, most)
        ragged = self.columns % LANES
        if ragged and not left:
            full, left = full - 1, most
        start, stop = self.panel_range(full + (left > 0), most)
        if full:
            with T.serial(start, least(stop, full)) as number:
                first, column = T.Bind(number * most), T.Bind(number * (most * LANES))
                body(PanelPlace(first=first, column=column, vectors=most, columns=most * LANES))
        if left:
            first, before = T.int32(full * most), full * most * LANES
            place = PanelPlace(first=first, column=T.int32(before), vectors=left, columns=self.columns - before)
            where_left(stop - full, lambda: body(place))

    def _for_open_panels(self, body: Callable[[PanelPlace], None]) -> None:
        """Call body(PanelPlace) for panels of which the last ends with the columns: it computes some of them again.

        Fewer columns than a panel's are one that is not full, of one vector where that holds them.
        """
        vectors = self._tile.open_vectors
        width = vectors * LANES
        columns = T.Bind(T.int32(0) + self.columns)

        def several() -> None:
            valid = T.Bind(T.min(columns, T.int32(width)))
            count = T.shift_right(columns + (width - 1), T.int32(width.bit_length() - 1))
            with T.serial(*self.panel_range(count, vectors)) as number:
                column = T.Bind(T.max(T.min(number * width, columns - width), T.int32(0)))
                body(PanelPlace(first=T.Bind(number * vectors), column=column, vectors=vectors, columns=valid))

        def one() -> None:
            body(PanelPlace(first=T.int32(0), column=T.int32(0), vectors=1, columns=columns))

        if vectors == 1:
            several()
            return
        where_at_least(self.columns, LANES + 1, several, one)

    def for_vectors(self, pack: Callable[[PanelPlace, Expr, Expr], None]) -> None:
        """Call pack(place, vector, valid) for every vector of every panel, `valid` of whose lanes are columns."""

        def of_vector(place: PanelPlace, vector: Expr) -> None:
            valid = columns_of(place, vector)
            if isinstance(valid, int):
                pack(place, vector, valid)
                return
            valid = T.Bind(valid)
            with T.If(valid == LANES):
                with T.Then():
                    pack(place, vector, LANES)
                with T.Else():
                    pack(place, vector, valid)

        def of_panel(place: PanelPlace) -> None:
            if isinstance(place.columns, int):
                for vector in range(place.vectors):
                    of_vector(place, vector)
                return
            with T.serial(0, place.vectors) as vector:
                of_vector(place, vector)

        self.for_panels(of_panel)

    def emit_sums(
        self,
        dtype: str,
        rows: int,
        vectors: int,
        value: Callable[[int, Expr], Expr],
        column: Callable[[int, Expr], Expr],
        product: Callable[[Expr, Expr, Expr], Expr],
    ) -> Buffer:
        """Emit acc[row][vector] = product(acc[row][vector], value(row, step), column(vector, step)) for every step, from 0 on.

        Returns the accumulators, `rows` x `vectors` x 16 of `dtype`. Those of one row, which wait for each other, are two sets,
        one for each other step, where they are integers: their sum is exact.
        """
        count = rows * vectors
        sets = 2 if rows == 1 and dtype == "int32" else 1
        acc = T.alloc_buffer((sets * count * LANES,), dtype, scope="local")
        for i in range(sets * count):
            store(acc, i * LANES, T.broadcast(tirx.const(0, dtype), LANES), LANES)

        def take(step: Expr, first: int) -> None:
            columns = [T.Bind(column(vector, step)) for vector in range(vectors)]
            for row in range(rows):
                factor = T.Bind(value(row, step))
                for vector, weights in enumerate(columns):
                    index = (first + row * vectors + vector) * LANES
                    store(acc, index, product(load(acc, index, LANES), factor, weights), LANES)

        start, stop = self.step_range()
        with T.serial(start // sets, stop // sets) as step:
            for each in range(sets):
                take(step * sets + each, each * count)
        if sets > 1:
            where_left(stop % sets, lambda: take(T.int32(0) + (stop - 1), 0))
            for i in range(count):
                store(acc, i * LANES, load(acc, i * LANES, LANES) + load(acc, (count + i) * LANES, LANES), LANES)
        return acc

    def store_tile(self, y: Buffer, start: Expr, results: Sequence[Sequence[Expr]], place: PanelPlace, dtype: str) -> None:
        """Emit the store of a panel's columns of rows, each some vectors."""
        pitch = self.y.strides[-2]

        def stored(columns: Callable[[int], int]) -> None:
            for row, vectors in enumerate(results):
                for vector, result in enumerate(vectors):
                    store_partial(y, start + row * pitch + vector * LANES, result, LANES, columns(vector), dtype)

        if isinstance(place.columns, int):
            stored(lambda vector: columns_of(place, vector))
            return
        if self.isa == AVX512_VNNI:  # there, masks cost nothing
            for row, vectors in enumerate(results):
                for vector, result in enumerate(vectors):
                    at, valid = start + row * pitch + vector * LANES, columns_of(place, vector)
                    store_first(y, at, result, LANES, valid, dtype, isa=self.isa)
            return
        results = [[T.Bind(result) for result in vectors] for vectors in results]
        width = place.vectors * LANES
        with T.If(place.columns == width):
            with T.Then():
                stored(lambda _: LANES)
            with T.Else():
                staged = T.alloc_buffer((len(results) * width,), dtype, scope="local")
                for row, vectors in enumerate(results):
                    for vector, result in enumerate(vectors):
                        store(staged, row * width + vector * LANES, result, LANES)
                with T.serial(0, len(results)) as row, T.serial(0, place.columns) as column:
                    T.buffer_store(y, staged[row * width + column], [start + row * pitch + column])

    def copied_parameters(self, of_columns: Buffer, start: Expr, strides: tuple[Expr, Expr]) -> Buffer:
        """Emit a copy of the scales and zero points, float32 [2, columns] from `start` on, of each vector of columns behind each
        other: lanes that are no columns are 0 and can be read. `strides` are those of kinds and columns."""
        down, across = strides
        copy = T.alloc_buffer((dimension(self.vectors * (2 * LANES)),), "float32")

        def of_vector(place: PanelPlace, vector: Expr, valid: Expr) -> None:
            target = T.Bind((place.first + vector) * (2 * LANES))
            column = T.Bind(start + (place.column + vector * LANES) * across)
            is_full = isinstance(valid, int) and valid == LANES
            if across != 1:

                def read(lane: Expr) -> list[Expr]:
                    return [of_columns[column + kind * down + lane * across] for kind in range(2)]

                for kind, each in enumerate(lane_by_lane(valid, LANES, [T.float32(0)] * 2, read)):
                    store(copy, target + kind * LANES, each, LANES)
                return
            for kind in range(2):
                source, to = column + kind * down, target + kind * LANES
                if is_full:
                    store(copy, to, load(of_columns, source, LANES), LANES)
                else:
                    load_first(copy, to, of_columns, source, LANES, valid, T.float32(0), isa=self.isa)

        self.for_vectors(of_vector)
        return copy

    @abstractmethod
    def pack(self, b: Operand, at: Expr) -> Operand:
        """Emit the packing of one matrix of b; return its buffer."""

    def _share(self, a: Operand, at: Expr) -> tuple[Buffer, ...]:
        """Emit what all panels share of one matrix of a; return its buffers."""
        del a, at
        return ()

    def _prepare(self, packed: Operand, place: PanelPlace) -> tuple[Expr, ...]:
        """Emit what the tiles of a panel share; return its vectors."""
        del packed, place
        return ()

    @abstractmethod
    def _emit_tile(
        self,
        buffers: tuple[Operand, Operand, Buffer],
        at: tuple[Expr, Expr],
        first: Expr,
        rows: int,
        place: PanelPlace,
        shared: tuple[Sequence[Expr], Sequence[Expr]],
    ) -> None:
        """Emit `rows` rows of one panel; buffers are a, the packed b and y, `at` where the matrices of a and y start."""


def transposed_tile(vectors: Sequence[Expr]) -> list[Expr]:
    """Return the columns of 16 rows of `len(vectors)` elements, a power of two; vector i is made of rows i, i + len(vectors), ...

    Each round weaves vector i with the one half of them behind it, each element one place, within each square block.
    """
    width = len(vectors)
    half = width // 2

    def weave(a: Expr, b: Expr, first: int) -> Expr:
        order = [place for block in range(first, LANES, width) for i in range(block, block + half) for place in (i, LANES + i)]
        return T.Bind(shuffled([a, b], order))

    made = [T.Bind(vector) for vector in vectors]
    for _ in range(width.bit_length() - 1):
        made = [weave(made[i], made[i + half], first) for i in range(half) for first in (0, half)]
    return made


def columns_of(place: PanelPlace, vector: Expr) -> Expr:
    """Return how many lanes of a panel's vector are columns."""
    left = place.columns - vector * LANES
    return min(LANES, left) if isinstance(left, int) else T.min(left, T.int32(LANES))


def load_tile(buffer: Buffer, at: Expr, stride: int, lanes: int) -> list[Expr]:
    """Return 16 vectors of `lanes` elements, `stride` apart."""
    return [load(buffer, at + i * stride, lanes) for i in range(LANES)]
