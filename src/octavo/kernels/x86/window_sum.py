"""Sums of the activations under each output pixel's window, which correct for the zero point of asymmetric weights.

sum(x * (w - z)) = sum(x * w) - z * sum(x), and sum(x) is the same for every output channel of a group: it is computed once for
each pixel, before the channels. Padding lies in the scratch as the input's zero point and counts like any other value.

    for each row of the input, each four pixels of an output row:  dot products with ones, their lanes added across the four
    for each output row, each 16 pixels:                           the sums of its rows of taps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..vectors import Expr
from . import vector as v
from .geometry import Geometry

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
        What every sum is multiplied by, and what it counts from.
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
        geometry, columns = self.geometry, self.geometry.columns
        sums = T.alloc_buffer((self.block * columns + v.LANES,), "int32")
        taps = geometry.reduction.taps
        if columns == 1:
            self._emit_line(x, base, geometry.row_stride, rows, taps, sums, T.int32(0), self._finished)
        elif not taps or taps[0][0] == 1:
            with T.serial(0, rows) as row:
                first = T.Bind(base + row * geometry.row_stride)
                self._emit_line(x, first, geometry.column_stride, columns, taps[1:], sums, T.Bind(row * columns), self._finished)
        else:
            self._emit_rows_of_taps(x, base, rows, sums)
        return sums

    def _emit_rows_of_taps(self, x: Expr, base: Expr, rows: Expr, sums: Expr) -> None:
        """Emit the sums of every row of the input under windows one row high, then those of the rows of each window."""
        geometry, columns = self.geometry, self.geometry.columns
        (count, distance), *rest = geometry.reduction.taps
        row_size = geometry.row_stride // self.row_step
        dilation = distance // row_size
        pitch = -(-columns // v.LANES) * v.LANES
        most = (self.block - 1) * self.row_step + dilation * (count - 1) + 1
        lines = T.alloc_buffer((most * pitch,), "int32")
        with T.serial(0, (rows - 1) * self.row_step + (dilation * (count - 1) + 1)) as row:
            first = T.Bind(base + row * row_size)
            self._emit_line(x, first, geometry.column_stride, columns, tuple(rest), lines, T.Bind(row * pitch))
        with T.serial(0, rows) as row, T.serial(0, pitch // v.LANES) as vector:
            at = T.Bind(row * (self.row_step * pitch) + vector * v.LANES)
            total = v.load(lines, at, v.LANES)
            for tap in range(1, count):
                total = total + v.load(lines, at + tap * (dilation * pitch), v.LANES)
            # What lies behind the row's last pixel is written over by the next row's.
            v.store(sums, row * columns + vector * v.LANES, self._finished(total, v.LANES), v.LANES)

    def _emit_line(
        self,
        x: Expr,
        base: Expr,
        stride: int,
        count: Expr,
        taps: tuple[tuple[int, int], ...],
        sums: Expr,
        at: Expr,
        finished: Callable[[Expr, int], Expr] = lambda total, _: total,
    ) -> None:
        """Emit the sums of `count` windows that begin `stride` bytes apart, to sums[at] and on, and up to 3 values more."""

        def batch(first: Expr, places: list[Expr]) -> None:
            starts = [T.Bind(base + place * stride) for place in places]
            v.store(sums, at + first, finished(self._batch(x, starts, taps), _PIXELS), _PIXELS)

        done: Expr = 0
        if (walk := ShortRuns.of(self.geometry.reduction.run, stride)) is not None:
            done = _over_whole(
                0,
                count,
                v.LANES,
                lambda first: v.store(
                    sums, at + first, finished(walk.sums(x, T.Bind(base + first * stride), taps), v.LANES), v.LANES
                ),
            )
        done = _over_whole(done, count, _PIXELS, lambda first: batch(first, [first + pixel for pixel in range(_PIXELS)]))
        if isinstance(count, int) and done == count:
            return
        with T.If(T.int32(0) + done < count), T.Then():  # the last window fills up the batch
            batch(done, [T.min(done + pixel, T.int32(0) + count - 1) for pixel in range(_PIXELS)])

    def _finished(self, total: Expr, lanes: int) -> Expr:
        """Return start + factor * total."""
        value = total if self.factor == 1 else total * T.broadcast(T.int32(self.factor), lanes)
        return value + T.broadcast(T.int32(self.start), lanes) if self.start else value

    def _batch(self, x: Expr, starts: list[Expr], taps: tuple[tuple[int, int], ...]) -> Expr:
        """Emit the sums of four windows and return them, int32x4."""
        run = self.geometry.reduction.run
        is_scalar = run < 16 and not self.has_slack
        lanes = 1 if is_scalar else 16 if run >= 64 else 8 if run >= 32 else 4
        totals = T.alloc_buffer((_PIXELS * lanes,), "int32", scope="local")
        for pixel in range(_PIXELS):
            zero = T.int32(0) if lanes == 1 else T.broadcast(T.int32(0), lanes)
            v.store(totals, pixel * lanes, zero, lanes)

        def add_run(distance: Expr) -> None:
            for pixel, start in enumerate(starts):
                if is_scalar:
                    _add_scalars(totals, pixel, x, start + distance, run)
            if not is_scalar:
                _add_vectors(totals, x, [start + distance for start in starts], run, lanes)

        _over_taps(taps, add_run)
        if is_scalar:
            return v.load(totals, 0, _PIXELS)
        return _sums_of_four([T.Bind(v.load(totals, pixel * lanes, lanes)) for pixel in range(_PIXELS)], lanes)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortRuns:
    """Sums over the runs of 16 windows at once, where so many lie in few registers.

    Parameters
    ----------
    loads
        First byte of each register, from the first window's on.
    steps
        Each product with ones: the loads it reads, the bytes of them in order (None: the load as it is), and which of every four
        bytes count.
    """

    loads: tuple[int, ...]
    steps: tuple[tuple[tuple[int, ...], tuple[int, ...] | None, int], ...]

    @staticmethod
    def of(run: int, stride: int) -> ShortRuns | None:
        """Return how to walk runs of `run` bytes, `stride` apart; None where it doesn't pay."""
        if run == stride and run in (4, 8, 16, 32):  # window after window: every fourth of a load is in one of them
            count = run // 4
            return ShortRuns(loads=tuple(64 * i for i in range(count)), steps=tuple(((i,), None, 4) for i in range(count)))
        span = (v.LANES - 1) * stride + run
        if run > 16 or not 64 < span <= 128:
            return None
        steps: list[tuple[tuple[int, ...], tuple[int, ...] | None, int]] = []
        for start in range(0, run, 4):
            used = min(4, run - start)
            bytes_ = [window * stride + start + min(byte, used - 1) for window in range(v.LANES) for byte in range(4)]
            steps.append(((0, 1), tuple(byte if byte < 64 else byte + 128 - span for byte in bytes_), used))
        return ShortRuns(loads=(0, span - 64), steps=tuple(steps))

    def sums(self, x: Expr, at: Expr, taps: tuple[tuple[int, int], ...]) -> Expr:
        """Emit the sums of 16 windows, the first at x[at], over all taps; return them, int32x16."""
        in_order = [step for step in self.steps if step[1] is None]
        totals = T.alloc_buffer((max(1, len(in_order)) * v.LANES,), "int32", scope="local")
        for index in range(max(1, len(in_order))):
            v.store(totals, index * v.LANES, T.broadcast(T.int32(0), v.LANES), v.LANES)

        def add_runs(distance: Expr) -> None:
            loaded = [T.Bind(v.load(x, at + distance + start, 64)) for start in self.loads]
            for number, (sources, order, used) in enumerate(self.steps):
                bytes_ = loaded[sources[0]]
                if order is not None:
                    bytes_ = tirx.Shuffle([loaded[source] for source in sources], [T.int32(byte) for byte in order])
                ones = T.reinterpret("int8x64", T.broadcast(T.int32(0x01010101 >> 8 * (4 - used)), v.LANES))
                index = number * v.LANES if order is None else 0
                v.store(totals, index, v.dot(v.load(totals, index, v.LANES), bytes_, ones), v.LANES)

        _over_taps(taps, add_runs)
        parts = [T.Bind(v.load(totals, index * v.LANES, v.LANES)) for index in range(max(1, len(in_order)))]
        while len(parts) > 1:
            parts = [_pair_sums(parts[i], parts[i + 1]) for i in range(0, len(parts), 2)]
        return parts[0]


