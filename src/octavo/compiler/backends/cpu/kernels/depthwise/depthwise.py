"""Depthwise convolution by dot products: four taps of a channel are brought side by side, then one instruction sums them.

    for each block of output rows
      for each block of 64, 32 or 16 channels
        for each strip of `outputs` neighbouring columns
          for each row, down the strip
            for each kernel row, each four columns of the input: interleave them, unless the row before has done so;
              for each output that they touch:  acc += dot(interleaved columns, that output's weights)

One interleaved window of four columns serves every output it touches: two outputs of a 3-wide row with stride 1. Where registers
allow, it also serves the rows below: each row of the input is interleaved once for a strip.
Columns in the padding are tested once for each strip, rows once for each row. Few channels or a channel multiplier make it work
on a padded copy of the rows instead. Of an open width, rows narrower than a strip are known when the kernel runs: it computes
outputs beside the image, and stores its pixels over them.
Asymmetric weights w - zero_point have 9 bits. Where one leaves int8, all those of its channel are shifted into it, and with them
the zeros that meet the columns of other outputs: sum(x * w) = sum(x * (w + shift)) - shift * sum(x). So the last sum is over all
columns of an interleaved window, and the outputs that it serves share it; two rows of outputs share what their windows have in
common. Subtracting it costs nothing: sums that count from the bits of a large float32 may be read as such, and their difference
is the float32 that requantization starts from.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import tvm
from tvm.script.ir_builder import tirx as T

from ......runtime.shapes import typical
from ......runtime.size import is_open
from ....tunable import Tunable, check_schedule
from ..conv.layer_function import LayerBuffers, layer_function
from ..conv.loops.packing import Int8Array, Weights
from ..conv.loops.scratch import Scratch, padding_value
from ..conv.schedule_key import schedule_key
from ..conv.spec import Conv2dSpec
from ..language.kernel import Kernel
from ..language.lane_order import channel_order
from ..language.rounding import MAGIC_BITS
from ..language.schedule import NO_SCHEDULES, Schedules, WindowSchedule
from ..language.vectors import Expr, bound, chunks_for, where_at_least
from .rows import DepthwiseRows
from .strip import Channels, Stores, Strip, StripEmitter
from .windows import Window, channel_blocks, pack_block, shift_into_int8, shifts_into_int8

SCRATCH_BYTES = 64 * 1024  # of the copied input rows that one block reads once for each block of channels
INPUT_BYTES = 128 * 1024  # of the input rows themselves, where they are read in place


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What fits the registers of an ISA.

    Parameters
    ----------
    outputs
        Neighbouring pixels at once: four registers of sums each.
    channels
        At once: four registers of int32.
    kept
        Registers that interleaved rows and sums may take together, for rows to stay.
    """

    outputs: int
    channels: int
    kept: int


