"""How kernels of group normalization walk channels-last images: parts of whole groups, strips of a few vectors within them.

It emits loops and addresses; what is summed and written, its caller says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ......runtime.shapes import typical
from ..language.vectors import Expr, chunked, worthwhile

_LANES = 16
_STRIP = 4
"""Vectors of a strip, whose sums stay in registers."""
_WIDEST = 128
"""Channels of a part: its pixels are read two or three times, and shall be in the second-level cache then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChannelGroups:
    """[images, pixels, channels], the channels in `groups` equal groups."""

    images: int
    pixels: int
    channels: int
    groups: int
    threads: int = 1

    @property
    def size(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @property
    def count(self) -> int:
        """Values that are normalized together."""
        return self.size * self.pixels

    @property
    def part(self) -> int:
        """Channels of a part, all groups whole and where it can be all vectors too: as wide as leaves each thread one."""
        least = math.lcm(self.size, _LANES)
        widths = [width for width in range(least, self.channels + 1, least) if self.channels % width == 0]
        fitting = [
            width for width in widths if width <= _WIDEST and typical(self.images) * self.channels // width >= self.threads
        ]
        return max(fitting) if fitting else min(widths, default=self.channels)

    @property
    def elements(self) -> int:
        """Values of all images."""
        return self.images * self.pixels * self.channels

    def parts(self, operations: int) -> AbstractContextManager[Expr]:
        """Emit the loop over all parts, which threads share; `operations` are those that a value costs."""
        total = self.images * (self.channels // self.part)
        return chunked(total, worthwhile(self.threads, self.elements * operations, total))

    def start(self, index: Expr) -> tuple[Expr, Expr]:
        """Return the place of a part's first value and its first channel."""
        count = self.channels // self.part
        if count == 1:
            return B.Bind(index * (self.pixels * self.channels)), B.int32(0)
        image, channel = B.floordiv(index, count), B.Bind(B.floormod(index, count) * self.part)
        return B.Bind(image * (self.pixels * self.channels) + channel), channel

    def strips(self, body: Callable[[Expr, list[tuple[int, int]]], None]) -> None:
        """Emit body(first channel within the part, [(channel within the strip, lanes), ...]) for each strip of a part."""
        width = _STRIP * _LANES
        full, rest = divmod(self.part, width)
        if full:
            with B.serial(0, full) as index:
                body(B.Bind(index * width), _pieces(width))
        if rest:
            body(B.int32(full * width), _pieces(rest))

    def each_group(self, body: Callable[[Expr], None]) -> None:
        """Emit body(first channel within the part) for each group of a part."""
        with B.serial(0, self.part // self.size) as group:
            body(B.Bind(group * self.size))


def _pieces(size: int) -> list[tuple[int, int]]:
    return [(first, min(_LANES, size - first)) for first in range(0, size, _LANES)]
