"""Pixels of an image of open size as a table, in the order in which tiles take them: full tiles however narrow the image is.

    left strip | columns between | right strip         each from its first row to its last, row by row

A tile is of neighbours in the table, which may lie in several rows. Columns whose windows reach into padding that holds zeros
make strips of their own, at most one on either side, whose taps in the padding are left out; so are those rows of taps that no
pixel of a tile reads. Behind the pixels of a strip its last one is repeated: the last tile computes it several times, to one
value.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvm.script.ir_builder import tirx as T

from .......runtime.size import dimension, is_open
from ...language.vectors import Expr, bound, interior, kept
from ..float_spec import FloatConv2dSpec
from ..spec import Conv2dSpec
from .geometry import Geometry
from .packing import Reduction
from .tiles import Tile

MAX_STRUNG = 8
"""Of a tile: each has a register for its address, beside those of weights and counters."""

MIN_PRODUCTS = 64
"""Of vectors, for a pixel: with fewer it takes too long to look up where the pixel lies."""


def is_strung(geometry: Geometry, steps: int) -> bool:
    """Return whether the pixels of a layer of so many steps are strung together: where rows are of open width, and it pays."""
    vectors = geometry.group_vectors
    return is_open(geometry.columns) and geometry.interleave is None and vectors > 1 and steps * vectors >= MIN_PRODUCTS


@dataclass(frozen=True, slots=True)
class StripTile:
    """`size` pixels of the table from entry `first` on, with their places, and the taps that some of them reads.

    Parameters
    ----------
    starts
        Where their windows begin, in elements of the source.
    pixels
        Their numbers within the block, row by row.
    rows
        [first; last) of the rows of taps; None where all are read.
    columns
        [first; last) of the columns of taps; None where all are read.
    kernel
        Rows and columns of taps.
    """

    first: Expr
    size: int
    starts: list[Expr]
    pixels: list[Expr]
    rows: tuple[Expr, Expr] | None
    columns: tuple[Expr, Expr] | None
    kernel: tuple[int, int]

    @property
    def reads_all(self) -> bool:
        """Whether no taps are left out."""
        return self.rows is None and self.columns is None

    def for_taps(
        self, reduction: Reduction, base: Expr, weights_at: Expr, row_weights: int, walk: Callable[[Expr, Expr, Expr], None]
    ) -> None:
        """Emit `walk(element, weights, elements)` for each row of taps that is read, in a loop.

        Parameters
        ----------
        base, weights_at, row_weights
            Where windows and a panel's weights begin, and elements of its weights for each row of taps.
        walk
            Emits the walk over that many neighbours, None for all that the row has.
        """
        kernel_h, kernel_w = self.kernel
        first_row, last_row = (0, kernel_h) if self.rows is None else self.rows
        distance = reduction.taps[0][1]
        with T.serial(first_row, last_row) as row:
            element, weights = T.Bind(base + row * distance), T.Bind(weights_at + row * row_weights)
            if self.columns is None:
                walk(element, weights, None)
            else:
                first, last = self.columns
                tap = reduction.run // kernel_w
                walk(
                    T.Bind(element + first * tap),
                    T.Bind(weights + first * (row_weights // kernel_w)),
                    T.Bind((last - first) * tap),
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class Strips:
    """How the pixels of one layer are strung together.

    Parameters
    ----------
    spec, geometry
        Of the layer.
    tile
        Pixels of a full tile.
    skips_rows, skips_columns
        Whether taps in the padding are left out, of each axis.
    """

    spec: Conv2dSpec | FloatConv2dSpec
    geometry: Geometry
    tile: int
    skips_rows: bool
    skips_columns: bool

    @staticmethod
    def of(
        spec: Conv2dSpec | FloatConv2dSpec, geometry: Geometry, tile: Tile, steps: int, tap_steps: int | None, *, skips: bool
    ) -> Strips | None:
        """Return the strips of a layer whose pixels are strung together; None for another.

        Parameters
        ----------
        steps, tap_steps
            Of a pixel, and of one column of taps, None where steps do not end where taps do.
        skips
            Whether taps in the padding may be left out.
        """
        if not is_strung(geometry, steps):
            return None
        columns = spec.padding[1], spec.padding[3]
        are_neighbours = len(geometry.reduction.taps) == 1 and spec.kernel[1] > 1
        return Strips(
            spec=spec,
            geometry=geometry,
            tile=tile.pixels,
            skips_rows=skips and any((spec.padding[0], spec.padding[2])),
            skips_columns=skips and any(columns) and tap_steps is not None and are_neighbours,
        )

    @property
    def count(self) -> int:
        """Strips side by side."""
        return 3 if self.skips_columns else 1

    @property
    def sizes(self) -> list[int]:
        """Pixels of the tiles that there is code for, fewest first: what is left behind full ones goes into the least of them."""
        return sorted({self.tile, *(size for size in (2, 4) if size < self.tile)})

    @property
    def parts(self) -> int:
        """Numbers of a pixel in the table: where its window begins, its own, and its rows of taps where it may not read all."""
        return 4 if self.skips_rows else 2

    def _rows_of(self, row: Expr, first_row: Expr | None) -> Sequence[Expr]:
        """Return which rows of taps the pixels of a row of the block read: [first; last); nothing where they read all."""
        if not self.skips_rows:
            return ()
        spec = self.spec
        start = T.Bind((row if first_row is None else row + first_row) * spec.strides[0] - spec.padding[0])
        return interior(start, spec.kernel[0], spec.dilation[0], bound(spec.in_height), always=False)

    def emit(self, block: Expr, filled: Expr, first_row: Expr | None) -> EmittedStrips:
        """Allocate the table of `block` rows and fill it for the `filled` rows from `first_row` of the image on."""
        geometry = self.geometry
        columns = bound(geometry.columns)
        edges: Any = T.alloc_buffer((4,), "int32", scope="local")
        ranges: Any = T.alloc_buffer((6,), "int32", scope="local")
        self._emit_edges(edges, ranges, columns)
        size = block * geometry.columns + self.count * self.tile
        parts = self.parts
        table: Any = T.alloc_buffer((dimension(parts * size),), "int32")
        made = EmittedStrips(strips=self, table=table, edges=edges, ranges=ranges, filled=filled)
        row_stride, column_stride = bound(geometry.row_stride), bound(geometry.column_stride)
        with made.each() as strip:
            first, width, begin = made.place(strip)
            with T.serial(0, filled) as row:
                start, pixel = T.Bind(row * row_stride + first * column_stride), T.Bind(row * columns + first)
                at = T.Bind(begin + row * width)
                taps = [kept(each, "int32") for each in self._rows_of(row, first_row)]
                with T.serial(0, width) as column:
                    for part, value in enumerate((start + column * column_stride, pixel + column, *taps)):
                        T.buffer_store(table, value, [parts * (at + column) + part])
            end = T.Bind(begin + filled * width)
            with T.If(width > 0), T.Then(), T.serial(0, self.tile - 1) as index:
                for part in range(parts):
                    T.buffer_store(table, table[parts * (end - 1) + part], [parts * (end + index) + part])
        return made

    def _emit_edges(self, edges: Any, ranges: Any, columns: Expr) -> None:
        """Emit where the strips begin and end, and which columns of taps each reads."""
        T.buffer_store(edges, T.int32(0), [0])
        if not self.skips_columns:
            T.buffer_store(edges, T.int32(0) + columns, [1])
            return
        taps, stride, before = self.spec.kernel[1], self.spec.strides[1], self.spec.padding[1]
        width = bound(self.spec.in_width)

        def read(column: Expr) -> tuple[Expr, Expr]:
            return interior(column * stride - before, taps, 1, width, always=False)

        left = kept(T.min(T.int32(-(-max(before, 0) // stride)), columns), "int32")
        # Columns whose last tap lies left of the image's end: col * stride - before + taps <= width.
        ends_within = T.truncdiv(T.max(T.int32(0) + width + (before - taps + stride), T.int32(0)), T.int32(stride))
        right = kept(T.max(left, T.min(ends_within, columns)), "int32")
        for index, edge in enumerate((left, right, columns)):
            T.buffer_store(edges, T.int32(0) + edge, [index + 1])
        # Those of the first column end last, those of the last one begin first.
        bounds = [
            (read(T.max(left - 1, 0))[0], read(T.int32(0))[1]),
            (T.int32(0), T.int32(taps)),
            (read(T.int32(0) + columns - 1)[0], read(right)[1]),
        ]
        for index, (first, last) in enumerate(bounds):
            T.buffer_store(ranges, first, [2 * index])
            T.buffer_store(ranges, last, [2 * index + 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class EmittedStrips:
    """A block's table: the parts of its pixels in turn; `edges` and `ranges` are those of the strips."""

    strips: Strips
    table: Any
    edges: Any
    ranges: Any
    filled: Expr

    @contextmanager
    def each(self) -> Generator[Expr]:
        """Emit a loop over the strips."""
        with nullcontext(0) if self.strips.count == 1 else T.serial(0, self.strips.count) as strip:
            yield strip

    def place(self, strip: Expr) -> tuple[Expr, Expr, Expr]:
        """Return first column and width of a strip, and its first entry in the table."""
        first = T.Bind(self.edges[strip])
        return first, T.Bind(self.edges[strip + 1] - first), T.Bind(self.filled * first + strip * self.strips.tile)

    def for_tiles(self, body: Callable[[StripTile], None]) -> None:
        """Emit `body` for the tiles of all strips."""
        size, sizes = self.strips.tile, self.strips.sizes
        with self.each() as strip:
            _, width, begin = self.place(strip)
            columns = (self.ranges[2 * strip], self.ranges[2 * strip + 1]) if self.strips.skips_columns else None
            bounds = None if columns is None else (T.Bind(columns[0]), T.Bind(columns[1]))
            pixels = T.Bind(self.filled * width)
            # What the largest of the smaller tiles does not hold is a full one, too.
            spare = size - (sizes[-2] if len(sizes) > 1 else 0) - 1
            full = T.Bind(T.truncdiv(pixels + spare, T.int32(size)))
            with T.serial(0, full) as index:
                body(self._tile(T.Bind(begin + index * size), size, bounds))
            first, left = T.Bind(begin + full * size), T.Bind(pixels - full * size)
            for smaller, larger in pairwise([0, *sizes[:-1]]):
                with T.If(T.And(left > smaller, left <= larger)), T.Then():
                    body(self._tile(first, larger, bounds))

    def _tile(self, first: Expr, size: int, columns: tuple[Expr, Expr] | None) -> StripTile:
        strips, parts = self.strips, self.strips.parts
        starts, pixels = ([T.Bind(self.table[parts * (first + i) + part]) for i in range(size)] for part in range(2))
        rows = None
        if strips.skips_rows:  # those of the last pixel begin first, those of the first one end last
            begin = T.Bind(self.table[parts * (first + (size - 1)) + 2])
            rows = begin, T.Bind(T.max(begin, self.table[parts * first + 3]))
        return StripTile(first, size, starts, pixels, rows, columns, strips.spec.kernel)
