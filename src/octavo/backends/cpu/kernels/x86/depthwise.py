"""Depthwise convolution through vpdpbusd: four taps of a channel are brought side by side, then one instruction sums them.

    for each block of output rows
      for each block of 64, 32 or 16 channels
        for each strip of `outputs` neighbouring columns
          for each row, down the strip
            for each kernel row, each four columns of the input: interleave them, unless the row before has done so;
              for each output that they touch:  acc += dot(interleaved columns, that output's weights)

One interleaved window of four columns serves every output it touches: two outputs of a 3-wide row with stride 1. Where registers
allow, it also serves the rows below: each row of the input is interleaved once for a strip.
Columns in the padding are tested once for each strip, rows once for each row. Few channels or a channel multiplier make it work
on a padded copy of the rows instead.
Asymmetric weights w - zero_point have 9 bits. Where one leaves int8, all those of its channel are shifted into it, and with them
the zeros that meet the columns of other outputs: sum(x * w) = sum(x * (w + shift)) - shift * sum(x). So the last sum is over all
columns of an interleaved window, and the outputs that it serves share it; two rows of outputs share what their windows have in
common. Subtracting it costs nothing: sums that count from the bits of a large float32 may be read as such, and their difference
is the float32 that requantization starts from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ..isa import AVX2, AVX512_VNNI, AVX_VNNI
from ..rounding import MAGIC_BITS, MAGIC_REACH, float_difference
from ..schedule import NO_SCHEDULES, Schedules, Tunable, WindowSchedule, check_schedule
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec, Kernel, SumOutput
from ..vectors import Expr, chunks_for, prim_func, values_by_turn
from . import vector as v
from .depthwise_windows import Window, channel_blocks, pack_block, shift_into_int8, shifts_into_int8
from .epilogue import Group, channel_order
from .narrow import narrowed
from .packing import Int8Array, Weights
from .scratch import Scratch, padding_value
from .shares import balanced_block
from .wide_epilogue import epilogue_of

SCRATCH_BYTES = 64 * 1024  # of the copied input rows that one block reads once for each block of channels
INPUT_BYTES = 128 * 1024  # of the input rows themselves, where they are read in place
MAX_OUTPUTS = {AVX512_VNNI: 4, AVX_VNNI: 2, AVX2: 1}  # neighbouring pixels at once: four accumulator registers each
UNROLLED_ROWS = 5  # kernel rows written out; more are a loop
WIDEST = {AVX512_VNNI: 64, AVX_VNNI: 32, AVX2: 32}  # channels at once: four registers of int32
MAX_REGISTERS = {AVX512_VNNI: 24, AVX_VNNI: 0, AVX2: 0}  # that interleaved rows and sums may take together, for rows to stay


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
    """

    buffer: Expr
    at: Expr
    row_bytes: int
    columns: dict[int, Expr]
    inside: dict[int, Expr] | None
    top: Expr
    padding: Expr | None


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
        return v.load(self.taps, self.at(ky, four, accumulator), self.width)

    def below(self, stride: int) -> Rows:
        """Return them for the next row of outputs: new rows take the places of those that it doesn't read."""
        return dataclasses.replace(self, places=self.places[stride:] + self.places[:stride])


