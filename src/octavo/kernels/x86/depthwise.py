"""Depthwise convolution through vpdpbusd: four taps of a channel are brought side by side, then one instruction sums them.

    for each block of output rows
      for each block of 64, 32 or 16 channels
        for each row, each `outputs` neighbouring pixels        (a padded copy of the window, where it touches the padding)
          for each kernel row, each four columns of the input: interleave them once,
            for each output that they touch:  acc += dot(interleaved columns, that output's weights)

One interleaved window of four columns serves every output it touches: two outputs of a 3-wide row with stride 1.
Few channels, a channel multiplier or a very large window make it work on a padded copy of the rows instead.
Asymmetric weights w - zero_point have 9 bits. Where one leaves int8, all those of its channel are shifted into it, and with them
the zeros that meet the columns of other outputs: sum(x * w) = sum(x * (w + shift)) - shift * sum(x). So the last sum is over all
columns of an interleaved window, and the outputs that it serves share it. Subtracting it costs nothing: sums that count from the
bits of a large float32 may be read as such, and their difference is the float32 that requantization starts from.
"""

from __future__ import annotations

import functools
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
from ..vectors import Expr, chunks_for, prim_func
from . import vector as v
from .epilogue import Group, channel_order
from .narrow import narrowed
from .packing import Int8Array, Weights
from .scratch import Scratch, padding_value
from .shares import balanced_block
from .wide_epilogue import epilogue_of

SCRATCH_BYTES = 64 * 1024  # of the copied input rows that one block reads once for each block of channels
INPUT_BYTES = 256 * 1024  # of the input rows themselves, where they are read in place
PATCH_BYTES = 8 * 1024  # largest copy of a single window, on the stack
MOST_OUTPUTS = {AVX512_VNNI: 4, AVX_VNNI: 2, AVX2: 1}  # neighbouring pixels at once: four accumulator registers each
UNROLLED_ROWS = 5  # kernel rows written out; more are a loop
WIDEST = {AVX512_VNNI: 64, AVX_VNNI: 32, AVX2: 32}  # channels at once: four registers of int32

