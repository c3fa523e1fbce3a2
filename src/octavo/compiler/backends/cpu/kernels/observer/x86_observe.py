"""The observer in AVX-512 or AVX2: vectors for ranges and codes, then one increment for each value.

    for each block of rows x vectors      (it stays in the first-level cache)
      ranges in registers, codes of 32 values at a time into a buffer, the largest magnitude
      a block that holds NaN or infinity: again, value by value
      for each code: one increment        (and the clamp, which costs nothing beside it)

Increments are what bounds it, one a cycle. Statistics are those of the scalar loop in ../observe.py, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ......numerics.statistics.observer_state import TABLES
from ......runtime.size import is_open
from ..language.isa import AVX512_VNNI
from ..language.vectors import Buffer, Expr, intrinsic, load, splat, store
from ..language.x86.vector import LANES
from .statistics import ObserveSpec, Statistics, clamped
from .x86_observe_tiles import NOT_FINITE, PAIR, codes_of, for_codes, upper_halves

BLOCK = 2048  # values of a block, at most: their codes and themselves fit the first-level cache
_LONGEST_ROW = 8192


def vectors_of(isa: str) -> int:
    """Return how many vectors of a block's row have minima and maxima in registers: with 32 of 512 bits, 8; with 16 of 256, 2."""
    return 8 if isa == AVX512_VNNI else 2


def row_length(channels: int, vectors: int) -> int | None:
    """Return how many neighbouring values form a row: whole pairs of vectors and whole pixels; None if that is too long."""
    length = math.lcm(channels, PAIR)
    if length > _LONGEST_ROW:
        return None
    while length * 2 <= vectors * LANES:
        length *= 2
    return length


