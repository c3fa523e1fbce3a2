"""Depthwise convolution by widening products: of bytes, whose sums of some taps fit 16 bits, or of words.

    for each block of output rows          (its input rows as int8, padded)
      for each block of 16 channels
        for each row, each `outputs` neighbouring columns
          for each group of taps:  words = sum of smull over its taps;  acc += words
          requantize, narrow, store

Which taps make a group the weights say: with |w| of every channel adding up to 255 at most, no sum of products with int8 leaves
int16; that is two taps at least, but where both are -128. Weights less a zero point that have 9 bits are words, as all is then.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import typical
from .......runtime.size import is_open
from .....tunable import Tunable, check_schedule
from ...conv.arm.copies import FlippedScratch, flipped_padding
from ...conv.arm.epilogue import Epilogue, Finish
from ...conv.layer_function import LayerBuffers, layer_function
from ...conv.loops.packing import Weights
from ...conv.loops.scratch import padding_value
from ...conv.schedule_key import schedule_key
from ...conv.spec import Conv2dSpec
from ...language.arm import vector as v
from ...language.isa import ARM_NEON
from ...language.kernel import Kernel
from ...language.schedule import NO_SCHEDULES, Schedules, WindowSchedule
from ...language.vectors import Expr, chunks_for, for_open_tiles, load, store, values_by_turn
from ..rows import DepthwiseRows
from ..windows import channel_blocks

WIDTH = v.BYTES  # channels at once: a register of bytes, four of sums
SCRATCH_BYTES = 64 * 1024  # of the copied rows that one block reads once for each block of channels
MAX_OUTPUTS = 2  # with more LLVM reads ahead so much that it spills sums
KEPT_TAPS = 9  # whose weights stay in registers
UNROLLED_TAPS = 25  # taps that are written out; of more, the kernel's rows are a loop
WORD_SUM = 255  # of |w|, by |x| of 128 at most
END_OPERATIONS = 24  # to start, requantize and store 16 channels


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A block of 16 channels: its first one among outputs and among packed values, and where its weights begin."""

    start: Expr
    packed: Expr
    weights: Expr