class Depthwise:
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    def __init__(
        self, spec: Conv2dSpec, weights: Weights, *, isa: str = AVX512_VNNI, schedules: Schedules = NO_SCHEDULES
    ) -> None:
        assert spec.groups == spec.in_channels, "a depthwise convolution has one input channel to a group"
        self.spec = spec
        self.isa = isa
        self.widest = WIDEST[isa]
        spread = spec.out_channels // spec.in_channels
        self.channels = max(spec.out_channels, 16)  # fewer than 16 are filled up in the scratch
        self.blocks_of_channels = channel_blocks(self.channels, self.widest)
        centered = weights.values[:, :, 0, :].astype(np.int64) - weights.zero_points
        centered = np.pad(centered, ((0, 0), (0, 0), (0, self.channels - spec.out_channels)))
        shifts = shifts_into_int8(centered)
        self.are_shifted = [bool(shifts[start : start + width].any()) for start, width in self.blocks_of_channels]
        self.shift = shift_into_int8(centered) if all(self.are_shifted) else None
        if self.shift is not None:
            shifts[:] = self.shift
        self.key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
        self.windows = self._windows()
        self.window, self.schedule = self._choose(schedules)
        cycles = self._row_cycles(self.window) * spec.batch * spec.out_height * self.channels / 64
        self.threads = chunks_for(spec.threads, cycles, spec.batch * spec.out_height)
        copied = spread > 1 or spec.in_channels < 16
        self.block = self._block_rows(SCRATCH_BYTES if copied else INPUT_BYTES)
        self.scratch = Scratch(spec=spec, block=self.block, channels=self.channels, spread=spread) if copied else None
        self.row_bytes = self.scratch.row_size if self.scratch is not None else spec.in_width * spec.in_channels
        self.epilogue = epilogue_of(spec, weights)
        self.channel_values = self.epilogue.channel_values(weights)
        values = (centered + shifts).astype(np.int8)
        bias = weights.folded_bias(spec.folded_zero_point)
        self.is_magic = self._fits_magic(values, shifts, bias)
        blocks = (pack_block(values, shifts, self.window.patterns, *block) for block in self.blocks_of_channels)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": np.concatenate(list(blocks)),
            "bias": self._pack_lanes(bias) + self._magic_of_blocks(),
            **{label: self._pack_lanes(each) for label, each in self.channel_values.items()},
        }
        if any(self.are_shifted) and self.shift is None:
            self.constants["shifts"] = np.repeat(self._pack_lanes(shifts.astype(np.int8)), 4)

    # ---- shape of the loop nest

    def _windows(self) -> list[Window]:
        """Return the windows that fit the registers, the one with the fewest estimated cycles first."""
        spec, most = self.spec, min(MAX_OUTPUTS[self.isa], self.spec.out_width)
        windows = [Window.of(outputs, spec.kernel[1], spec.strides[1], spec.dilation[1]) for outputs in range(1, most + 1)]
        if any(self.are_shifted):  # sums take registers, too: those of one set and no more
            windows = [window for window in windows if window.is_shared]
        return sorted(windows, key=self._row_cycles)

    def _row_cycles(self, window: Window) -> float:
        """Estimate the cycles of one output row of 64 channels."""
        rows = self.spec.kernel[0]
        return window.cycles(rows, rows - self._kept_rows(window), self.spec.out_width, is_shifted=all(self.are_shifted))

    def _kept_rows(self, window: Window) -> int:
        """Return how many interleaved rows of a window stay in registers for the window below."""
        rows, stride = self.spec.kernel[0], self.spec.strides[0]
        registers = 4 * (len(window.columns) * rows + window.outputs + any(self.are_shifted))
        fits = self.spec.dilation[0] == 1 and registers <= MAX_REGISTERS[self.isa]
        return max(rows - stride, 0) if fits else 0

    def _choose(self, schedules: Schedules) -> tuple[Window, WindowSchedule]:
        """Take what was measured to be best, or the best estimate."""
        measured = schedules.get(self.key)
        if not isinstance(measured, WindowSchedule):
            if measured is not None:
                check_schedule(self.key, measured, fits=False)
            return self.windows[0], WindowSchedule(outputs=self.windows[0].outputs)
        fitting = [window for window in self.windows if window.outputs == measured.outputs]
        is_block = measured.block is None or 0 < measured.block <= self.spec.out_height
        check_schedule(self.key, measured, fits=len(fitting) == 1 and is_block)
        return fitting[0], measured

    def _tunable(self) -> Tunable:
        """Return the schedule that was chosen and its alternatives: other windows, and other blocks for this one."""
        rows = self.spec.out_height
        blocks = dict.fromkeys(min(rows, size) for size in (self.block * 2, self.block // 2, rows, self.block // 4) if size)
        others = [WindowSchedule(outputs=self.window.outputs, block=size) for size in blocks if size != self.block]
        return Tunable.of(self.key, self.schedule, (WindowSchedule(outputs=each.outputs) for each in self.windows), others)

    def _pack_lanes(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return per-channel values in the order of each block's lanes; channels that fill up hold 0."""
        padded = np.zeros(self.channels, values.dtype)
        padded[: values.size] = values
        return np.concatenate([padded[start + channel_order(4, width // 4)].ravel() for start, width in self.blocks_of_channels])

    def _fits_magic(self, values: Int8Array, shifts: npt.NDArray[np.int64], bias: npt.NDArray[np.int32]) -> bool:
        """Whether both sums of every output, and the subtraction of one from the other, may be done in float32."""
        if isinstance(self.spec.output, SumOutput) or self.spec.scales:
            return False
        slots = 4 * len(self.window.columns) * self.spec.kernel[0]
        most = 255 * (np.abs(values.astype(np.int64)).sum(axis=(0, 1)) + slots * np.abs(shifts))
        most[: bias.size] += np.abs(bias.astype(np.int64))
        return bool(most.max() <= MAGIC_REACH)

    def _magic_of_blocks(self) -> npt.NDArray[np.int32]:
        """Return where the sums of each lane count from."""
        starts = [MAGIC_BITS * (self.is_magic and is_shifted) for is_shifted in self.are_shifted]
        return np.repeat(np.array(starts, np.int32), [width for _, width in self.blocks_of_channels])

    def _block_rows(self, limit: int) -> int:
        """Output rows of one block: few enough for the cache, and enough blocks for the threads."""
        spec = self.spec
        rows = spec.out_height
        if self.schedule.block is not None and self.threads == 1:  # what was measured; threads need blocks of their own
            return self.schedule.block
        row_bytes = (spec.in_width + spec.padding[1] + spec.padding[3]) * self.channels
        extra = spec.dilation[0] * (spec.kernel[0] - 1)
        affordable = max(1, (limit // row_bytes - extra) // spec.strides[0])
        return balanced_block(rows, affordable, spec.batch, self.threads)

    @property
    def blocks(self) -> int:
        """Blocks of rows of one image."""
        return -(-self.spec.out_height // self.block)

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        spec = self.spec
        in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        out_size = spec.batch * spec.out_height * spec.out_width * spec.out_channels
        operands = [(label, value.size, str(value.dtype)) for label, value in self.constants.items()]
        inputs = [("x", in_size, "uint8"), *([("x_parameters", 2 * spec.scales, "float32")] if spec.scales else [])]
        func = prim_func([*inputs, *operands, ("out", out_size, self.epilogue.out_dtype)], self._emit)
        func = narrowed(func, self.isa)
        return Kernel(
            name=f"{name} {self.window.outputs}x{self.widest}",
            isa=self.isa,
            func=func,
            constants=tuple(self.constants.values()),
            tunable=self._tunable(),
        )

    def _emit(self, x: Expr, *others: Expr) -> None:
        self.x, self.out = x, others[-1]
        self.parameters = others[0] if self.spec.scales else None
        self.operands = dict(zip(self.constants, others[1:-1] if self.spec.scales else others[:-1], strict=True))
        self._emit_threads()

    def _emit_threads(self) -> None:
        threads, units = self.threads, self.spec.batch * self.blocks
        if threads == 1:
            self._emit_units(0, units)
            return
        with T.parallel(0, threads) as chunk:
            self._emit_units(T.Bind(chunk * units // threads), T.Bind((chunk + 1) * units // threads))

    def _emit_units(self, first: Expr, last: Expr) -> None:
        """Emit the loop over blocks of rows, all images in one sequence."""
        spec = self.spec
        with T.serial(0, last - first) as index:
            unit = T.Bind(first + index)
            image, block = T.floordiv(unit, self.blocks), T.floormod(unit, self.blocks)
            first_row = T.Bind(block * self.block)
            source = self.x
            if self.scratch is not None:
                source = self.scratch.emit(self.x, image, first_row, padding_value(spec, self.parameters, image))
            out_base = T.Bind((image * spec.out_height + first_row) * (spec.out_width * spec.out_channels))
            rows: Expr = spec.out_height if self.blocks == 1 else T.min(T.int32(self.block), spec.out_height - first_row)
            self._emit_channels(source, image, first_row, out_base, rows)

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit the blocks of channels: a loop over those of 64, then the narrower ones.

        In a per-tensor quantized layer one channel or two hold the extreme weights that are to be shifted: the loop tells
        their blocks apart.
        """
        weights_per_channel = self.constants["weights"].size // sum(width for _, width in self.blocks_of_channels)

        def block(start: Expr, packed: Expr, width: int, is_shifted: bool) -> None:
            weights, shifts = T.Bind(T.int32(weights_per_channel) * packed), T.Bind(T.int32(4) * packed)
            channels = Channels(start=start, width=width, packed=packed, weights=weights, shifts=shifts, is_shifted=is_shifted)
            self._emit_pixels(source, image, first_row, out_base, rows, channels)

        whole = sum(width == self.widest for _, width in self.blocks_of_channels)
        shifted = [index for index, is_shifted in enumerate(self.are_shifted[:whole]) if is_shifted]
        if whole:
            with T.serial(0, whole) as index:
                start = T.Bind(index * self.widest)
                if len(shifted) in (0, whole):
                    block(start, start, self.widest, bool(shifted))
                else:
                    with T.If(functools.reduce(T.Or, [index == number for number in shifted])):
                        with T.Then():
                            block(start, start, self.widest, True)
                        with T.Else():
                            block(start, start, self.widest, False)
        packed = whole * self.widest
        for (start, width), is_shifted in zip(self.blocks_of_channels[whole:], self.are_shifted[whole:], strict=True):
            block(start, packed, width, is_shifted)
            packed += width

    def _emit_pixels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr, channels: Channels) -> None:
        """Emit all pixels of one block of channels; a last strip that does not fit starts earlier and repeats some pixels."""
        spec, window = self.spec, self.window
        with T.serial(0, -(-spec.out_width // window.outputs)) as index:
            column: Expr = index * window.outputs
            if spec.out_width % window.outputs:
                column = T.min(column, T.int32(spec.out_width - window.outputs))
            column = T.Bind(column)
            out_at = T.Bind(out_base + column * spec.out_channels + channels.start)
            if self.scratch is not None:
                pixel_bytes = self.scratch.channels
                at = T.Bind(column * (spec.strides[1] * pixel_bytes) + channels.start)
                columns = self._columns(lambda column: column * pixel_bytes)
                strip = Strip(
                    buffer=source, at=at, row_bytes=self.row_bytes, columns=columns, inside=None, top=T.int32(0), padding=None
                )
                self._emit_strip(strip, out_at, rows, channels)
            else:
                self._emit_in_place(image, first_row, column, out_at, rows, channels)

    def _emit_in_place(self, image: Expr, first_row: Expr, column: Expr, out_at: Expr, rows: Expr, channels: Channels) -> None:
        """Emit the strip of an output column over the input itself; a strip at the edge of the image has a loop of its own."""
        spec = self.spec
        top = T.Bind(first_row * spec.strides[0] - spec.padding[0])
        left = T.Bind(column * spec.strides[1] - spec.padding[1])
        at = T.Bind(image * (spec.in_height * self.row_bytes) + channels.start)
        padding = None
        if max(spec.padding) > 0:
            value = padding_value(spec, self.parameters, image)
            padding = T.uint8(spec.input_zero_point) if value is None else value

        def emit(at: Expr, columns: dict[int, Expr], inside: dict[int, Expr] | None) -> None:
            strip = Strip(
                buffer=self.x, at=at, row_bytes=self.row_bytes, columns=columns, inside=inside, top=top, padding=padding
            )
            self._emit_strip(strip, out_at, rows, channels)

        def inside() -> None:
            emit(T.Bind(at + left * spec.in_channels), self._columns(lambda column: column * spec.in_channels), None)

        def at_edge() -> None:
            nearest = self._columns(lambda column: T.min(T.max(left + column, T.int32(0)), T.int32(spec.in_width - 1)))
            columns = {column: T.Bind(each * spec.in_channels) for column, each in nearest.items()}
            emit(at, columns, self._columns(lambda column: T.Bind(T.And(left + column >= 0, left + column < spec.in_width))))

        if max(spec.padding[1], spec.padding[3]) <= 0:
            inside()
            return
        with T.If(T.And(left >= 0, left < spec.in_width - self.window.columns[-1][-1])):
            with T.Then():
                inside()
            with T.Else():
                at_edge()

    def _columns(self, of_column: Callable[[int], Expr]) -> dict[int, Expr]:
        """Return `of_column` of every column that a window reads."""
        return {column: of_column(column) for four in self.window.columns for column in four}

    # ---- one strip: `outputs` columns by `width` channels, row by row

    def _emit_strip(self, strip: Strip, out_at: Expr, rows: Expr, channels: Channels) -> None:
        """Emit all rows of a strip; interleaved rows that the next output row reads, too, are handed down."""
        spec, width = self.spec, channels.width
        kernel_rows, kept = spec.kernel[0], self._kept_rows(self.window)
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
            handed = [
                T.Bind(v.load(taps, place + at, width)) for place in under.places[:kept] for at in range(0, row_size, width)
            ]
            for index, value in enumerate(handed):
                v.store(taps, index * width, value, width)

    def _emit_row(
        self, under: Rows, sums: ShiftedSums | None, strip: Strip, row: Expr, out_at: Expr, channels: Channels, *, is_first: bool
    ) -> None:
        """Emit one row of outputs; `is_first` of those that share sums."""
        spec, width = self.spec, channels.width
        kept = self._kept_rows(self.window)
        top = T.Bind(strip.top + row * spec.strides[0])
        acc = self._emit_start(channels)
        if sums is not None and sums.common is None:
            v.store(sums.totals, 0, self._sums_start(width), width)

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
        self._emit_outputs(acc, sums, T.Bind(out_at + row * (spec.out_width * spec.out_channels)), channels)

    def _emit_interleaved(self, under: Rows, ky: Expr, four: int, strip: Strip, row: Expr, width: int) -> None:
        """Emit the interleaving of four columns of one row of the input, as kernel row ky."""

        def loaded(column: int) -> Expr:
            value = v.load(strip.buffer, start + strip.columns[column], width)
            if strip.inside is not None:
                value = T.Select(strip.inside[column], value, T.broadcast(strip.padding, width))
            return T.Bind(value)

        def store(vectors: list[Expr]) -> None:
            for j, each in enumerate(vectors):
                v.store(under.taps, under.at(ky, four, j), each, width)

        start = T.Bind(strip.at + row * strip.row_bytes)
        columns = self.window.columns[four]
        may_be_outside = strip.padding is not None and max(self.spec.padding[0], self.spec.padding[2]) > 0
        with contextlib.ExitStack() as only_inside:
            if may_be_outside:
                is_inside = T.Bind(T.And(row >= 0, row < self.spec.in_height))
                with T.If(T.Not(is_inside)), T.Then():
                    store([T.broadcast(strip.padding, width)] * 4)
                only_inside.enter_context(T.If(is_inside))
                only_inside.enter_context(T.Then())
            vectors = [loaded(column) for column in columns]
            store(v.interleave_four([vectors[min(i, len(vectors) - 1)] for i in range(4)], width))

    def _emit_start(self, channels: Channels) -> Expr:
        """Emit what the sums of all outputs of a row start from, the bias, and return their buffer."""
        lanes, outputs = channels.width // 4, self.window.outputs
        acc = T.alloc_buffer((outputs * channels.width,), "int32", scope="local")
        for j in range(4):
            bias = T.Bind(self._load_lanes("bias", channels, j))
            for pixel in range(outputs):
                v.store(acc, (pixel * 4 + j) * lanes, bias, lanes)
        return acc

    def _emit_outputs(self, acc: Expr, sums: ShiftedSums | None, out_at: Expr, channels: Channels) -> None:
        """Emit the outputs of one row of a strip."""
        width, lanes = channels.width, channels.width // 4
        values = {label: [T.Bind(self._load_lanes(label, channels, j)) for j in range(4)] for label in self.channel_values}
        for pixel in range(self.window.outputs):
            accumulators = [v.load(acc, (pixel * 4 + j) * lanes, lanes) for j in range(4)]
            if sums is not None:
                totals = [v.load(sums.totals, j * lanes, lanes) for j in range(4)]
                pairs = zip(accumulators, totals, strict=True)
                accumulators = [float_difference(a, b, lanes) if self.is_magic else a - b for a, b in pairs]
            group = Group(
                out=self.out,
                target=out_at + pixel * self.spec.out_channels,
                accumulators=accumulators,
                values=values,
                valid=min(width, self.spec.out_channels),
                parameters=self.parameters,
                lanes=lanes,
            )
            self.epilogue.emit(group)

    def _load_lanes(self, label: str, channels: Channels, accumulator: int) -> Expr:
        """Return the values of an accumulator's channels."""
        lanes = channels.width // 4
        return v.load(self.operands[label], channels.packed + accumulator * lanes, lanes)

    def _emit_sums(self, channels: Channels) -> ShiftedSums:
        """Emit the buffers for the sums of a strip."""
        shares = self._kept_rows(self.window) > 0 and self.spec.strides[0] == 1
        buffers = [T.alloc_buffer((channels.width,), "int32", scope="local") for _ in range(1 + shares)]
        return ShiftedSums(totals=buffers[0], common=buffers[1] if shares else None)

    def _sums_start(self, width: int) -> Expr:
        return T.broadcast(T.int32(MAGIC_BITS if self.is_magic else 0), width)

    def _emit_shared_sums(self, sums: ShiftedSums, under: Rows, channels: Channels, *, is_first: bool) -> None:
        """Emit the totals of a row of outputs; of two that share all kernel rows but the first one's first, the other's last."""
        last = self.spec.kernel[0] - 1
        fours = list(itertools.product(range(len(self.window.columns)), range(4)))
        if is_first:
            v.store(sums.common, 0, self._sums_start(channels.width), channels.width)
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
            shift = T.Bind(v.load(self.operands["shifts"], channels.shifts + accumulator * width, width))
        at = accumulator * lanes
        v.store(target, at, v.dot(v.load(source, at, lanes), under.columns(ky, four, accumulator), shift, lanes), lanes)

    def _emit_products(self, acc: Expr, under: Rows, ky: Expr, four: int, accumulator: int, weights: Expr, width: int) -> None:
        """Emit the products of four interleaved columns with the weights of one kernel row."""
        lanes = width // 4
        patterns = {pattern: index for index, pattern in enumerate(self.window.patterns)}
        columns = T.Bind(under.columns(ky, four, accumulator))
        for pixel, pattern in self.window.uses[four]:
            packed = v.load(self.operands["weights"], weights + (patterns[pattern] * 4 + accumulator) * width, width)
            index = (pixel * 4 + accumulator) * lanes
            v.store(acc, index, v.dot(v.load(acc, index, lanes), columns, packed, lanes), lanes)