Pattern = tuple[int | None, ...]
"""The kernel column that each of four input columns meets for one output; None where it meets none (weight 0)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channels:
    """A block of `width` channels from `start` on.

    Parameters
    ----------
    start, width
        Output channels.
    packed, weights
        First of its lanes in bias and multiplier, first of its packed weights.
    is_shifted
        Whether some of its weights are shifted.
    """

    start: Expr
    width: int
    packed: Expr
    weights: Expr
    is_shifted: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Where a tile finds its window: column c of kernel row ky begins at buffer[at + ky * row_bytes + column_bytes[c]]."""

    buffer: Expr
    at: Expr
    row_bytes: int
    column_bytes: dict[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftedSums:
    """What all outputs of a tile have too much, shift * sum(x), for each of 4 accumulators.

    Parameters
    ----------
    totals
        int32 lanes, accumulator by accumulator; from MAGIC_BITS on where outputs are.
    shifts
        Each accumulator's shifts, four times in a row.
    """

    totals: Expr
    shifts: list[Expr]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How `outputs` neighbouring pixels read one row of the input.

    Parameters
    ----------
    outputs
        Neighbouring output pixels.
    columns
        Input columns they read, relative to the first one, in fours.
    uses
        For each four columns, the outputs that they touch and the pattern of kernel columns for each.
    """

    outputs: int
    columns: tuple[tuple[int, ...], ...]
    uses: tuple[tuple[tuple[int, Pattern], ...], ...]

    @staticmethod
    def of(outputs: int, kernel: int, stride: int, dilation: int) -> Window:
        """Lay out `outputs` pixels of a row: every column that some output reads, in fours from the left."""
        needed = sorted({pixel * stride + tap * dilation for pixel in range(outputs) for tap in range(kernel)})
        columns = tuple(tuple(needed[i : i + 4]) for i in range(0, len(needed), 4))
        uses: list[tuple[tuple[int, Pattern], ...]] = []
        for four in columns:
            touched: list[tuple[int, Pattern]] = []
            for pixel in range(outputs):
                taps = [divmod(column - pixel * stride, dilation) for column in four]
                pattern = tuple(tap if rest == 0 and 0 <= tap < kernel else None for tap, rest in taps)
                if any(tap is not None for tap in pattern):
                    touched.append((pixel, pattern + (None,) * (4 - len(pattern))))
            uses.append(tuple(touched))
        return Window(outputs=outputs, columns=columns, uses=tuple(uses))

    @property
    def is_shared(self) -> bool:
        """Whether every four columns touch all outputs, so that one sum over the window corrects them all."""
        return all(len(use) == self.outputs for use in self.uses)

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Every different pattern, in order of first use: the weights of a kernel row are packed in this order."""
        return tuple(dict.fromkeys(pattern for use in self.uses for _, pattern in use))

    def cycles(self, kernel_rows: int, width: int, *, is_shifted: bool) -> float:
        """Estimate the cycles of one output row of `width` pixels and 64 channels: shuffles and products run side by side."""
        shuffles = 8 * len(self.columns) * kernel_rows
        products = 4 * (sum(len(use) for use in self.uses) + is_shifted * len(self.columns)) * kernel_rows
        narrow = 20 * self.outputs
        tile = max(shuffles, products, (shuffles + products + narrow) / 2)
        return -(-width // self.outputs) * tile


def channel_blocks(channels: int, widest: int = 64) -> list[tuple[int, int]]:
    """Return (first channel, width) of blocks that cover `channels` >= 16: of `widest`, half of it, ... 16; the last may overlap
    its neighbour."""
    blocks: list[tuple[int, int]] = []
    start = 0
    for width in (width for width in (64, 32, 16) if width <= widest):
        while channels - start >= width:
            blocks.append((start, width))
            start += width
    if start < channels:
        blocks.append((channels - 16, 16))
    return blocks


def shifts_into_int8(centered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what to add to the weights of each channel, the last axis, so that all of them fit int8: 0 where they do.

    The least that will do. It fits int8 itself, for the zero point would do, too.
    """
    axes = tuple(range(centered.ndim - 1))
    return np.clip(0, -128 - centered.min(axis=axes, initial=0), 127 - centered.max(axis=axes, initial=0))


def pack_block(
    values: Int8Array, shifts: npt.NDArray[np.int64], patterns: tuple[Pattern, ...], start: int, width: int
) -> Int8Array:
    """Return one block's weights in the order kernel row, pattern, accumulator, lane, tap; one-dimensional.

    `values` are int8 (kernel_h, kernel_w, channels), shifted; a slot that meets no tap holds the shift alone.
    """
    order = start + channel_order(4, width // 4)
    packed = np.zeros((values.shape[0], len(patterns), 4, width // 4, 4), np.int8)
    for index, pattern in enumerate(patterns):
        for position, tap in enumerate(pattern):
            packed[:, index, :, :, position] = shifts[order] if tap is None else values[:, tap, order]
    return packed.ravel()


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
        self.key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
        self.windows = self._windows()
        self.window, self.schedule = self._choose(schedules)
        row_cycles = self.window.cycles(spec.kernel[0], spec.out_width, is_shifted=all(self.are_shifted))
        cycles = row_cycles * spec.batch * spec.out_height * self.channels / 64
        self.threads = chunks_for(spec.threads, cycles, spec.batch * spec.out_height)
        patch = spec.kernel[0] * sum(map(len, self.window.columns)) * self.widest
        copied = spread > 1 or spec.in_channels < 16 or (any(spec.padding) and patch > PATCH_BYTES)
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
        if any(self.are_shifted):
            self.constants["shifts"] = np.repeat(self._pack_lanes(shifts.astype(np.int8)), 4)

    # ---- shape of the loop nest

    def _windows(self) -> list[Window]:
        """Return the windows that fit the registers, the one with the fewest estimated cycles first."""
        spec, most = self.spec, min(MOST_OUTPUTS[self.isa], self.spec.out_width)
        windows = [Window.of(outputs, spec.kernel[1], spec.strides[1], spec.dilation[1]) for outputs in range(1, most + 1)]
        if any(self.are_shifted):  # sums take registers, too: those of one set and no more
            windows = [window for window in windows if window.is_shared]
        is_shifted = all(self.are_shifted)
        return sorted(windows, key=lambda window: window.cycles(spec.kernel[0], spec.out_width, is_shifted=is_shifted))

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
        """Say what was chosen, and what could be: other windows, and other blocks for this one."""
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
            weights = T.Bind(T.int32(weights_per_channel) * packed)
            channels = Channels(start=start, width=width, packed=packed, weights=weights, is_shifted=is_shifted)
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
        """Emit all pixels of one block of channels; a last tile that does not fit starts earlier and repeats some pixels."""
        spec, window = self.spec, self.window
        tiles = -(-spec.out_width // window.outputs)
        with T.serial(0, rows) as row, T.serial(0, tiles) as tile:
            column: Expr = tile * window.outputs
            if spec.out_width % window.outputs:
                column = T.min(column, T.int32(spec.out_width - window.outputs))
            column = T.Bind(column)
            out_at = T.Bind(out_base + (row * spec.out_width + column) * spec.out_channels + channels.start)
            if self.scratch is not None:
                inside = self._in_place(source, row * spec.strides[0], column * spec.strides[1], channels)
                self._emit_tile(inside, out_at, channels)
            else:
                self._emit_at(image, first_row + row, column, out_at, channels)

    def _emit_at(self, image: Expr, row: Expr, column: Expr, out_at: Expr, channels: Channels) -> None:
        """Emit the tile of an output row and column over the input itself; over a copy of its window, where padding is in it."""
        spec, window = self.spec, self.window
        top = T.Bind(row * spec.strides[0] - spec.padding[0])
        left = T.Bind(column * spec.strides[1] - spec.padding[1])

        def in_place() -> None:
            self._emit_tile(self._in_place(self.x, image * spec.in_height + top, left, channels), out_at, channels)

        if not any(spec.padding):
            in_place()
            return
        below, right = spec.in_height - spec.dilation[0] * (spec.kernel[0] - 1), spec.in_width - window.columns[-1][-1]
        with T.If(T.And(T.And(top >= 0, top < below), T.And(left >= 0, left < right))):
            with T.Then():
                in_place()
            with T.Else():
                self._emit_tile(self._emit_patch(image, top, left, channels), out_at, channels)

    # ---- one tile: `outputs` pixels by `width` channels

    def _in_place(self, buffer: Expr, row: Expr, column: Expr, channels: Channels) -> Source:
        """Return the window at a row and column of the input, or of the scratch."""
        pixel_bytes = self.scratch.channels if self.scratch is not None else self.spec.in_channels
        at = T.Bind(row * self.row_bytes + column * pixel_bytes + channels.start)
        columns = {column: column * pixel_bytes for four in self.window.columns for column in four}
        return Source(buffer=buffer, at=at, row_bytes=self.spec.dilation[0] * self.row_bytes, column_bytes=columns)

    def _emit_patch(self, image: Expr, top: Expr, left: Expr, channels: Channels) -> Source:
        """Emit a copy of the window at an input row and column that may lie in the padding, filled with the zero point there."""
        spec, width = self.spec, channels.width
        columns = {column: index * width for index, column in enumerate(c for four in self.window.columns for c in four)}
        row_bytes = len(columns) * width
        patch = T.alloc_buffer((spec.kernel[0] * row_bytes,), "uint8", scope="local")
        value = padding_value(spec, self.parameters, image)
        fill = T.broadcast(T.uint8(spec.input_zero_point) if value is None else value, width)
        with T.serial(0, spec.kernel[0]) as ky:
            row = T.Bind(top + ky * spec.dilation[0])
            row_inside = T.Bind(T.And(row >= 0, row < spec.in_height))
            for column, offset in columns.items():
                x = left + column
                with T.If(T.And(row_inside, T.And(x >= 0, x < spec.in_width))):
                    with T.Then():
                        at = ((image * spec.in_height + row) * spec.in_width + x) * spec.in_channels + channels.start
                        v.store(patch, ky * row_bytes + offset, v.load(self.x, at, width), width)
                    with T.Else():
                        v.store(patch, ky * row_bytes + offset, fill, width)
        return Source(buffer=patch, at=T.int32(0), row_bytes=row_bytes, column_bytes=columns)

    def _emit_tile(self, source: Source, out_at: Expr, channels: Channels) -> None:
        width, outputs = channels.width, self.window.outputs
        lanes = width // 4
        acc = T.alloc_buffer((outputs * width,), "int32", scope="local")
        sums = self._emit_sums(channels) if channels.is_shifted else None
        for j in range(4):
            bias = T.Bind(self._load_lanes("bias", channels, j))
            for pixel in range(outputs):
                v.store(acc, (pixel * 4 + j) * lanes, bias, lanes)
        row_weights = len(self.window.patterns) * 4 * width
        if self.spec.kernel[0] <= UNROLLED_ROWS:
            for ky in range(self.spec.kernel[0]):
                self._emit_kernel_row(acc, sums, source, ky, channels.weights + ky * row_weights, channels)
        else:
            with T.serial(0, self.spec.kernel[0]) as ky:
                self._emit_kernel_row(acc, sums, source, ky, T.Bind(channels.weights + ky * row_weights), channels)
        values = {label: [T.Bind(self._load_lanes(label, channels, j)) for j in range(4)] for label in self.channel_values}
        valid = min(width, self.spec.out_channels)
        for pixel in range(outputs):
            accumulators = [v.load(acc, (pixel * 4 + j) * lanes, lanes) for j in range(4)]
            if sums is not None:
                totals = [v.load(sums.totals, j * lanes, lanes) for j in range(4)]
                pairs = zip(accumulators, totals, strict=True)
                accumulators = [float_difference(a, b, lanes) if self.is_magic else a - b for a, b in pairs]
            target = out_at + pixel * self.spec.out_channels
            group = Group(
                out=self.out,
                target=target,
                accumulators=accumulators,
                values=values,
                valid=valid,
                parameters=self.parameters,
                lanes=lanes,
            )
            self.epilogue.emit(group)

    def _load_lanes(self, label: str, channels: Channels, accumulator: int) -> Expr:
        """Return the values of an accumulator's channels."""
        lanes = channels.width // 4
        return v.load(self.operands[label], channels.packed + accumulator * lanes, lanes)

    def _emit_sums(self, channels: Channels) -> ShiftedSums:
        """Emit the start of the sums of a tile."""
        width = channels.width
        shifts = [T.Bind(v.load(self.operands["shifts"], 4 * channels.packed + j * width, width)) for j in range(4)]
        totals = T.alloc_buffer((width,), "int32", scope="local")
        v.store(totals, 0, T.broadcast(T.int32(MAGIC_BITS if self.is_magic else 0), width), width)
        return ShiftedSums(totals=totals, shifts=shifts)

    def _emit_kernel_row(
        self, acc: Expr, sums: ShiftedSums | None, source: Source, ky: Expr, weights: Expr, channels: Channels
    ) -> None:
        """Emit the products of one kernel row with all pixels of the tile."""
        width = channels.width
        lanes = width // 4
        patterns = {pattern: index for index, pattern in enumerate(self.window.patterns)}
        row = source.at + ky * source.row_bytes
        for four, uses in zip(self.window.columns, self.window.uses, strict=True):
            loaded = [T.Bind(v.load(source.buffer, row + source.column_bytes[column], width)) for column in four]
            taps = v.interleave_four([loaded[min(i, len(loaded) - 1)] for i in range(4)], width)
            for pixel, pattern in uses:
                for j in range(4):
                    packed = v.load(self.operands["weights"], weights + (patterns[pattern] * 4 + j) * width, width)
                    index = (pixel * 4 + j) * lanes
                    v.store(acc, index, v.dot(v.load(acc, index, lanes), taps[j], packed, lanes), lanes)
            if sums is not None:
                for j, shift in enumerate(sums.shifts):
                    v.store(sums.totals, j * lanes, v.dot(v.load(sums.totals, j * lanes, lanes), taps[j], shift, lanes), lanes)