class WideningDepthwise(DepthwiseRows):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, isa: str, schedules: Schedules = NO_SCHEDULES) -> None:
        assert spec.groups == spec.in_channels, "a depthwise convolution has one input channel to a group"
        self.spec, self.isa = spec, isa
        self.key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
        self.channels = max(spec.out_channels, WIDTH)  # fewer are filled up in the scratch
        self.blocks_of_channels = channel_blocks(self.channels, WIDTH)
        centered = weights.values[:, :, 0, :].astype(np.int64) - weights.zero_points
        self.is_wide = bool(centered.min(initial=0) < -128 or centered.max(initial=0) > 127)
        self.is_long = prod(spec.kernel) > KEPT_TAPS
        self.loops = spec.kernel[0] if prod(spec.kernel) > UNROLLED_TAPS else 1
        self.groups = groups_of(centered.reshape(self.loops, -1, spec.out_channels), is_wide=self.is_wide)
        self.schedule = self._choose(schedules)
        blocks = typical(spec.batch * spec.out_height * spec.out_width) * len(self.blocks_of_channels)
        cycles = blocks * (self.loops * operations(self.groups) + END_OPERATIONS) / 2
        self.threads = chunks_for(spec.threads, cycles, typical(spec.batch * spec.out_height))
        self.block = self._rows_for(SCRATCH_BYTES, self.channels)
        spread = spec.out_channels // spec.in_channels
        self.copy = FlippedScratch(spec=spec, block=self.block, channels=self.channels, spread=spread)
        self.scratch = self.copy
        self.epilogue = Epilogue(spec, weights, isa=isa)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._packed(centered.reshape(-1, spec.out_channels)),
            "bias": self._by_lane(self.epilogue.biased(weights.folded_bias(spec.folded_zero_point - 128))),
            **{label: self._by_lane(each) for label, each in self.epilogue.channel_values.items()},
        }

    @property
    def _most_outputs(self) -> int:
        width = self.spec.out_width
        return MAX_OUTPUTS if is_open(width) else min(MAX_OUTPUTS, width)

    def _choose(self, schedules: Schedules) -> WindowSchedule:
        """Take what was measured to be best, or as many outputs as registers hold."""
        measured, most = schedules.get(self.key), self._most_outputs
        if measured is None:
            return WindowSchedule(outputs=most)
        fits = isinstance(measured, WindowSchedule) and 0 < measured.outputs <= most
        is_block = measured.block is None or 0 < measured.block <= self.spec.out_height
        check_schedule(self.key, measured, fits=fits and is_block)
        assert isinstance(measured, WindowSchedule)
        return measured

    def _packed(self, taps: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the weights in the order block of channels, tap, channel."""
        values = np.pad(taps, ((0, 0), (0, self.channels - taps.shape[1])))
        blocks = [values[:, start : start + width].ravel() for start, width in self.blocks_of_channels]
        return np.concatenate(blocks).astype(np.int16 if self.is_wide else np.int8)

    def _by_lane(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        padded = np.pad(values, (0, self.channels - values.size))
        return np.concatenate([padded[start : start + width] for start, width in self.blocks_of_channels])

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        others = [WindowSchedule(outputs=outputs) for outputs in range(1, self._most_outputs + 1)]
        return Kernel(
            name=f"{name} {self.schedule.outputs}x{WIDTH}",
            isa=self.isa,
            func=layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit),
            constants=tuple(self.constants.values()),
            tunable=Tunable.of(self.key, self.schedule, others, self._other_blocks()),
        )

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out
        self._emit_threads()

    def _padding_value(self, image: Expr) -> Expr | None:
        return flipped_padding(self.spec, padding_value(self.spec, self.parameters, image))

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit the blocks of channels; the last one may overlap its neighbour."""
        del image, first_row
        taps = self.spec.kernel[0] * self.spec.kernel[1]

        def block(start: Expr, packed: Expr) -> None:
            here = Block(start=start, packed=packed, weights=T.Bind(packed * taps))
            self._emit_pixels(source, out_base, rows, here)

        full = self.channels // WIDTH
        with T.serial(0, full) as index:
            start = T.Bind(index * WIDTH)
            block(start, start)
        for number, (start, _) in enumerate(self.blocks_of_channels[full:], full):
            block(T.int32(start), T.int32(number * WIDTH))

    def _emit_pixels(self, source: Expr, out_base: Expr, rows: Expr, block: Block) -> None:
        """Emit all pixels of a block of channels; what is left of a row has windows of its own."""
        spec, outputs = self.spec, self.schedule.outputs
        # More weights than registers: LLVM would read them before the loops, and spill them. Few turns of a row it writes out, so
        # that rows are turns, too.
        weights_of = values_by_turn(block.weights) if self.is_long else None

        def window(row: Expr, column: Expr, count: int, turn: Expr) -> None:
            here = block if weights_of is None else replace(block, weights=weights_of(row + turn))
            at = row * (spec.strides[0] * self.copy.row_size) + column * (spec.strides[1] * self.copy.channels) + block.start
            target = out_base + (row * spec.out_width + column) * spec.out_channels + block.start
            self._emit_window(source, T.Bind(at), T.Bind(target), count, here)

        with T.serial(0, rows) as row:
            if is_open(spec.out_width):
                for_open_tiles(spec.out_width, outputs, lambda column, count: window(row, column, count, column))
                return
            full, left = divmod(spec.out_width, outputs)
            with T.serial(0, full) as index:
                window(row, index * outputs, outputs, index)
            if left:
                window(row, T.int32(full * outputs), left, T.int32(full))

    def _emit_window(self, source: Expr, at: Expr, target: Expr, outputs: int, block: Block) -> None:
        """Emit the sums of some neighbouring outputs, and their stores."""
        acc = T.alloc_buffer((outputs * WIDTH,), "int32", scope="local")
        for quad in range(WIDTH // v.QUAD):
            bias = T.Bind(load(self.operands["bias"], block.packed + quad * v.QUAD, v.QUAD))
            for pixel in range(outputs):
                store(acc, pixel * WIDTH + quad * v.QUAD, bias, v.QUAD)
        if self.loops == 1:
            self._emit_taps(acc, source, at, block.weights, outputs)
        else:
            width, row_bytes = self.spec.kernel[1], self.spec.dilation[0] * self.copy.row_size
            with T.serial(0, self.loops) as row:
                weights = T.Bind(block.weights + row * (width * WIDTH))
                self._emit_taps(acc, source, T.Bind(at + row * row_bytes), weights, outputs)
        for pixel in range(outputs):
            quads = [load(acc, pixel * WIDTH + quad, v.QUAD) for quad in range(0, WIDTH, v.QUAD)]
            valid = min(WIDTH, self.spec.out_channels)
            place = target + pixel * self.spec.out_channels
            finish = Finish(target=place, channel=block.packed, quads=quads, valid=valid)
            self.epilogue.emit(self.out, self.operands, self.parameters, finish)

    def _emit_taps(self, acc: Expr, source: Expr, at: Expr, weights: Expr, outputs: int) -> None:
        """Emit the products of the taps that are written out."""
        spec, copy = self.spec, self.copy
        columns: dict[int, Expr] = {}

        def column(tap: int, pixel: int) -> Expr:
            y, x = divmod(tap, spec.kernel[1])
            start = y * spec.dilation[0] * copy.row_size + (pixel * spec.strides[1] + x * spec.dilation[1]) * copy.channels
            if start not in columns:
                columns[start] = T.Bind(T.reinterpret("int8x16", load(source, at + start, WIDTH)))
            return columns[start]

        def weights_of(taps: list[int]) -> list[Expr]:
            return [T.Bind(load(self.operands["weights"], weights + tap * WIDTH, WIDTH)) for tap in taps]

        if self.is_wide:
            for taps in self.groups:
                packed = weights_of(taps)
                for pixel in range(outputs):
                    self._emit_words(acc, pixel * WIDTH, [column(tap, pixel) for tap in taps], packed)
            return
        together = outputs if self.is_long else 1
        for batch in self._batches():
            packed = [weights_of(taps) for taps in batch]
            for first in range(0, outputs, together):
                pixels = range(first, min(first + together, outputs))
                sums = [
                    [self._words([column(tap, pixel) for tap in taps], each) for taps, each in zip(batch, packed, strict=True)]
                    for pixel in pixels
                ]
                for pixel, words in zip(pixels, sums, strict=True):
                    self._emit_sums(acc, pixel * WIDTH, words)

    def _batches(self) -> list[list[list[int]]]:
        """Return the groups of taps in batches whose words add up before they join the other sums.

        Without dotprod the last two do, for a shorter chain of sums. With it, and of long windows, none: LLVM would compute more
        words before any sum than registers hold.
        """
        groups = self.groups
        if len(groups) < 2 or self.is_long or self.isa != ARM_NEON:
            return [[group] for group in groups]
        return [*([group] for group in groups[:-2]), groups[-2:]]

    @staticmethod
    def _words(columns: list[Expr], weights: list[Expr]) -> list[Expr]:
        """Return the sums over a group of taps of one output: int16 of the first eight channels, and of the others."""
        pairs = list(zip(columns, weights, strict=True))
        products = ([v.smull(v.half(column, part), v.half(weight, part)) for column, weight in pairs] for part in range(2))
        return [T.Bind(reduce(operator.add, each)) for each in products]

    @staticmethod
    def _emit_sums(acc: Expr, start: int, words: list[list[Expr]]) -> None:
        """Emit acc += the words of one or two groups of taps of one output."""
        for part, number in product(range(2), range(2)):
            at = start + 8 * part + v.QUAD * number
            total = load(acc, at, v.QUAD)
            if len(words) == 1:
                total = v.add_words(total, words[0][part], number)
            else:
                first, second = (T.Cast("int32x4", v.quarter(each[part], number)) for each in words)
                total = total + (first + second)
            store(acc, at, total, v.QUAD)

    def _emit_words(self, acc: Expr, start: int, columns: list[Expr], weights: list[Expr]) -> None:
        """Emit acc += the products of one tap of one output."""
        for column, weight in zip(columns, weights, strict=True):
            words = T.Cast("int16x16", column)
            for number in range(WIDTH // v.QUAD):
                at = start + v.QUAD * number
                four = v.smull_words(v.quarter(words, number), v.quarter(weight, number))
                store(acc, at, load(acc, at, v.QUAD) + four, v.QUAD)


def groups_of(taps: npt.NDArray[np.int64], *, is_wide: bool) -> list[list[int]]:
    """Return which taps of (loops, taps, channels) add up in words, in all loops and channels; each alone if they are words."""
    groups: list[list[int]] = []
    sums: list[npt.NDArray[np.int64]] = []
    for tap in range(taps.shape[1]):
        magnitude = np.abs(taps[:, tap])
        fitting = (number for number, total in enumerate(sums) if (total + magnitude).max(initial=0) <= WORD_SUM)
        number = None if is_wide else next(fitting, None)
        if number is None:
            groups.append([tap])
            sums.append(magnitude)
        else:
            groups[number].append(tap)
            sums[number] = sums[number] + magnitude
    return groups


def operations(groups: list[list[int]]) -> int:
    """Return how many vector operations 16 sums over these taps take: two products for each tap, four sums for each group."""
    return 2 * sum(len(group) for group in groups) + 4 * len(groups)
