"""Depthwise convolution for AVX2 of windows of several rows: words of two rows are woven together once, for all outputs.

    for each block of output rows
      for each block of 16 channels
        weave the words of every two rows of its input, padded
        for each row, for each column
          for each pair of rows, for each column tap:  acc[half] += pairs of products
          requantize, narrow, store

A row of outputs whose window begins at an even row of the copy has other partners than one that begins at an odd row: each of the
two has weights of its own, 0 for a row that is no tap's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .......runtime.size import names_in
from ...conv.spec import Conv2dSpec
from ...language.vectors import Expr, load, shuffled, store, values_by_turn
from ...language.x86 import vector as v
from .word_depthwise import LANES, SCRATCH_BYTES, UNROLLED_TAPS, WIDTH, WordDepthwise

TOGETHER = 4  # blocks of channels that are woven together: a line of the first-level cache
PIXEL = 2 * WIDTH  # words of one column of two rows
COLUMNS = 4  # outputs side by side that share what they read


def takes_woven_rows(spec: Conv2dSpec) -> bool:
    """Whether rows that are neighbours in memory are partners: no dilation between them, a register of channels, few taps."""
    height, width = spec.kernel
    is_sized = not names_in((spec.in_height, spec.in_width))
    is_plain = is_sized and spec.out_channels == spec.in_channels >= WIDTH and spec.dilation[0] == 1
    return is_plain and height > 1 and height * width <= UNROLLED_TAPS


class WovenDepthwise(WordDepthwise):
    """Emits one layer's PrimFunc; `build` is the entrance."""

    def _lay_out_pairs(self) -> int:
        height, width = self.spec.kernel
        self.parities = (0, 1) if self.spec.strides[0] % 2 else (0,)
        self.row_pairs = [-(-(parity + height) // 2) for parity in self.parities]
        return max(self.row_pairs) * width

    def _lay_out_rows(self) -> None:
        self.scratch = None
        together = min(TOGETHER, len(self.blocks_of_channels))
        self.block = self._rows_for(SCRATCH_BYTES, 2 * WIDTH * together)
        self.woven = _WovenRows(spec=self.spec, block=self.block)

    def _pack_weights(self, centered: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
        """Return weights (kernel_h, kernel_w, channels) by block, parity, pair of rows, column, half, lane and row."""
        height, width, channels = centered.shape
        packed: list[npt.NDArray[np.int16]] = []
        for parity, pairs in zip(self.parities, self.row_pairs, strict=True):
            rows = np.zeros((2 * pairs, width, channels), np.int16)
            rows[parity : parity + height] = centered
            lanes = rows.reshape(pairs, 2, width, channels)[..., self._lane_channels()]
            packed.append(lanes.transpose(3, 0, 2, 4, 5, 1).reshape(len(self.blocks_of_channels), -1))
        return np.concatenate(packed, axis=1).ravel()

    # ---- emission

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit the blocks of channels: a loop over those of 16, then one that overlaps."""
        size = self.woven.pairs * self.woven.row_size
        woven = T.alloc_buffer((min(TOGETHER, len(self.blocks_of_channels)) * size,), "int16")
        padding = self._padding_value(image)

        def weave(starts: list[Expr]) -> None:
            self.woven.emit(woven, source, image, first_row, starts, padding)

        def pixels(first: Expr, count: int, start: Expr) -> None:
            with T.serial(0, count) as index:
                self._emit_rows(woven, T.Bind(index * size), out_base, rows, T.Bind(first + index), start + index * WIDTH)

        full, rest = divmod(self.channels // WIDTH, TOGETHER)
        if full:
            with T.serial(0, full) as group:
                first = T.Bind(group * TOGETHER)
                weave([first * WIDTH + index * WIDTH for index in range(TOGETHER)])
                pixels(first, TOGETHER, T.Bind(first * WIDTH))
        starts = [start for start, _ in self.blocks_of_channels[full * TOGETHER :]]
        if rest:
            weave([T.int32(start) for start in starts[:rest]])
            pixels(T.int32(full * TOGETHER), rest, T.int32(starts[0]))
        for start in starts[rest:]:  # one that overlaps
            weave([T.int32(start)])
            pixels(T.int32(full * TOGETHER + rest), 1, T.int32(start))

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, rows: Expr, number: Expr, start: Expr) -> None:
        """Emit all pixels of one block of channels: rows of outputs that begin at even rows of the copy, then the others."""
        spec, step = self.spec, len(self.parities)
        sizes = [pairs * spec.kernel[1] * PIXEL for pairs in self.row_pairs]
        for parity, pairs in zip(self.parities, self.row_pairs, strict=True):
            weights = T.Bind(number * T.int32(sum(sizes)) + sum(sizes[:parity]))
            count = (rows + step - 1 - parity) // step if isinstance(rows, int) else T.floordiv(rows + (step - 1 - parity), step)
            with T.serial(0, count) as turn:
                row = T.Bind(turn * step + parity)
                first_pair = turn * (step * spec.strides[0] // 2) + parity * (spec.strides[0] // 2)
                at_row = T.Bind(base + first_pair * self.woven.row_size)
                out_row = T.Bind(out_base + start + row * (spec.out_width * spec.out_channels))
                for first, turns, outputs in self._column_groups:
                    weights_of = values_by_turn(weights)
                    with T.serial(0, turns) as index:
                        column = T.Bind(first + index * outputs)
                        at = T.Bind(at_row + column * (spec.strides[1] * PIXEL))
                        acc = self._emit_start(number, outputs)
                        self._emit_products(acc, source, at, weights_of(index), pairs, outputs)
                        self._emit_ends(acc, T.Bind(out_row + column * spec.out_channels), number, outputs)

    @property
    def _column_groups(self) -> list[tuple[int, int, int]]:
        """Return (first column, groups, columns of each) of the groups of neighbouring columns that share what they read."""
        turns, rest = divmod(self.spec.out_width, COLUMNS)
        groups = [(0, turns, COLUMNS), (turns * COLUMNS, 1, rest)]
        return [group for group in groups if group[1] and group[2]]

    def _emit_products(self, acc: Expr, woven: Expr, at: Expr, weights: Expr, pairs: int, outputs: int) -> None:
        """Emit the sums of all taps of some neighbouring outputs: each column is read once for all of them."""
        width, stride, dilation = self.spec.kernel[1], self.spec.strides[1], self.spec.dilation[1]
        uses: dict[int, list[tuple[int, int]]] = {}
        for output, tap in np.ndindex(outputs, width):
            uses.setdefault(output * stride + tap * dilation, []).append((output, tap))
        for half, pair in np.ndindex(2, pairs):
            first = weights + (pair * width * 2 + half) * WIDTH
            packed = [T.Bind(load(self.operands["weights"], first + tap * 2 * WIDTH, WIDTH)) for tap in range(width)]
            for column in sorted(uses):
                words = T.Bind(load(woven, at + pair * self.woven.row_size + column * PIXEL + half * WIDTH, WIDTH))
                for output, tap in uses[column]:
                    index = output * WIDTH + half * LANES
                    store(acc, index, load(acc, index, LANES) + v.multiply_pairs(words, packed[tap], LANES), LANES)


@dataclass(frozen=True, kw_only=True, slots=True)
class _WovenRows:
    """Every two rows of the padded input that `block` output rows read, 16 channels of each column woven together.

    A column of two rows is four groups of words in two registers: of channels 0 to 3 and 8 to 11, then of the others, as
    vpunpcklwd and vpunpckhwd leave them.
    """

    spec: Conv2dSpec
    block: int

    @property
    def width(self) -> int:
        """Columns: those that any output reads."""
        return (self.spec.out_width - 1) * self.spec.strides[1] + self.spec.dilation[1] * (self.spec.kernel[1] - 1) + 1

    @property
    def pairs(self) -> int:
        """Pairs of rows."""
        return -(-((self.block - 1) * self.spec.strides[0] + self.spec.kernel[0]) // 2)

    @property
    def row_size(self) -> int:
        """Words of one pair of rows."""
        return self.width * PIXEL

    def emit(self, woven: Expr, x: Expr, image: Expr, first_row: Expr, starts: list[Expr], padding: Expr | None) -> None:
        """Emit the copy of the rows that output rows from `first_row` on read: of 16 channels from each of `starts` on.

        `padding` is the padding's value where it comes at run time.
        """
        spec = self.spec
        fill = tirx.const(spec.input_zero_point, "int16") if padding is None else T.cast(padding, "int16")
        fill = T.Bind(T.broadcast(fill, WIDTH))
        row_size = spec.in_width * spec.in_channels
        with T.serial(0, self.pairs) as pair:
            row = T.Bind(first_row * spec.strides[0] - spec.padding[0] + 2 * pair)
            at = T.Bind(pair * self.row_size)
            source = T.Bind((image * spec.in_height + row) * row_size + starts[0])
            offsets = [start - starts[0] for start in starts]
            interior = [T.And(row + tap >= 0, row + tap < spec.in_height) for tap in range(2)]

            def columns(*taps: bool) -> None:
                places = [source + tap * row_size if is_interior else None for tap, is_interior in enumerate(taps)]
                self._emit_columns(woven, at, x, places, offsets, fill)

            with T.If(interior[0]):
                with T.Then(), T.If(interior[1]):
                    with T.Then():
                        columns(True, True)
                    with T.Else():
                        columns(True, False)
                with T.Else(), T.If(interior[1]):
                    with T.Then():
                        columns(False, True)
                    with T.Else():
                        columns(False, False)

    def _emit_columns(self, woven: Expr, at: Expr, x: Expr, places: list[Expr | None], offsets: list[Expr], fill: Expr) -> None:
        """Emit all columns of two rows, each from its place on, or of the padding's value."""
        spec = self.spec
        left, skipped = min(max(spec.padding[1], 0), self.width), max(-spec.padding[1], 0)
        interior = max(0, min(spec.in_width - skipped, self.width - left))

        def weave(block: int, column: Expr, words: list[Expr]) -> None:
            target = at + (block * self.pairs * self.row_size + column * PIXEL)
            for half in range(2):
                order = [8 * part + 4 * half + lane + WIDTH * tap for part in range(2) for lane in range(4) for tap in range(2)]
                store(woven, target + half * WIDTH, shuffled(words, order), WIDTH)

        for first, count in ((0, left), (left + interior, self.width - left - interior)):
            for block, column in np.ndindex(len(offsets), count):
                weave(block, first + column, [fill, fill])
        with T.serial(0, interior) as column:
            pixel = T.Bind((column + skipped) * spec.in_channels)
            for block, offset in enumerate(offsets):
                words = [fill if place is None else T.Bind(load(x, place + pixel + offset, WIDTH, "int16")) for place in places]
                weave(block, left + column, words)
