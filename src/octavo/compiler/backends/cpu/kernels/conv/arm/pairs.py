"""Copies of some input rows in which pixels lie in pairs, as matrix products take them: 8 bytes of the one, 8 of the other.

They are made once, instead of once for each tap and panel of channels. Elements are bytes or the 16 bits of bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tvm.script.ir_builder import tirx as T

from .......runtime.size import dimension
from ...language.arm import vector as v
from ...language.vectors import Expr, load, store
from ..float_spec import FloatConv2dSpec
from ..loops.geometry import Geometry, geometry_of
from ..loops.scratch import SLACK, Scratch
from ..loops.tiles import Tile
from ..spec import Conv2dSpec

COPY_CHANNELS = 64  # outputs for which a copy of the input costs less than to bring its bytes into order for each panel of them


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedPixels:
    """Pixels of a block of an image that is one long column of `pixels`, two by turns."""

    pixels: int
    block: int
    channels: int
    dtype: str

    @property
    def partner(self) -> int:
        """Elements of the copy from a pixel to the next one, as loops count them that walk over pixels alone."""
        return self.channels

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it with the pixels from `first_row` on, `filled` or as many as a block has, and return it."""
        del image, padding
        copy = T.alloc_buffer(((self.block + 1) * self.channels + SLACK,), self.dtype)
        if filled is not None:
            count = filled
        else:
            is_even = self.pixels % self.block == 0
            count = T.int32(self.block) if is_even else T.min(T.int32(self.block), self.pixels - first_row)
        with T.serial(0, T.Bind(T.floordiv(count + 1, 2))) as pair:
            first = T.Bind(first_row + 2 * pair)
            second = T.Bind(T.min(first + 1, T.int32(0) + (self.pixels - 1)))
            target = pair * (2 * self.channels)
            _emit_pair(x, first * self.channels, second * self.channels, copy, target, self.channels, self.dtype)
        return copy


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedWindows(Scratch):
    """A padded copy in which each pixel lies by turns with that which the next window reads in its place.

    It takes twice the bytes, for a pixel is the first of one pair and the second of another. `axis` is that of the output along
    which a window has its next: 0 for rows, 1 for columns.
    """

    axis: int

    @property
    def partner(self) -> int:
        """Elements of the copy from one window to the next along the axis."""
        pixels = self.width if self.axis == 0 else 1
        return 2 * self.spec.strides[self.axis] * pixels * self.channels

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it for the output rows from `first_row` of image `image`, and return its buffer."""
        padded = Scratch.emit(self, x, image, first_row, padding, filled)
        copy = T.alloc_buffer((dimension(2 * self.rows * self.row_size + SLACK),), self.dtype)
        rows = self.rows if filled is None else self._read_by(filled)
        distance, channels = self.spec.strides[self.axis], self.channels
        with T.serial(0, rows) as row, T.serial(0, self.width) as column:
            first = T.Bind(row * self.row_size + column * channels)
            # The last window has no next one: the sums of what stands there are not used.
            if self.axis == 0:
                second = T.min(row + distance, T.int32(0) + rows - 1) * self.row_size + column * channels
            else:
                second = row * self.row_size + T.min(column + distance, T.int32(0) + self.width - 1) * channels
            _emit_pair(padded, first, T.Bind(second), copy, first * 2, channels, self.dtype)
        return copy


PairedCopy = PairedPixels | PairedWindows


def paired_copy(
    spec: Conv2dSpec | FloatConv2dSpec, tile: Tile, geometry: Geometry, *, element_bytes: int, block: int = 1
) -> PairedCopy | None:
    """Return the copy for a block of so many rows, where it pays and serves the tile; None where not.

    Of windows those are paired that the tile has side by side, or one below the other.
    """
    if geometry.sets > 1 or spec.in_channels * element_bytes % v.PAIR_BYTES:
        return None
    if spec.out_channels * prod(spec.kernel) < COPY_CHANNELS * prod(spec.strides):
        return None
    if not geometry.reduction.taps:  # one long column
        dtype = "uint8" if element_bytes == 1 else "uint16"
        copy = PairedPixels(pixels=geometry.rows, block=block, channels=spec.in_channels, dtype=dtype)
        return copy if tile.rows % 2 == 0 else None
    # Of other tiles some pair is the last window of a row and the first of the next.
    is_even = tile.columns % 2 == 0 if tile.columns > 1 and tile.rows > 1 else tile.pixels % 2 == 0
    return PairedWindows(spec=spec, block=block, channels=spec.in_channels, axis=int(tile.columns > 1)) if is_even else None


def geometry_in(copy: PairedCopy, geometry: Geometry) -> Geometry:
    """Return the geometry of a layer's windows in the copy."""
    if isinstance(copy, PairedPixels):
        return geometry
    walked = geometry_of(copy.spec, geometry.groups, geometry.group_inputs, padded_width=copy.width)
    return replace(
        walked,
        row_stride=2 * walked.row_stride,
        column_stride=2 * walked.column_stride,
        reduction=replace(walked.reduction, taps=tuple((extent, 2 * distance) for extent, distance in walked.reduction.taps)),
    )


def _emit_pair(source: Expr, first: Expr, second: Expr, copy: Expr, target: Expr, channels: int, dtype: str) -> None:
    """Emit the copy of two pixels by turns."""
    half = v.PAIR_BYTES if dtype == "uint8" else v.PAIR_BYTES // 2
    lanes = 2 * half
    with T.serial(0, channels // lanes) as part:
        words = [T.reinterpret("int64x2", load(source, pixel + part * lanes, lanes)) for pixel in (first, second)]
        for lane in range(2):
            value = T.reinterpret(f"{dtype}x{lanes}", v.shuffled(words, [lane, 2 + lane]))
            store(copy, target + part * (2 * lanes) + lane * lanes, value, lanes)
    if channels % lanes:
        start = channels - half
        for number, pixel in enumerate((first, second)):
            store(copy, target + 2 * start + number * half, load(source, pixel + start, half), half)
