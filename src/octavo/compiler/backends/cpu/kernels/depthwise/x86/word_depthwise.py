"""Depthwise convolution for AVX2: taps in pairs, words of 16 channels of two of them woven together for vpmaddwd.

    for each block of output rows          (its input rows as words, padded)
      for each block of 16 channels        (its weights stay in registers, where there are few taps)
        for each row, for each column
          for each pair of taps:  weave their words, acc[half] += pairs of products
          requantize, narrow, store

Any two taps make a pair, whatever the strides and the dilation: nothing is shared between outputs, and nothing computed for
columns that no output reads. Words hold asymmetric weights less their zero points, 9 bits, as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import typical
from .....tunable import Tunable, check_schedule
from ...conv.layer_function import LayerBuffers, layer_function
from ...conv.loops.packing import Weights
from ...conv.loops.scratch import Scratch
from ...conv.schedule_key import schedule_key
from ...conv.spec import Conv2dSpec
from ...conv.x86.epilogue import Group
from ...conv.x86.wide_epilogue import emit_groups, epilogue_of
from ...language.isa import AVX2
from ...language.kernel import Kernel
from ...language.lane_order import channel_order
from ...language.schedule import NO_SCHEDULES, Schedules, WindowSchedule
from ...language.vectors import Expr, chunks_for, load, shuffled, store
from ...language.x86 import vector as v
from ...language.x86.narrow import narrowed
from ..rows import DepthwiseRows
from ..windows import channel_blocks

WIDTH = 16  # channels at once: a register of words, two of sums
LANES = WIDTH // 2
SCRATCH_BYTES = 256 * 1024  # of the widened rows that one block reads once for each block of channels
UNROLLED_TAPS = 25  # taps that are written out; of more, the kernel's rows are a loop
PAIR_CYCLES, END_CYCLES = 1.5, 4.0  # to weave, multiply and add a pair of taps; to start, requantize and store 16 channels


class WordDepthwise(DepthwiseRows):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, schedules: Schedules = NO_SCHEDULES) -> None:
        assert spec.groups == spec.in_channels, "a depthwise convolution has one input channel to a group"
        self.spec = spec
        self.key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
        self.channels = max(spec.out_channels, WIDTH)  # fewer are filled up in the scratch
        self.blocks_of_channels = channel_blocks(self.channels, WIDTH)
        pairs = self._lay_out_pairs()
        self.schedule = self._choose(schedules)
        blocks = typical(spec.batch * spec.out_height * spec.out_width) * len(self.blocks_of_channels)
        cycles = blocks * (pairs * PAIR_CYCLES + END_CYCLES)
        self.threads = chunks_for(spec.threads, cycles, typical(spec.batch * spec.out_height))
        self._lay_out_rows()
        self.epilogue = epilogue_of(spec, weights, AVX2)
        self.channel_values = self.epilogue.channel_values(weights)
        centered = weights.values[:, :, 0, :].astype(np.int16) - weights.zero_points.astype(np.int16)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._pack_weights(centered),
            "bias": self._pack_lanes(weights.folded_bias(spec.folded_zero_point)),
            **{label: self._pack_lanes(each) for label, each in self.channel_values.items()},
        }

    def _lay_out_pairs(self) -> int:
        """Decide which taps make pairs; return how many an output has."""
        kernel_h, kernel_w = self.spec.kernel
        is_flat = kernel_h * kernel_w <= UNROLLED_TAPS
        self.parts, self.taps = (1, kernel_h * kernel_w) if is_flat else (kernel_h, kernel_w)
        self.pairs = -(-self.taps // 2)
        return self.parts * self.pairs

    def _lay_out_rows(self) -> None:
        """Decide the rows of a block, and what is copied of its input."""
        spec = self.spec
        self.block = self._rows_for(SCRATCH_BYTES, 2 * self.channels)
        spread = spec.out_channels // spec.in_channels
        self.words = Scratch(spec=spec, block=self.block, channels=self.channels, spread=spread, is_widened=True)
        self.scratch = self.words

    def _choose(self, schedules: Schedules) -> WindowSchedule:
        """Take what was measured to be best; there is one window, blocks may differ."""
        measured = schedules.get(self.key)
        if measured is None:
            return WindowSchedule(outputs=1)
        is_window = isinstance(measured, WindowSchedule) and measured.outputs == 1
        is_block = measured.block is None or 0 < measured.block <= self.spec.out_height
        check_schedule(self.key, measured, fits=is_window and is_block)
        return WindowSchedule(outputs=1, block=measured.block)

    # ---- constants

    def _lane_channels(self) -> npt.NDArray[np.int64]:
        """Return the channel of each lane, (blocks of channels, halves, 8)."""
        return np.stack([start + channel_order(2, LANES) for start, _ in self.blocks_of_channels])

    def _pack_lanes(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return per-channel values in the order of each block's lanes; channels that fill up hold 0."""
        padded = np.zeros(self.channels, values.dtype)
        padded[: values.size] = values
        return padded[self._lane_channels()].ravel()

    def _pack_weights(self, centered: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return weights (kernel_h, kernel_w, channels) by block, part, pair, half, lane and tap; an odd tap's partner is 0."""
        padded = np.zeros((self.parts, 2 * self.pairs, self.channels), np.int16)
        padded[:, : self.taps, : centered.shape[2]] = centered.reshape(self.parts, self.taps, -1)
        lanes = padded.reshape(self.parts, self.pairs, 2, self.channels)[..., self._lane_channels()]
        return np.ascontiguousarray(lanes.transpose(3, 0, 1, 4, 5, 2)).ravel()

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        return Kernel(
            name=f"{name} 1x{WIDTH}",
            isa=AVX2,
            func=narrowed(func, AVX2),
            constants=tuple(self.constants.values()),
            tunable=Tunable.of(self.key, self.schedule, self._other_blocks()),
        )

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out
        self._emit_threads()

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit the blocks of channels: a loop over those of 16, then one that overlaps."""
        del image, first_row  # the copy of the input begins with the block
        full = self.channels // WIDTH
        with T.serial(0, full) as number:
            self._emit_pixels(source, out_base, rows, number, T.Bind(number * WIDTH))
        for number, (start, _) in enumerate(self.blocks_of_channels[full:], full):
            self._emit_pixels(source, out_base, rows, number, start)

    def _emit_pixels(self, source: Expr, out_base: Expr, rows: Expr, number: Expr, start: Expr) -> None:
        """Emit all pixels of one block of channels."""
        spec, scratch = self.spec, self.words
        weights = T.Bind(number * T.int32(self.parts * self.pairs * 2 * WIDTH))
        with T.serial(0, rows) as row:
            at_row = T.Bind(start + row * (spec.strides[0] * scratch.row_size))
            out_row = T.Bind(out_base + start + row * (spec.out_width * spec.out_channels))
            with T.serial(0, spec.out_width) as column:
                at = T.Bind(at_row + column * (spec.strides[1] * scratch.channels))
                acc = self._emit_start(number)
                self._emit_taps(acc, source, at, weights)
                self._emit_ends(acc, T.Bind(out_row + column * spec.out_channels), number)

    def _emit_start(self, number: Expr, outputs: int = 1) -> Expr:
        """Emit what the sums of some pixels' channels start from, the bias, and return their buffer."""
        acc = T.alloc_buffer((outputs * WIDTH,), "int32", scope="local")
        for output, half in np.ndindex(outputs, 2):
            store(acc, output * WIDTH + half * LANES, self._lanes("bias", number, half), LANES)
        return acc

    def _emit_ends(self, acc: Expr, target: Expr, number: Expr, outputs: int = 1) -> None:
        """Emit requantization and the stores of the channels of pixels side by side."""
        emit_groups(self.epilogue, self._groups(acc, target, number, outputs), 2 * outputs, LANES)

    def _emit_taps(self, acc: Expr, source: Expr, at: Expr, weights: Expr) -> None:
        """Emit the sums of all taps."""
        spec, scratch = self.spec, self.words
        row, column = spec.dilation[0] * scratch.row_size, spec.dilation[1] * scratch.channels
        if self.parts == 1:
            self._emit_part(acc, source, at, weights, [y * row + x * column for y, x in np.ndindex(*spec.kernel)])
            return
        with T.serial(0, self.parts) as part:
            packed = T.Bind(weights + part * (self.pairs * 2 * WIDTH))
            self._emit_part(acc, source, T.Bind(at + part * row), packed, [x * column for x in range(self.taps)])

    def _emit_part(self, acc: Expr, source: Expr, at: Expr, weights: Expr, places: list[int]) -> None:
        """Emit the sums of the taps at these places, two by two."""
        for pair in range(self.pairs):
            first, second = places[2 * pair], places[min(2 * pair + 1, len(places) - 1)]
            words = [T.Bind(load(source, at + place, WIDTH)) for place in (first, second)]
            for half in range(2):
                order = [8 * block + 4 * half + lane + WIDTH * tap for block in range(2) for lane in range(4) for tap in range(2)]
                woven = shuffled(words, order)
                packed = load(self.operands["weights"], weights + (pair * 2 + half) * WIDTH, WIDTH)
                store(acc, half * LANES, load(acc, half * LANES, LANES) + v.multiply_pairs(woven, packed, LANES), LANES)

    def _groups(self, acc: Expr, target: Expr, number: Expr, outputs: int) -> Iterator[Group]:
        """Yield the sums of each pixel's channels."""
        values = {label: [T.Bind(self._lanes(label, number, half)) for half in range(2)] for label in self.channel_values}
        for output in range(outputs):
            yield Group(
                out=self.out,
                target=target + output * self.spec.out_channels,
                accumulators=[load(acc, output * WIDTH + half * LANES, LANES) for half in range(2)],
                values=values,
                valid=min(WIDTH, self.spec.out_channels),
                parameters=self.parameters,
                lanes=LANES,
            )

    def _lanes(self, label: str, number: Expr, half: int) -> Expr:
        return load(self.operands[label], number * WIDTH + half * LANES, LANES)