def _pair_sums(a: Expr, b: Expr) -> Expr:
    """Return the sums of neighbours in a and then in b, int32x16."""
    even, odd = (tirx.Shuffle([a, b], [T.int32(lane) for lane in range(start, 2 * v.LANES, 2)]) for start in (0, 1))
    return T.Bind(even + odd)


def _over_whole(done: Expr, count: Expr, size: int, body: Callable[[Expr], None]) -> Expr:
    """Emit `body(first)` for every whole batch of `size` windows from `done` on, and return how many are done then."""
    batches = T.floordiv(T.int32(0) + count - done, size)
    if isinstance(done, int) and isinstance(count, int):
        batches = (count - done) // size
        if not batches:
            return done
    with T.serial(0, batches) as index:
        body(T.Bind(done + index * size))
    return done + batches * size if isinstance(batches, int) else T.Bind(done + batches * size)


def _ones_from(start: int, size: int, end: int | None = None) -> Expr:
    """Return int8 x size that is 1 at [start; end) and 0 elsewhere."""
    if start == 0 and end is None:
        return T.broadcast(T.int8(1), size)
    # Picked from two constants: TVM's analysis of ranges fails on a vector of comparisons, should it be given a name.
    indices = [T.int32(size * (start <= index < (size if end is None else end))) for index in range(size)]
    return tirx.Shuffle([T.broadcast(T.int8(0), size), T.broadcast(T.int8(1), size)], indices)


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


