"""Copies of some input rows as products take them, which read them as often as there are taps or panels."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.script.ir_builder import tirx as T

from ..loops.scratch import SLACK, Scratch
from ..spec import Conv2dSpec
from ..vectors import Expr, load, store
from . import vector as v

PAIR_BYTES = 8  # of one pixel, then of its neighbour


@dataclass(frozen=True, kw_only=True, slots=True)
class FlippedScratch(Scratch):
    """A padded copy of x - 128, as int8 in bytes of uint8; its padding is one of `flipped_padding`."""

    def _element(self, value: Expr) -> Expr:
        return value ^ T.uint8(128)


def flipped_padding(spec: Conv2dSpec, at_run_time: Expr | None) -> Expr:
    """Return what padding is filled with; the zero point is a constant unless it comes at run time."""
    return T.uint8(spec.input_zero_point ^ 128) if at_run_time is None else at_run_time ^ T.uint8(128)


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedPixels:
    """Pixels of a block of an image that is one long column of `pixels`, two by turns: 8 bytes of the one, 8 of the other."""

    pixels: int
    block: int
    channels: int

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None) -> Expr:
        """Allocate the copy, fill it with the pixels from `first_row` on, and return its buffer."""
        del image, padding
        copy = T.alloc_buffer(((self.block + 1) * self.channels + SLACK,), "uint8")
        is_even = self.pixels % self.block == 0
        count = T.int32(self.block) if is_even else T.min(T.int32(self.block), self.pixels - first_row)
        with T.serial(0, T.Bind(T.floordiv(count + 1, 2))) as pair:
            first = T.Bind(first_row + 2 * pair)
            second = T.Bind(T.min(first + 1, T.int32(self.pixels - 1)))
            _emit_pair(x, first * self.channels, second * self.channels, copy, pair * (2 * self.channels), self.channels)
        return copy


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedWindows(Scratch):
    """A padded copy in which each pixel lies by turns with that which the next window reads in its place: 8 bytes of each.

    It takes twice the bytes, for a pixel is the first of one pair and the second of another. `axis` is that of the output along
    which a window has its next: 0 for rows, 1 for columns.
    """

    axis: int

    @property
    def partner(self) -> int:
        """Bytes of the copy from one window to the next along the axis."""
        pixels = self.width if self.axis == 0 else 1
        return 2 * self.spec.strides[self.axis] * pixels * self.channels

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None) -> Expr:
        """Allocate the copy, fill it for the output rows from `first_row` of image `image`, and return its buffer."""
        padded = Scratch.emit(self, x, image, first_row, padding)
        copy = T.alloc_buffer((2 * self.rows * self.row_size + SLACK,), "uint8")
        distance, channels = self.spec.strides[self.axis], self.channels
        with T.serial(0, self.rows) as row, T.serial(0, self.width) as column:
            first = T.Bind(row * self.row_size + column * channels)
            # The last window has no next one: the sums of what stands there are not used.
            if self.axis == 0:
                second = T.min(row + distance, T.int32(self.rows - 1)) * self.row_size + column * channels
            else:
                second = row * self.row_size + T.min(column + distance, T.int32(self.width - 1)) * channels
            _emit_pair(padded, first, T.Bind(second), copy, first * 2, channels)
        return copy


def _emit_pair(source: Expr, first: Expr, second: Expr, copy: Expr, target: Expr, channels: int) -> None:
    """Emit the copy of two pixels by turns."""
    with T.serial(0, channels // v.BYTES) as part:
        words = [T.reinterpret("int64x2", load(source, pixel + part * v.BYTES, v.BYTES)) for pixel in (first, second)]
        for lane in range(2):
            value = T.reinterpret("uint8x16", v.shuffled(words, [lane, 2 + lane]))
            store(copy, target + part * (2 * v.BYTES) + lane * v.BYTES, value, v.BYTES)
    if channels % v.BYTES:
        start = channels - PAIR_BYTES
        for number, pixel in enumerate((first, second)):
            value = load(source, pixel + start, PAIR_BYTES)
            store(copy, target + 2 * start + number * PAIR_BYTES, value, PAIR_BYTES)
