"""One strip of a depthwise convolution: `outputs` neighbouring columns by a block of channels, row by row down the image.

It interleaves the input, adds up products and shifted sums, and hands the sums to the epilogue. Where the strip lies and where
its input does, whoever emits it says (depthwise.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from ..conv.spec import Conv2dSpec
from ..language.interleave import interleave_four
from ..language.rounding import MAGIC_BITS
from ..language.vectors import Expr, load, store, values_by_turn
from .windows import Window

UNROLLED_ROWS = 5  # kernel rows written out; more are a loop


@dataclass(frozen=True, kw_only=True, slots=True)
class Channels:
    """A block of `width` channels from `start` on.

    Parameters
    ----------
    start, width
        Output channels.
    packed, weights, shifts
        First of its lanes in bias and multiplier, of its packed weights, and of its shifts.
    is_shifted
        Whether some of its weights are shifted.
    """

    start: Expr
    width: int
    packed: Expr
    weights: Expr
    shifts: Expr
    is_shifted: bool


Stores = tuple[tuple[int, Expr], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Strip:
    """Where a strip of outputs finds its input: column c of row y begins at buffer[at + y * row_bytes + columns[c]].

    Parameters
    ----------
    buffer, at, row_bytes, columns
        In bytes, for the first channel of a block.
    inside
        Whether each column lies in the image; None where all do. Those that don't begin at some column that does.
    top
        The input row of the first kernel row of the first output, from -padding on.
    padding
        uint8, the value of columns and rows outside the image; None where there are none.
    stored
        The outputs in the order of their stores, and how far each lies from the strip's first one. One beside a narrow image goes
        where another is stored later.
    """

    buffer: Expr
    at: Expr
    row_bytes: int
    columns: dict[int, Expr]
    interior: dict[int, Expr] | None
    top: Expr
    padding: Expr | None
    stored: Stores


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftedSums:
    """What all outputs of a row have too much, shift * sum(x), for each of 4 accumulators.

    Parameters
    ----------
    totals
        int32 lanes, accumulator by accumulator; from MAGIC_BITS on where outputs are.
    common
        The part of the totals that two rows of outputs share, laid out alike; None where each row is summed for itself.
    """

    totals: Expr
    common: Expr | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The interleaved rows under a row of outputs.

    Parameters
    ----------
    taps
        uint8, in registers: four columns by four columns, each accumulator by accumulator.
    width
        Bytes of one accumulator's.
    places
        First byte of each kernel row; none where no row is kept, and only four columns exist at a time.
    """

    taps: Expr
    width: int
    places: tuple[int, ...]

    def at(self, ky: Expr, four: int, accumulator: int) -> int:
        """Return where the four columns number `four` of a kernel row lie."""
        return (self.places[ky] + four * 4 * self.width if self.places else 0) + accumulator * self.width

    def columns(self, ky: Expr, four: int, accumulator: int) -> Expr:
        """Return four interleaved columns of one kernel row and accumulator."""
        return load(self.taps, self.at(ky, four, accumulator), self.width)

    def below(self, stride: int) -> Rows:
        """Return them for the next row of outputs: new rows take the places of those that it doesn't read."""
        return dataclasses.replace(self, places=self.places[stride:] + self.places[:stride])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StripEmitter(ABC):
    """Emits the strips of one layer.

    Parameters
    ----------
    spec, window
        The convolution, and what an interleaved window serves.
    kept_rows
        Interleaved rows that stay in registers for the row of outputs below.
    shift
        That of every weight, int8; None where the channels have shifts of their own, or none.
    is_magic
        Whether sums count from MAGIC_BITS on where they are shifted, so that they may be subtracted in float32.
    epilogue, channel_values
        What makes outputs of sums, and the names of the constants that it reads.
    operands, parameters, out
        The kernel's buffers: constants by name, scales and zero points of run time, the result.
    """

    spec: Conv2dSpec
    window: Window
    kept_rows: int
    shift: int | None
    is_magic: bool
    epilogue: Any
    channel_values: tuple[str, ...]
    operands: Mapping[str, Expr]
    parameters: Expr | None
    out: Expr

    def emit(self, strip: Strip, out_at: Expr, rows: Expr, channels: Channels) -> None:
        """Emit all rows of a strip; interleaved rows that the next output row reads, too, are handed down."""
        spec, width = self.spec, channels.width
        kernel_rows, kept = spec.kernel[0], self.kept_rows
        row_size = len(self.window.columns) * 4 * width
        taps = T.alloc_buffer((kernel_rows * row_size if kept else 4 * width,), "uint8", scope="local")
        places = tuple(ky * row_size for ky in range(kernel_rows)) if kept else ()
        above = Rows(taps=taps, width=width, places=places)
        for ky, four in itertools.product(range(kept), range(len(self.window.columns))):
            self._emit_interleaved(above, ky, four, strip, strip.top + ky, width)
        sums = self._emit_sums(channels) if channels.is_shifted else None
        at_once = 1 if sums is None or sums.common is None else 2
        weights_of = [values_by_turn(channels.weights) for _ in range(at_once)]
        shifts_of = [values_by_turn(channels.shifts) for _ in range(at_once)] if at_once > 1 else []
        with T.serial(0, rows if at_once == 1 else T.floordiv(rows + 1, 2)) as turn:
            under = above
            for number in range(at_once):
                with contextlib.ExitStack() as where_it_is:
                    row = T.Bind(turn * at_once + number)
                    if number:
                        where_it_is.enter_context(T.If(row < rows))
                        where_it_is.enter_context(T.Then())
                    here = dataclasses.replace(
                        channels,
                        weights=weights_of[number](turn),
                        shifts=shifts_of[number](turn) if shifts_of else channels.shifts,
                    )
                    self._emit_row(under, sums, strip, row, out_at, here, is_first=number == 0)
                under = under.below(spec.strides[0])
            # The next turn finds them where this one did: all are read before any is written.
            handed = [T.Bind(load(taps, place + at, width)) for place in under.places[:kept] for at in range(0, row_size, width)]
            for index, value in enumerate(handed):
                store(taps, index * width, value, width)

    def _emit_row(
        self, under: Rows, sums: ShiftedSums | None, strip: Strip, row: Expr, out_at: Expr, channels: Channels, *, is_first: bool
    ) -> None:
        """Emit one row of outputs; `is_first` of those that share sums."""
        spec, width = self.spec, channels.width
        kept = self.kept_rows
        top = T.Bind(strip.top + row * spec.strides[0])
        acc = self._emit_start(channels)
        if sums is not None and sums.common is None:
            store(sums.totals, 0, self._sums_start(width), width)

        def kernel_row(ky: Expr, weights: Expr) -> None:
            for four in range(len(self.window.columns)):
                if not kept or ky >= kept:
                    self._emit_interleaved(under, ky, four, strip, T.Bind(top + ky * spec.dilation[0]), width)
                for j in range(4):
                    self._emit_products(acc, under, ky, four, j, weights, width)
                    if sums is not None and sums.common is None:
                        self._emit_sum(sums.totals, sums.totals, under, ky, four, j, channels)

        row_weights = len(self.window.patterns) * 4 * width
        if spec.kernel[0] <= UNROLLED_ROWS:
            for ky in range(spec.kernel[0]):
                kernel_row(ky, channels.weights + ky * row_weights)
        else:
            with T.serial(0, spec.kernel[0]) as ky:
                kernel_row(ky, T.Bind(channels.weights + ky * row_weights))
        if sums is not None and sums.common is not None:
            self._emit_shared_sums(sums, under, channels, is_first=is_first)
        row_at = T.Bind(out_at + row * (spec.out_width * spec.out_channels))
        self._emit_outputs(acc, sums, [(pixel, row_at + place) for pixel, place in strip.stored], channels)

    def _emit_interleaved(self, under: Rows, ky: Expr, four: int, strip: Strip, row: Expr, width: int) -> None:
        """Emit the interleaving of four columns of one row of the input, as kernel row ky."""

        def loaded(column: int) -> Expr:
            value = load(strip.buffer, start + strip.columns[column], width)
            if strip.interior is not None:
                value = T.Select(strip.interior[column], value, T.broadcast(strip.padding, width))
            return T.Bind(value)

        def keep(vectors: list[Expr]) -> None:
            for j, each in enumerate(vectors):
                store(under.taps, under.at(ky, four, j), self._as_multiplied(each), width)

        start = T.Bind(strip.at + row * strip.row_bytes)
        columns = self.window.columns[four]
        may_be_outside = strip.padding is not None and max(self.spec.padding[0], self.spec.padding[2]) > 0

        def interleave() -> None:
            vectors = [loaded(column) for column in columns]
            keep(interleave_four([vectors[min(i, len(vectors) - 1)] for i in range(4)], width))

        if not may_be_outside:
            interleave()
            return
        with T.If(T.And(row >= 0, row < self.spec.in_height)):
            with T.Then():
                interleave()
            with T.Else():
                keep([T.broadcast(strip.padding, width)] * 4)

    def _as_multiplied(self, value: Expr) -> Expr:
        """Return interleaved columns as the product takes them."""
        return value

    @abstractmethod
    def _dot(self, acc: Expr, columns: Expr, weights: Expr, lanes: int) -> Expr:
        """Return sums and the products of interleaved columns with their weights."""

    def _emit_start(self, channels: Channels) -> Expr:
        """Emit what the sums of all outputs of a row start from, the bias, and return their buffer."""
        lanes, outputs = channels.width // 4, self.window.outputs
        acc = T.alloc_buffer((outputs * channels.width,), "int32", scope="local")
        for j in range(4):
            bias = T.Bind(self._load_lanes("bias", channels, j))
            for pixel in range(outputs):
                store(acc, (pixel * 4 + j) * lanes, bias, lanes)
        return acc

    @abstractmethod
    def _emit_outputs(self, acc: Expr, sums: ShiftedSums | None, targets: Sequence[tuple[int, Expr]], channels: Channels) -> None:
        """Emit the outputs of one row of a strip, each to its place, in this order."""

    def _load_lanes(self, label: str, channels: Channels, accumulator: int) -> Expr:
        """Return the values of an accumulator's channels."""
        lanes = channels.width // 4
        return load(self.operands[label], channels.packed + accumulator * lanes, lanes)

    def _emit_sums(self, channels: Channels) -> ShiftedSums:
        """Emit the buffers for the sums of a strip."""
        shares = self.kept_rows > 0 and self.spec.strides[0] == 1
        buffers = [T.alloc_buffer((channels.width,), "int32", scope="local") for _ in range(1 + shares)]
        return ShiftedSums(totals=buffers[0], common=buffers[1] if shares else None)

    def _sums_start(self, width: int) -> Expr:
        return T.broadcast(T.int32(MAGIC_BITS if self.is_magic else 0), width)

    def _emit_shared_sums(self, sums: ShiftedSums, under: Rows, channels: Channels, *, is_first: bool) -> None:
        """Emit the totals of a row of outputs; of two that share all kernel rows but the first one's first, the other's last."""
        last = self.spec.kernel[0] - 1
        fours = list(itertools.product(range(len(self.window.columns)), range(4)))
        if is_first:
            store(sums.common, 0, self._sums_start(channels.width), channels.width)
            for ky in range(1, last + 1):
                for four, j in fours:
                    self._emit_sum(sums.common, sums.common, under, ky, four, j, channels)
        for four, j in fours:
            source = sums.totals if four else sums.common
            self._emit_sum(source, sums.totals, under, 0 if is_first else last, four, j, channels)

    def _emit_sum(
        self, source: Expr, target: Expr, under: Rows, ky: Expr, four: int, accumulator: int, channels: Channels
    ) -> None:
        """Emit target = source + shift * sum(x) over four interleaved columns."""
        width, lanes = channels.width, channels.width // 4
        if self.shift is not None:
            shift = T.broadcast(T.int8(self.shift), width)
        else:
            shift = T.Bind(load(self.operands["shifts"], channels.shifts + accumulator * width, width))
        at = accumulator * lanes
        store(target, at, self._dot(load(source, at, lanes), under.columns(ky, four, accumulator), shift, lanes), lanes)

    def _emit_products(self, acc: Expr, under: Rows, ky: Expr, four: int, accumulator: int, weights: Expr, width: int) -> None:
        """Emit the products of four interleaved columns with the weights of one kernel row."""
        lanes = width // 4
        patterns = {pattern: index for index, pattern in enumerate(self.window.patterns)}
        columns = T.Bind(under.columns(ky, four, accumulator))
        for pixel, pattern in self.window.uses[four]:
            packed = load(self.operands["weights"], weights + (patterns[pattern] * 4 + accumulator) * width, width)
            index = (pixel * 4 + accumulator) * lanes
            store(acc, index, self._dot(load(acc, index, lanes), columns, packed, lanes), lanes)