def _add_scalars(totals: Expr, pixel: int, x: Expr, at: Expr, run: int) -> None:
    value = totals[pixel]
    for byte in range(run):
        value = value + T.cast(x[at + byte], "int32")
    T.buffer_store(totals, value, [pixel])


def _add_vectors(totals: Expr, x: Expr, starts: list[Expr], run: int, lanes: int) -> None:
    """Emit the dot products with ones of the runs at `starts`, one vector of sums for each."""
    size = 4 * lanes

    def add(distance: Expr, ones: Expr) -> None:
        for pixel, start in enumerate(starts):
            bytes_, index = v.load(x, start + distance, size), pixel * lanes
            v.store(totals, index, v.dot(v.load(totals, index, lanes), bytes_, ones, lanes), lanes)

    if run < size:  # only with slack: the bytes past the run count 0
        add(0, _ones_from(0, size, run))
        return
    if run // size == 1:
        add(0, _ones_from(0, size))
    else:
        with T.serial(0, run // size) as chunk:
            add(chunk * size, _ones_from(0, size))
    if run % size:  # the last load ends with the run; what the loop has counted counts 0
        add(run - size, _ones_from(size - run % size, size))


def _sums_of_four(values: list[Expr], lanes: int) -> Expr:
    """Return the sum of each of four vectors' lanes, int32x4."""
    size = 4 * lanes

    def folded(a: Expr, b: Expr, unit: int) -> Expr:
        """Add the halves of each 128-bit block of a to each other, and those of b: `unit` bytes of a and of b by turns."""
        first, second = (T.reinterpret(f"uint8x{size}", value) for value in (a, b))
        halves = [T.reinterpret(f"int32x{lanes}", v.interleave(first, second, size, unit, high=high)) for high in (False, True)]
        return T.Bind(halves[0] + halves[1])

    total = folded(folded(values[0], values[1], 4), folded(values[2], values[3], 4), 8)
    while lanes > _PIXELS:
        lanes //= 2
        low, high = (tirx.Shuffle([total], [T.int32(lane) for lane in range(start, start + lanes)]) for start in (0, lanes))
        total = T.Bind(low + high)
    return total
