"""The observer in AVX-512: vectors for ranges and codes, then one increment for each value.

    for each block of rows x vectors      (it stays in the first-level cache)
      ranges in registers, codes of 32 values at a time into a buffer, the largest magnitude
      a block that holds NaN or infinity: again, value by value
      for each code: one increment        (and the clamp, which costs nothing beside it)

Increments are what bounds it, one a cycle. Statistics are those of the plain form in ../observe.py, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as B

from ...numerics.histogram import SHIFT
from ..observe import ObserveSpec, Statistics, clamped
from ..observe_state import TABLES
from ..vectors import Buffer, Expr, load, splat, store
from .vector import LANES, intrinsic

BLOCK = 2048  # values of a block, at most: their codes and themselves fit the first-level cache
_VECTORS = 8  # of a block: minima and maxima in 16 of the 32 registers
_LONGEST_ROW = 8192
_PAIR = 2 * LANES
_NOT_FINITE = 0xFF00  # exponent 255 in the upper half of the bits, moved left by one


def row_length(channels: int) -> int | None:
    """Return how many neighbouring values form a row: whole pairs of vectors and whole pixels; None if that is too long."""
    length = math.lcm(channels, _PAIR)
    if length > _LONGEST_ROW:
        return None
    while length * 2 <= _VECTORS * LANES:
        length *= 2
    return length


class VectorObserver:
    """Emits the observer of one spec."""

    def __init__(self, spec: ObserveSpec) -> None:
        self.spec = spec

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
        length = row_length(channels)
        rows = size // length if length is not None else 0
        if length is not None and rows:
            self._emit_rows(base, rows, length, channel_of)
        done = rows * (length or 0)
        if done < size:
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
            stride=length,
            codes=codes,
            least=least,
            greatest=greatest,
            statistics=self.statistics,
        )
        most = BLOCK // (min(_VECTORS, length // LANES) * LANES)
        with B.serial(0, -(-rows // most)) as part:
            first = B.Bind(part * most)
            count = B.Bind(B.min(B.int32(most), rows - first)) if rows % most else most
            whole, rest = divmod(length // LANES, _VECTORS)

            def group(column: Expr, vectors: int, first: Expr = first, count: Expr = count) -> None:
                at = B.Bind(base + first * length + column)
                block.emit(at, column, count, vectors, lambda lane: channel_of(column + lane))

            if whole:
                with B.serial(0, whole) as index:
                    group(B.Bind(index * (_VECTORS * LANES)), _VECTORS)
            if rest:
                group(B.int32(whole * _VECTORS * LANES), rest)
        with B.serial(0, length) as column:
            low, high = channel_of(column), channels + channel_of(column)
            ranges = self.statistics.ranges
            B.buffer_store(ranges, B.min(ranges[low], least[column]), [low])
            B.buffer_store(ranges, B.max(ranges[high], greatest[column]), [high])


class Block:
    """Emits the observation of blocks: some rows of neighbouring vectors, `stride` values apart.

    Parameters
    ----------
    source, out
        Where the values lie, and where they go clamped, at the same index; the two may be one buffer.
    codes
        uint16 scratch of at least one block.
    least, greatest
        float32 scratch by column: the running range of each lane.
    """

    def __init__(
        self,
        *,
        source: Buffer,
        out: Buffer | None,
        stride: int,
        codes: Buffer,
        least: Buffer,
        greatest: Buffer,
        statistics: Statistics,
    ) -> None:
        self.source, self.out, self.stride, self.codes = source, out, stride, codes
        self.least, self.greatest, self.statistics = least, greatest, statistics

    def emit(self, at: Expr, column: Expr, rows: Expr, vectors: int, channel_of: Callable[[Expr], Expr]) -> None:
        """Emit one block of `rows` x `vectors` (an even number) from index `at` on; `column` is its place in the ranges."""
        assert vectors % 2 == 0, "values are coded in pairs of vectors"
        low = B.alloc_buffer((vectors * LANES,), "float32", scope="local")
        high = B.alloc_buffer((vectors * LANES,), "float32", scope="local")
        largest = B.alloc_buffer((_PAIR,), "uint16", scope="local")
        store(largest, 0, splat(B.uint16(0), _PAIR), _PAIR)
        for j in range(vectors):
            store(low, j * LANES, load(self.least, column + j * LANES, LANES), LANES)
            store(high, j * LANES, load(self.greatest, column + j * LANES, LANES), LANES)
        with B.serial(0, rows) as row:
            self._emit_codes(B.Bind(at + row * self.stride), B.Bind(row * (vectors * LANES)), vectors, low, high, largest)
        worst = intrinsic(f"llvm.vector.reduce.umax.v{_PAIR}i16", "uint16", load(largest, 0, _PAIR))
        with B.If(worst < B.uint16(_NOT_FINITE)):
            with B.Then():
                for j in range(vectors):
                    store(self.least, column + j * LANES, load(low, j * LANES, LANES), LANES)
                    store(self.greatest, column + j * LANES, load(high, j * LANES, LANES), LANES)
            with B.Else(), B.serial(0, rows) as row, B.serial(0, vectors * LANES) as lane:
                index = B.Bind(at + row * self.stride + lane)
                self.statistics.widen(B.Bind(self.source[index]), index, channel_of(lane))
        if self.out is not None:
            with B.serial(0, rows) as row:
                self._emit_clamp(self.out, B.Bind(at + row * self.stride), vectors)
        with B.serial(0, rows) as row:
            self._emit_counts(B.Bind(row * (vectors * LANES)), vectors)

    def _emit_codes(self, at: Expr, code_at: Expr, vectors: int, low: Buffer, high: Buffer, largest: Buffer) -> None:
        """Emit the ranges and the codes of one row."""
        for pair in range(vectors // 2):
            halves: list[Expr] = []
            for j in (2 * pair, 2 * pair + 1):
                value = B.Bind(load(self.source, at + j * LANES, LANES))
                # In this order: where the value is NaN, the comparison is false and the range stays.
                store(low, j * LANES, B.min(value, load(low, j * LANES, LANES)), LANES)
                store(high, j * LANES, B.max(value, load(high, j * LANES, LANES)), LANES)
                halves.append(B.Bind(B.reinterpret(f"uint16x{_PAIR}", value)))
            upper = B.Bind(tirx.Shuffle(halves, [B.int32(2 * lane + 1) for lane in range(_PAIR)]))
            store(largest, 0, B.max(load(largest, 0, _PAIR), upper + upper), _PAIR)
            store(self.codes, code_at + pair * _PAIR, upper >> splat(B.uint16(SHIFT - 16), _PAIR), _PAIR)

    def _emit_clamp(self, out: Buffer, at: Expr, vectors: int) -> None:
        """Emit one row's values clamped. Not among the increments: full vectors that are stored between them hold them up."""
        spec = self.statistics.spec
        for j in range(vectors):
            value = load(self.source, at + j * LANES, LANES)
            value = B.max(value, splat(B.float32(spec.low), LANES)) if not math.isinf(spec.low) else value
            value = B.min(value, splat(B.float32(spec.high), LANES)) if not math.isinf(spec.high) else value
            store(out, at + j * LANES, value, LANES)

    def _emit_counts(self, code_at: Expr, vectors: int) -> None:
        """Emit the increments of one row."""
        for four in range(0, vectors * LANES, 4):
            packed = B.Bind(B.reinterpret("uint64", load(self.codes, code_at + four, 4)))
            for lane in range(4):
                code = (packed >> B.uint64(16 * lane)) & B.uint64(0xFFFF) if lane < 3 else packed >> B.uint64(48)
                self.statistics.count(B.Cast("int32", code), lane % TABLES)