class Depthwise(DepthwiseRows, ABC):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each.

    A class that derives from it says what registers hold, and how they add up and end. Where it `flips`, it multiplies x - 128.
    """

    limits: ClassVar[Mapping[str, Limits]]
    flips: bool = False

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> None:
        assert spec.groups == spec.in_channels, "a depthwise convolution has one input channel to a group"
        self.spec = spec
        self.isa = isa
        self.widest = self.limits[isa].channels
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
        rows = typical(spec.batch * spec.out_height)
        self.threads = chunks_for(spec.threads, self._row_cycles(self.window) * rows * self.channels / 64, rows)
        copied = spread > 1 or spec.in_channels < 16
        self.block = self._rows_for(SCRATCH_BYTES if copied else INPUT_BYTES, self.channels)
        self.scratch = Scratch(spec=spec, block=self.block, channels=self.channels, spread=spread) if copied else None
        self.row_bytes = self.scratch.row_size if self.scratch is not None else spec.in_width * spec.in_channels
        self.epilogue, self.channel_values = self._end(weights)
        values = (centered + shifts).astype(np.int8)
        bias = weights.folded_bias(spec.folded_zero_point - 128 * self.flips)
        self.is_magic = self._fits_magic(values, shifts, bias)
        packed = [pack_block(values, shifts, self.window.patterns, *block) for block in self.blocks_of_channels]
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": np.concatenate(packed),
            "bias": self._pack_lanes(bias) + self._starts_of_blocks(),
            **{label: self._pack_lanes(each) for label, each in self.channel_values.items()},
        }
        if any(self.are_shifted) and self.shift is None:
            self.constants["shifts"] = np.repeat(self._pack_lanes(shifts.astype(np.int8)), 4)

    @property
    @abstractmethod
    def strip_emitter(self) -> type[StripEmitter]:
        """What emits strips."""

    @abstractmethod
    def _end(self, weights: Weights) -> tuple[Any, Mapping[str, npt.NDArray[Any]]]:
        """Return what makes outputs of sums, and the constants that it reads, one value for each channel."""

    def _compiled_for(self, func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
        """Return the function with what an ISA has in place of the strips' products."""
        return func

    # ---- shape of the loop nest

    def _windows(self) -> list[Window]:
        """Return the windows that fit the registers, the one with the fewest estimated cycles first."""
        spec, most = self.spec, self.limits[self.isa].outputs
        if not is_open(spec.out_width):
            most = min(most, spec.out_width)
        windows = [Window.of(outputs, spec.kernel[1], spec.strides[1], spec.dilation[1]) for outputs in range(1, most + 1)]
        if any(self.are_shifted):  # sums take registers, too: those of one set and no more
            windows = [window for window in windows if window.is_shared]
        return sorted(windows, key=self._row_cycles)

    def _row_cycles(self, window: Window) -> float:
        """Estimate the cycles of one output row of 64 channels."""
        rows = self.spec.kernel[0]
        width = typical(self.spec.out_width)
        return window.cycles(rows, rows - self._kept_rows(window), width, is_shifted=all(self.are_shifted))

    @property
    def may_be_narrow(self) -> bool:
        """Whether there may be rows that are narrower than a strip."""
        return is_open(self.spec.out_width) and self.window.outputs > 1

    def _kept_rows(self, window: Window) -> int:
        """Return how many interleaved rows of a window stay in registers for the window below."""
        rows, stride = self.spec.kernel[0], self.spec.strides[0]
        registers = 4 * (len(window.columns) * rows + window.outputs + any(self.are_shifted))
        fits = self.spec.dilation[0] == 1 and registers <= self.limits[self.isa].kept
        return max(rows - stride, 0) if fits else 0

    def _choose(self, schedules: Schedules) -> tuple[Window, WindowSchedule]:
        """Take what was measured to be best, or the best estimate."""
        measured = schedules.get(self.key)
        if not isinstance(measured, WindowSchedule):
            if measured is not None:
                check_schedule(self.key, measured, fits=False)
            return self.windows[0], WindowSchedule(outputs=self.windows[0].outputs)
        fitting = [window for window in self.windows if window.outputs == measured.outputs]
        rows = self.spec.out_height
        is_block = measured.block is None or (measured.block > 0 and (is_open(rows) or measured.block <= rows))
        check_schedule(self.key, measured, fits=len(fitting) == 1 and is_block)
        return fitting[0], measured

    def _tunable(self) -> Tunable:
        """Return the schedule that was chosen and its alternatives: other windows, and other blocks for this one."""
        windows = (WindowSchedule(outputs=each.outputs) for each in self.windows)
        return Tunable.of(self.key, self.schedule, windows, self._other_blocks())

    def _pack_lanes(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return per-channel values in the order of each block's lanes; channels that fill up hold 0."""
        padded = np.zeros(self.channels, values.dtype)
        padded[: values.size] = values
        return np.concatenate([padded[start + channel_order(4, width // 4)].ravel() for start, width in self.blocks_of_channels])

    def _fits_magic(self, values: Int8Array, shifts: npt.NDArray[np.int64], bias: npt.NDArray[np.int32]) -> bool:
        """Whether both sums of every output, and the subtraction of one from the other, may be done in float32."""
        del values, shifts, bias
        return False

    def _starts_of_blocks(self) -> npt.NDArray[np.int32]:
        """Return where the sums of each lane count from."""
        starts = [MAGIC_BITS * (self.is_magic and is_shifted) for is_shifted in self.are_shifted]
        return np.repeat(np.array(starts, np.int32), [width for _, width in self.blocks_of_channels])

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        return Kernel(
            name=f"{name} {self.window.outputs}x{self.widest}",
            isa=self.isa,
            func=self._compiled_for(func),
            constants=tuple(self.constants.values()),
            tunable=self._tunable(),
        )

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters = buffers.x, buffers.parameters
        self.strips = self.strip_emitter(
            spec=self.spec,
            window=self.window,
            kept_rows=self._kept_rows(self.window),
            shift=self.shift,
            is_magic=self.is_magic,
            epilogue=self.epilogue,
            channel_values=tuple(self.channel_values),
            operands=buffers.operands,
            parameters=buffers.parameters,
            out=buffers.out,
        )
        self._emit_threads()

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit the blocks of channels: a loop over those of 64, then the narrower ones.

        In a per-tensor quantized layer one channel or two hold the extreme weights that are to be shifted: the loop tells
        their blocks apart.
        """
        weights_per_channel = self.spec.kernel[0] * len(self.window.patterns) * 4

        def block(start: Expr, packed: Expr, width: int, is_shifted: bool) -> None:
            weights, shifts = T.Bind(T.int32(weights_per_channel) * packed), T.Bind(T.int32(4) * packed)
            here = Channels(start=start, width=width, packed=packed, weights=weights, shifts=shifts, is_shifted=is_shifted)
            self._emit_pixels(source, image, first_row, out_base, rows, here)

        full = self.channels // self.widest
        shifted = [index for index, is_shifted in enumerate(self.are_shifted[:full]) if is_shifted]
        if full:
            with T.serial(0, full) as index:
                start = T.Bind(index * self.widest)
                if len(shifted) in (0, full):
                    block(start, start, self.widest, bool(shifted))
                else:
                    with T.If(functools.reduce(T.Or, [index == number for number in shifted])):
                        with T.Then():
                            block(start, start, self.widest, True)
                        with T.Else():
                            block(start, start, self.widest, False)
        packed = full * self.widest
        for (start, width), is_shifted in zip(self.blocks_of_channels[full:], self.are_shifted[full:], strict=True):
            block(start, packed, width, is_shifted)
            packed += width

    def _emit_pixels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr, channels: Channels) -> None:
        """Emit all pixels of one block of channels; a last strip that does not fit starts earlier and repeats some pixels."""
        spec, outputs, left = self.spec, self.window.outputs, self.spec.out_width % self.window.outputs
        with T.serial(0, -(-spec.out_width // outputs)) as index:
            column: Expr = index * outputs
            if is_open(left) or left:
                column = T.min(column, T.int32(0) + (spec.out_width - outputs))
            column = T.Bind(T.max(column, T.int32(0)) if self.may_be_narrow else column)
            out_at = T.Bind(out_base + column * spec.out_channels + channels.start)
            if self.scratch is not None:
                self._emit_copied(self.scratch, source, column, out_at, rows, channels)
            else:
                self._emit_in_place(image, first_row, column, out_at, rows, channels)

    def _emit_copied(self, scratch: Scratch, source: Expr, column: Expr, out_at: Expr, rows: Expr, channels: Channels) -> None:
        """Emit the strip of an output column over the padded copy."""
        at = T.Bind(column * (self.spec.strides[1] * scratch.channels) + channels.start)

        def emit(columns: dict[int, Expr], stored: Stores) -> None:
            strip = Strip(
                buffer=source,
                at=at,
                row_bytes=self.row_bytes,
                columns=columns,
                interior=None,
                top=T.int32(0),
                padding=None,
                stored=stored,
            )
            self.strips.emit(strip, out_at, rows, channels)

        def wide() -> None:
            emit(_columns(self.window, lambda column: column * scratch.channels), self._stored())

        def narrow() -> None:
            last = T.Bind(T.int32(0) + (scratch.width - 1))
            columns = _columns(self.window, lambda column: T.Bind(T.min(last, column) * scratch.channels))
            emit(columns, self._stored(may_be_narrow=True))

        if self.may_be_narrow:
            where_at_least(self.spec.out_width, self.window.outputs, wide, narrow)
        else:
            wide()

    def _emit_in_place(self, image: Expr, first_row: Expr, column: Expr, out_at: Expr, rows: Expr, channels: Channels) -> None:
        """Emit the strip of an output column over the input itself; a strip at the edge of the image has a loop of its own.

        So has one that is wider than the image.
        """
        spec, window = self.spec, self.window
        top = T.Bind(first_row * spec.strides[0] - spec.padding[0])
        left = T.Bind(column * spec.strides[1] - spec.padding[1])
        at = T.Bind(image * (spec.in_height * self.row_bytes) + channels.start)
        padding = None
        if max(spec.padding) > 0:
            value = padding_value(spec, self.parameters, image)
            padding = T.uint8(spec.input_zero_point) if value is None else value

        def emit(at: Expr, columns: dict[int, Expr], interior: dict[int, Expr] | None, stored: Stores) -> None:
            strip = Strip(
                buffer=self.x,
                at=at,
                row_bytes=self.row_bytes,
                columns=columns,
                interior=interior,
                top=top,
                padding=padding,
                stored=stored,
            )
            self.strips.emit(strip, out_at, rows, channels)

        def interior() -> None:
            columns = _columns(window, lambda column: column * spec.in_channels)
            emit(T.Bind(at + left * spec.in_channels), columns, None, self._stored())

        def at_border() -> None:
            last = T.int32(0) + (spec.in_width - 1)
            nearest = _columns(window, lambda column: T.min(T.max(left + column, T.int32(0)), last))
            columns = {column: T.Bind(each * spec.in_channels) for column, each in nearest.items()}
            width, within = bound(spec.in_width), None
            if padding is not None:
                within = _columns(window, lambda column: T.Bind(T.And(left + column >= 0, left + column < width)))
            emit(at, columns, within, self._stored(may_be_narrow=self.may_be_narrow))

        conditions: list[Expr] = []
        if max(spec.padding[1], spec.padding[3]) > 0:
            conditions += [left >= 0, left < bound(spec.in_width) - window.columns[-1][-1]]
        if self.may_be_narrow:
            conditions.append(bound(spec.out_width) >= window.outputs)
        if not conditions:
            interior()
            return
        with T.If(functools.reduce(T.And, conditions)):
            with T.Then():
                interior()
            with T.Else():
                at_border()

    def _stored(self, *, may_be_narrow: bool = False) -> Stores:
        """Return where the outputs of a strip go; those beside a narrow image go to its last pixel, which is stored later."""
        outputs, pitch = range(self.window.outputs), self.spec.out_channels
        if not may_be_narrow:
            return tuple((pixel, pixel * pitch) for pixel in outputs)
        last = T.Bind(T.int32(0) + (self.spec.out_width - 1))
        return tuple((pixel, T.Bind(T.min(last, pixel) * pitch)) for pixel in reversed(outputs))


def _columns(window: Window, of_column: Callable[[int], Expr]) -> dict[int, Expr]:
    """Return `of_column` of every column that a window reads."""
    return {column: of_column(column) for four in window.columns for column in four}
