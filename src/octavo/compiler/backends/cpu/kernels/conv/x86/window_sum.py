"""Sums of the activations under each output pixel's window, which correct for the zero point of asymmetric weights.

sum(x * (w - z)) = sum(x * w) - z * sum(x), and sum(x) is the same for every output channel of a group: it is computed once for
each pixel, before the channels. Padding lies in the scratch as the input's zero point and counts like any other value.

    for some columns of output pixels, 16 or 4     (what registers hold of one row)
      for each output row:                         dot products of its rows of taps, but for those that a row before shares;
                                                   their lanes added up, and their sums
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .......runtime.size import dimension, is_open
from ...language.interleave import interleave
from ...language.vectors import Expr, bound, least, shuffled, store, store_partial
from ...language.x86 import vector as v
from ..loops.geometry import Geometry

_PIXELS = 4  # of a batch: the dwords of a 128-bit block


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowSums:
    """Emits the sums of a block of output rows.

    Parameters
    ----------
    geometry
        Where the windows lie.
    block
        Output rows of a block, at most.
    row_step
        Rows of the input from one output row to the next one.
    factor, start
        What every sum is multiplied by (an int8), and what it counts from.
    has_slack
        Whether 64 bytes after the window may be read.
    """

    geometry: Geometry
    block: int
    row_step: int
    factor: int
    start: int
    has_slack: bool

    def emit(self, x: Expr, base: Expr, rows: Expr) -> Expr:
        """Emit the sums of `rows` output rows, the first window at x[base], and return their buffer: int32, row by row."""
        sums = T.alloc_buffer((dimension(self.block * self.geometry.columns + v.LANES),), "int32")
        if self.geometry.columns == 1:
            self._emit_column(x, base, rows, sums)
        else:
            self._emit_rows(x, base, rows, sums)
        return sums

    def _emit_column(self, x: Expr, base: Expr, rows: Expr, sums: Expr) -> None:
        """Emit the sums of one window after the other, row_stride apart, and of up to 3 windows more."""
        stride, taps = self.geometry.row_stride, self.geometry.reduction.taps
        done: Expr = 0
        if (walk := walk_of(self.geometry.reduction.run, stride, taps)) is not None:

            def walked(first: Expr) -> None:
                total = walk.sums(x, T.Bind(base + first * stride), taps, self.factor, self.start)
                store(sums, first, total, v.LANES)

            done = _over_all(done, rows, v.LANES, walked)

        def batch(first: Expr, places: list[Expr]) -> None:
            starts = [T.Bind(base + place * stride) for place in places]
            store(sums, first, self._batch(x, starts, taps, self.start), _PIXELS)

        done = _over_all(done, rows, _PIXELS, lambda first: batch(first, [first + pixel for pixel in range(_PIXELS)]))
        if isinstance(rows, int) and done == rows:
            return
        with T.If(T.int32(0) + done < rows), T.Then():  # the last window fills up the batch
            batch(done, [T.min(done + pixel, T.int32(0) + rows - 1) for pixel in range(_PIXELS)])

    def _emit_rows(self, x: Expr, base: Expr, rows: Expr, sums: Expr) -> None:
        """Emit the sums of some columns after others, each from the first row on: what its windows share is computed once."""
        geometry, columns = self.geometry, bound(self.geometry.columns)
        (count, distance), *rest = geometry.reduction.taps
        stride, taps = geometry.column_stride, tuple(rest)
        # Output rows that lie `spacing` from each other read the same rows of the input, `steps` taps later.
        dilation = distance * self.row_step // geometry.row_stride if count > 1 else 1
        common = math.gcd(dilation, self.row_step)
        spacing, steps = dilation // common, self.row_step // common
        kept = max(0, count - steps)
        before = -(-kept // steps)
        walk = walk_of(geometry.reduction.run, stride, taps) if isinstance(columns, int) and columns >= v.LANES else None
        lanes = _PIXELS if walk is None else v.LANES
        start = self.start if count == 1 else 0

        def line(first: Expr, at: Expr) -> Expr:
            """Emit what one row of the input adds to the windows from column `first` on."""
            if walk is not None:
                return T.Bind(walk.sums(x, T.Bind(base + at + first * stride), taps, self.factor, start))
            places = [T.min(first + pixel, T.int32(0) + columns - 1) for pixel in range(lanes)]
            return T.Bind(self._batch(x, [T.Bind(base + at + place * stride) for place in places], taps, start))

        def group(first: Expr) -> None:
            lines = T.alloc_buffer((max(1, kept) * lanes,), "int32", scope="local")
            with T.serial(0, 1 if spacing == 1 else T.min(T.int32(spacing), rows)) as top:
                for index in range(kept):
                    store(lines, index * lanes, T.broadcast(T.int32(0), lanes), lanes)
                # Rows before the first one fill `lines`; what they leave in its place is written over.
                with T.serial(0, before + T.floordiv(rows - top + (spacing - 1), spacing)) as index:
                    row = T.Bind((index - before) * spacing)
                    at = [row * geometry.row_stride + tap * distance for tap in range(kept, count)]
                    at = [top * geometry.row_stride + (T.max(each, T.int32(0)) if before else each) for each in at]
                    parts = [T.Bind(v.load(lines, index * lanes, lanes)) for index in range(kept)]
                    parts += [line(first, each) for each in at]
                    total = sum(parts[1:], parts[0])
                    if self.start and count > 1:
                        total = total + T.broadcast(T.int32(self.start), lanes)
                    place = (top + (T.max(row, T.int32(0)) if before else row)) * columns + first
                    store_partial(sums, place, total, lanes, least(lanes, columns), "int32")
                    for index, part in enumerate(parts[count - kept :]):
                        store(lines, index * lanes, part, lanes)

        _over_all(0, columns, lanes, group)
        if not isinstance(columns, int):
            with T.If(T.floormod(columns, lanes) != 0), T.Then():
                group(T.Bind(T.max(columns - lanes, T.int32(0))))
        elif columns % lanes:  # the last group overlaps its neighbour, if it has one
            group(T.int32(max(columns - lanes, 0)))

    def _batch(self, x: Expr, starts: list[Expr], taps: tuple[tuple[int, int], ...], start: int) -> Expr:
        """Emit start + factor * the sums of four windows and return them, int32x4."""
        run = self.geometry.reduction.run
        is_scalar = run < 16 and not self.has_slack
        lanes = 1 if is_scalar else 16 if run >= 64 else 8 if run >= 32 else 4
        totals = T.alloc_buffer((_PIXELS * lanes,), "int32", scope="local")
        for pixel in range(_PIXELS):
            store(totals, pixel * lanes, _in_first_lane(start, lanes), lanes)

        def add_run(distance: Expr) -> None:
            places = [place + distance for place in starts]
            if is_scalar:
                for pixel, place in enumerate(places):
                    _add_scalars(totals, pixel, x, place, run, self.factor)
            else:
                _add_vectors(totals, x, places, run, lanes, self.factor)

        _over_taps(taps, add_run)
        if is_scalar:
            return v.load(totals, 0, _PIXELS)
        return sums_of_four([T.Bind(v.load(totals, pixel * lanes, lanes)) for pixel in range(_PIXELS)], lanes)


@dataclass(frozen=True, slots=True)
class DenseRuns:
    """Sums of 16 windows that lie side by side and fill as many registers as a window has dwords.

    The sums of the dwords of two registers become the words of one. Registers are added up until two words of each window
    remain, and the product with the factor adds those.

    Parameters
    ----------
    dwords
        Of a window: 2, 4, 8 or 16.
    """

    dwords: int

    def sums(self, x: Expr, at: Expr, taps: tuple[tuple[int, int], ...], factor: int, start: int) -> Expr:
        """Emit start + factor * the sums of 16 windows, the first at x[at], and return them, int32x16."""
        assert all(extent == 1 for extent, _ in taps), "one run is a window"
        words: list[Expr] = []
        ones = T.broadcast(T.int8(1), 4 * v.LANES)
        for first in range(0, self.dwords, 2):
            low, high = (v.load(x, at + 64 * (first + odd), 64) for odd in (0, 1))
            upper = v.dot(T.broadcast(T.int32(0), v.LANES), high, ones) << T.broadcast(T.int32(16), v.LANES)
            words.append(T.Bind(v.dot(upper, low, ones)))
        for unit in (4, 8, 16):
            if len(words) > 1:
                words = [_folded(words[i], words[i + 1], unit, v.LANES) for i in range(0, len(words), 2)]
        pairs = shuffled([T.reinterpret("int16x32", words[0])], self._order())
        return v.dot_int16(T.broadcast(T.int32(start), v.LANES), pairs, T.broadcast(T.int16(factor), 2 * v.LANES))

    def _order(self) -> list[int]:
        """Return where the two words of each window are, once its register and its neighbours are added up."""
        order: list[int] = []
        # Dwords from one window of a register to the next, or from four pairs of registers to the next four.
        reach = min(self.dwords, 8)
        for window in range(v.LANES):
            register, place = divmod(window, v.LANES // self.dwords)
            pair, is_second = divmod(register, 2)
            first = reach * (place + pair // 4) + pair % 4
            order += [2 * dword + is_second for dword in (first, first + reach // 2)]
        return order


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortRuns:
    """Sums over the runs of 16 windows at once, where so many lie in two registers.

    Parameters
    ----------
    distance
        From the first byte of one register to that of the other one.
    steps
        Each product: the bytes it reads of both registers, and how many of every four count.
    """

    distance: int
    steps: tuple[tuple[tuple[int, ...], int], ...]

    def sums(self, x: Expr, at: Expr, taps: tuple[tuple[int, int], ...], factor: int, start: int) -> Expr:
        """Emit start + factor * the sums of 16 windows, the first at x[at], over all taps; return them, int32x16."""
        totals = T.alloc_buffer((v.LANES,), "int32", scope="local")
        store(totals, 0, T.broadcast(T.int32(start), v.LANES), v.LANES)

        def add_runs(tap: Expr) -> None:
            loaded = [T.Bind(v.load(x, at + tap + first, 64)) for first in (0, self.distance)]
            for order, used in self.steps:
                bytes_ = shuffled(loaded, order)
                store(totals, 0, v.dot(v.load(totals, 0, v.LANES), bytes_, _first_of_four(factor, used)), v.LANES)

        _over_taps(taps, add_runs)
        return v.load(totals, 0, v.LANES)


def walk_of(run: int, stride: int, taps: tuple[tuple[int, int], ...]) -> DenseRuns | ShortRuns | None:
    """Return how to sum runs of `run` bytes, `stride` apart, of 16 windows at once; None where it doesn't pay."""
    if is_open(stride):
        return None
    if run == stride and run in (8, 16, 32, 64) and all(extent == 1 for extent, _ in taps):
        return DenseRuns(run // 4)
    span = (v.LANES - 1) * stride + run
    if run > 16 or not 64 <= span <= 128:
        return None
    steps: list[tuple[tuple[int, ...], int]] = []
    for first in range(0, run, 4):
        used = min(4, run - first)
        bytes_ = [window * stride + first + min(byte, used - 1) for window in range(v.LANES) for byte in range(4)]
        steps.append((tuple(byte if byte < 64 else byte + 128 - span for byte in bytes_), used))
    return ShortRuns(distance=span - 64, steps=tuple(steps))


def _over_all(done: Expr, count: Expr, size: int, body: Callable[[Expr], None]) -> Expr:
    """Emit `body(first)` for every whole batch of `size` windows from `done` on, and return how many are done then."""
    batches = T.floordiv(T.int32(0) + count - done, size)
    if isinstance(done, int) and isinstance(count, int):
        batches = (count - done) // size
        if not batches:
            return done
    with T.serial(0, batches) as index:
        body(T.Bind(done + index * size))
    return done + batches * size if isinstance(batches, int) else T.Bind(done + batches * size)


def _factors(factor: int, start: int, size: int, end: int | None = None) -> Expr:
    """Return int8 x size that is `factor` at [start; end) and 0 elsewhere."""
    if start == 0 and end is None:
        return T.broadcast(T.int8(factor), size)
    return _either("int8", factor, [start <= index < (size if end is None else end) for index in range(size)])


def _either(dtype: str, value: int, places: list[bool]) -> Expr:
    """Return a vector of `value` at these places and 0 elsewhere."""
    # Picked from two constants: TVM's analysis of ranges fails on a vector of comparisons, should it be given a name.
    size = len(places)
    constants = [T.broadcast(tirx.const(each, dtype), size) for each in (0, value)]
    return shuffled(constants, [size * place for place in places])


def _in_first_lane(value: int, lanes: int) -> Expr:
    """Return int32 x lanes: `value`, then zeros."""
    if lanes == 1:
        return T.int32(value)
    return _either("int32", value, [lane == 0 for lane in range(lanes)]) if value else T.broadcast(T.int32(0), lanes)


def _first_of_four(value: int, used: int = 4) -> Expr:
    """Return int8x64: the first `used` of every four bytes are `value`, the others 0."""
    dword = int.from_bytes(bytes([value & 0xFF] * used), "little")
    return T.reinterpret("int8x64", T.broadcast(T.int32(dword - (dword >> 31 << 32)), v.LANES))


def _over_taps(taps: tuple[tuple[int, int], ...], body: Callable[[Expr], None]) -> None:
    """Emit the loops over taps and `body(distance of the run)` inside."""

    def nest(at: Expr, taps: tuple[tuple[int, int], ...]) -> None:
        if not taps:
            body(at)
            return
        (extent, distance), rest = taps[0], taps[1:]
        with T.serial(0, extent) as tap:
            nest(at + tap * distance, rest)

    nest(T.int32(0), tuple(entry for entry in taps if entry[0] > 1))


def _add_scalars(totals: Expr, pixel: int, x: Expr, at: Expr, run: int, factor: int) -> None:
    value = totals[pixel]
    for byte in range(run):
        value = value + T.cast(x[at + byte], "int32") * factor
    T.buffer_store(totals, value, [pixel])


def _add_vectors(totals: Expr, x: Expr, starts: list[Expr], run: int, lanes: int, factor: int) -> None:
    """Emit the dot products with `factor` of the runs at `starts`, one vector of sums for each."""
    size = 4 * lanes

    def add(distance: Expr, factors: Expr) -> None:
        for pixel, start in enumerate(starts):
            bytes_, index = v.load(x, start + distance, size), pixel * lanes
            store(totals, index, v.dot(v.load(totals, index, lanes), bytes_, factors, lanes), lanes)

    if run < size:  # only with slack: the bytes past the run count 0
        add(0, _factors(factor, 0, size, run))
        return
    if run // size == 1:
        add(0, _factors(factor, 0, size))
    else:
        with T.serial(0, run // size) as chunk:
            add(chunk * size, _factors(factor, 0, size))
    if run % size:  # the last load ends with the run; what the loop has counted counts 0
        add(run - size, _factors(factor, size - run % size, size))


def sums_of_four(values: list[Expr], lanes: int) -> Expr:
    """Return the sum of each of four vectors' lanes, int32x4."""
    halves = [_folded(values[i], values[i + 1], 4, lanes) for i in (0, 2)]
    total = _folded(halves[0], halves[1], 8, lanes)
    while lanes > _PIXELS:
        lanes //= 2
        low, high = (shuffled([total], range(start, start + lanes)) for start in (0, lanes))
        total = T.Bind(low + high)
    return total


def _folded(a: Expr, b: Expr, unit: int, lanes: int) -> Expr:
    """Add what lies 8 bytes apart in a, and in b, of each 128-bit block: `unit` bytes of a and of b by turns.

    With `unit` 16 the blocks themselves: even ones to odd ones, those of a and then those of b.
    """
    if unit == 16:
        blocks = [[lane for lane in range(2 * lanes) if lane // 4 % 2 == odd] for odd in (0, 1)]
        return T.Bind(shuffled([a, b], blocks[0]) + shuffled([a, b], blocks[1]))
    size = 4 * lanes
    first, second = (T.reinterpret(f"uint8x{size}", value) for value in (a, b))
    halves = [T.reinterpret(f"int32x{lanes}", interleave(first, second, size, unit, high=high)) for high in (False, True)]
    return T.Bind(halves[0] + halves[1])