class VectorObserver:
    """Emits the observer of one spec."""

    def __init__(self, spec: ObserveSpec, *, isa: str) -> None:
        self.spec, self._isa = spec, isa
        self._vectors = vectors_of(isa)

    def emit(self, x: Buffer, statistics: Statistics, out: Buffer) -> None:
        """Emit everything."""
        spec = self.spec
        self.x, self.statistics, self.out = x, statistics, out
        if spec.inner == 1:
            self._emit_run(B.int32(0), spec.outer * spec.channels, lambda at: B.floormod(at, spec.channels), spec.channels)
            return
        with B.serial(0, spec.outer) as outer, B.serial(0, spec.channels) as channel:
            base = B.Bind((outer * spec.channels + channel) * spec.inner)
            self._emit_run(base, spec.inner, lambda _: channel, 1)

    def _emit_run(self, base: Expr, size: int, channel_of: Callable[[Expr], Expr], channels: int) -> None:
        """Emit the observation of `size` neighbouring values; `channel_of` tells a value's channel by its distance from base."""
        length = row_length(channels, self._vectors)
        rows = size // length if length is not None else 0
        if length is not None and is_open(rows):
            self._emit_rows(base, B.Bind(B.int32(0) + rows), length, channel_of)
        elif length is not None and rows:
            self._emit_rows(base, rows, length, channel_of)
        done = rows * (length or 0)
        if is_open(size - done) or done < size:
            with B.serial(0, size - done) as rest:
                index = B.Bind(base + done + rest)
                value = B.Bind(self.x[index])
                self.statistics.add(value, index, channel_of(done + rest))
                if self.spec.clamps:
                    B.buffer_store(self.out, clamped(value, self.spec), [index])

    def _emit_rows(self, base: Expr, rows: int, length: int, channel_of: Callable[[Expr], Expr]) -> None:
        channels = self.spec.channels
        least = B.alloc_buffer((length,), "float32", scope="local")
        greatest = B.alloc_buffer((length,), "float32", scope="local")
        codes = B.alloc_buffer((BLOCK,), "uint16", scope="local")
        with B.serial(0, length // LANES) as vector:
            store(least, vector * LANES, splat(B.float32(math.inf), LANES), LANES)
            store(greatest, vector * LANES, splat(B.float32(-math.inf), LANES), LANES)
        block = Block(
            source=self.x,
            out=self.out if self.spec.clamps else None,
            codes=codes,
            least=least,
            greatest=greatest,
            statistics=self.statistics,
            isa=self._isa,
        )
        most = BLOCK // (min(self._vectors, length // LANES) * LANES)
        with grouped(rows, most) as (first, count):
            full, rest = divmod(length // LANES, self._vectors)

            def group(column: Expr, vectors: int, first: Expr = first, count: Expr = count) -> None:
                at = B.Bind(base + first * length + column)
                row = Row(pixels=1, vectors=vectors, stride=length)
                block.emit(at, column, count, row, lambda lane: channel_of(column + lane))

            if full:
                with B.serial(0, full) as index:
                    group(B.Bind(index * (self._vectors * LANES)), self._vectors)
            if rest:
                group(B.int32(full * self._vectors * LANES), rest)
        with B.serial(0, length) as column:
            low, high = channel_of(column), channels + channel_of(column)
            ranges = self.statistics.ranges
            B.buffer_store(ranges, B.min(ranges[low], least[column]), [low])
            B.buffer_store(ranges, B.max(ranges[high], greatest[column]), [high])


@contextmanager
def grouped(count: Expr, most: int) -> Generator[tuple[Expr, Expr], None, None]:
    """Emit a loop over groups of `most` of range(count), the last one may be shorter; yield a group's first and its length."""
    groups = -(-count // most) if isinstance(count, int) else B.floordiv(count + (most - 1), most)
    with B.serial(0, groups) as group:
        first = B.Bind(group * most)
        if isinstance(count, int) and count % most == 0:
            yield first, most
        else:
            yield first, B.Bind(B.min(B.int32(most), count - first))


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What a block repeats: `pixels` neighbours of `vectors` vectors each, an even number in all; the next row is `stride` on.

    Vectors at the same place of different pixels share a range.
    """

    pixels: int
    vectors: int
    stride: int

    def __post_init__(self) -> None:
        """Check what holds by construction."""
        assert self.pixels * self.vectors % 2 == 0, "values are coded in pairs of vectors"
        assert self.stride % self.pixels == 0, "pixels are evenly apart"

    @property
    def size(self) -> int:
        """Values of a row."""
        return self.pixels * self.vectors * LANES

    def offsets(self) -> list[tuple[int, int]]:
        """Return of each vector its distance from the row's start and its place in the ranges."""
        spacing = self.stride // self.pixels
        return [(pixel * spacing + j * LANES, j * LANES) for pixel in range(self.pixels) for j in range(self.vectors)]


class Block:
    """Emits the observation of blocks: some rows of vectors.

    Parameters
    ----------
    source, out
        Where the values lie, and where they go clamped, at the same index; the two may be one buffer.
    codes
        uint16 scratch of at least one block.
    least, greatest
        float32 by column: the running range of each lane.
    """

    def __init__(
        self,
        *,
        source: Buffer,
        out: Buffer | None,
        codes: Buffer,
        least: Buffer,
        greatest: Buffer,
        statistics: Statistics,
        isa: str,
    ) -> None:
        self._isa = isa
        self.source, self.out, self.codes = source, out, codes
        self.least, self.greatest, self.statistics = least, greatest, statistics

    def emit(self, at: Expr, column: Expr, rows: Expr, row: Row, channel_of: Callable[[Expr], Expr]) -> None:
        """Emit one block of `rows` rows from index `at` on.

        Parameters
        ----------
        column
            The block's place in the ranges.
        channel_of
            The channel of a place in the ranges, counted from `column`.
        """
        low = B.alloc_buffer((row.vectors * LANES,), "float32", scope="local")
        high = B.alloc_buffer((row.vectors * LANES,), "float32", scope="local")
        largest = B.alloc_buffer((PAIR,), "uint16", scope="local")
        store(largest, 0, splat(B.uint16(0), PAIR), PAIR)
        for place in range(0, row.vectors * LANES, LANES):
            store(low, place, load(self.least, column + place, LANES), LANES)
            store(high, place, load(self.greatest, column + place, LANES), LANES)
        with B.serial(0, rows) as index:
            self._emit_codes(B.Bind(at + index * row.stride), B.Bind(index * row.size), row, low, high, largest)
        worst = intrinsic(f"llvm.vector.reduce.umax.v{PAIR}i16", "uint16", load(largest, 0, PAIR))
        with B.If(worst < B.uint16(NOT_FINITE)):
            with B.Then():
                for place in range(0, row.vectors * LANES, LANES):
                    store(self.least, column + place, load(low, place, LANES), LANES)
                    store(self.greatest, column + place, load(high, place, LANES), LANES)
            with B.Else(), B.serial(0, rows * row.pixels) as pixel, B.serial(0, row.vectors * LANES) as lane:
                place = B.Bind(at + pixel * (row.stride // row.pixels) + lane)
                self.statistics.widen(B.Bind(self.source[place]), place, channel_of(lane))
        if self.out is not None:
            with B.serial(0, rows) as index:
                self._emit_clamp(self.out, B.Bind(at + index * row.stride), row)
        with B.serial(0, rows * (row.size // PAIR)) as pair:
            self._emit_counts(B.Bind(pair * PAIR))

    def _emit_codes(self, at: Expr, code_at: Expr, row: Row, low: Buffer, high: Buffer, largest: Buffer) -> None:
        """Emit the ranges and the codes of one row."""
        offsets = row.offsets()
        for pair in range(len(offsets) // 2):
            values: list[Expr] = []
            for offset, place in offsets[2 * pair : 2 * pair + 2]:
                value = B.Bind(load(self.source, at + offset, LANES))
                # In this order: where the value is NaN, the comparison is false and the range stays.
                store(low, place, B.min(value, load(low, place, LANES)), LANES)
                store(high, place, B.max(value, load(high, place, LANES)), LANES)
                values.append(value)
            upper = upper_halves(*values, isa=self._isa)
            store(largest, 0, B.max(load(largest, 0, PAIR), upper + upper), PAIR)
            store(self.codes, code_at + pair * PAIR, codes_of(upper), PAIR)

    def _emit_clamp(self, out: Buffer, at: Expr, row: Row) -> None:
        """Emit one row's values clamped. Not among the increments: full vectors that are stored between them hold them up."""
        spec = self.statistics.spec
        for offset, _ in row.offsets():
            value = load(self.source, at + offset, LANES)
            value = B.max(value, splat(B.float32(spec.low), LANES)) if not math.isinf(spec.low) else value
            value = B.min(value, splat(B.float32(spec.high), LANES)) if not math.isinf(spec.high) else value
            store(out, at + offset, value, LANES)

    def _emit_counts(self, code_at: Expr) -> None:
        """Emit the increments of two vectors."""
        for four in range(0, PAIR, 4):
            for_codes(self.codes, code_at + four, lambda code, lane: self.statistics.count(code, lane % TABLES))
