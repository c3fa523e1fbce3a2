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
            target = T.Bind(pair * (2 * self.channels))
            with T.serial(0, self.channels // v.BYTES) as part:
                pixels = [load(x, pixel * self.channels + part * v.BYTES, v.BYTES) for pixel in (first, second)]
                words = [T.reinterpret("int64x2", each) for each in pixels]
                for lane in range(2):
                    value = T.reinterpret("uint8x16", v.shuffled(words, [lane, 2 + lane]))
                    store(copy, target + part * (2 * v.BYTES) + lane * v.BYTES, value, v.BYTES)
            if self.channels % v.BYTES:
                start = self.channels - PAIR_BYTES
                for number, pixel in enumerate((first, second)):
                    value = load(x, pixel * self.channels + start, PAIR_BYTES)
                    store(copy, target + 2 * start + number * PAIR_BYTES, value, PAIR_BYTES)
        return copy
