"""A padded copy of some input rows, so that the loops over taps need no test of the border.

It emits the copy and says where things lie in it; it computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .......runtime.size import dimension
from ...language.float_result import input_zero_point
from ...language.vectors import Expr, bound, least
from ..bfloat16_spec import Bfloat16Conv2dSpec
from ..float_spec import FloatConv2dSpec
from ..spec import Conv2dSpec

SLACK = 64  # elements after the last pixel that a vector load may touch


def padding_value(spec: Conv2dSpec, parameters: Expr | None, image: Expr) -> Expr | None:
    """Return the zero point of an image's input where it comes at run time, uint8; None where it is a constant."""
    if parameters is None:
        return None
    index = T.floordiv(image * (spec.out_height * spec.out_width), spec.pixels_per_scale)
    return T.Bind(T.cast(input_zero_point(parameters, index), "uint8"))


class InputCopy(Protocol):
    """A copy of what a block reads of its input."""

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it for the output rows from `first_row` on, `filled` or a block's, and return its buffer."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """Rows of the padded input that `block` output rows read.

    Parameters
    ----------
    spec
        The convolution.
    block
        Output rows served by one copy.
    channels
        Channels of a pixel in the copy: each input channel `spread` times in a row, then filled up with the padding's value.
    spread
        How often each input channel is repeated (a depthwise convolution with a channel multiplier).
    is_widened
        Whether bytes become int16.
    """

    spec: Conv2dSpec | FloatConv2dSpec
    block: int
    channels: int
    spread: int = 1
    is_widened: bool = False

    @property
    def width(self) -> int:
        """Columns of the copy: those that any output column reads."""
        return (self.spec.out_width - 1) * self.spec.strides[1] + self.spec.dilation[1] * (self.spec.kernel[1] - 1) + 1

    @property
    def rows(self) -> int:
        """Rows of the copy."""
        return self._read_by(self.block)

    def _read_by(self, rows: Expr) -> Expr:
        return (rows - 1) * self.spec.strides[0] + self.spec.dilation[0] * (self.spec.kernel[0] - 1) + 1

    @property
    def row_size(self) -> int:
        """Elements of one row."""
        return self.width * self.channels

    @property
    def dtype(self) -> str:
        """Element type."""
        if isinstance(self.spec, Bfloat16Conv2dSpec):
            return "uint16"
        if isinstance(self.spec, FloatConv2dSpec):
            return "float32"
        return "int16" if self.is_widened else self.spec.dtype

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it for the output rows from `first_row` of image `image`, and return its buffer.

        `padding` is the padding's value where it comes at run time, `filled` how many rows where these are fewer than a block's.
        """
        spec = self.spec
        if padding is None:
            padding = tirx.const(0 if isinstance(spec, FloatConv2dSpec) else spec.input_zero_point, self.dtype)
        elif self.is_widened:
            padding = T.cast(padding, "int16")
        scratch = T.alloc_buffer((dimension(self.rows * self.row_size + SLACK),), self.dtype)
        width, skipped = bound(self.width), max(-spec.padding[1], 0)
        row_size = width * self.channels
        left = self._bound(least(max(spec.padding[1], 0), width))
        columns = self._bound(least(bound(spec.in_width) - skipped, width - left))
        with T.serial(0, self.rows if filled is None else self._read_by(filled)) as row:
            source_row = T.Bind(first_row * spec.strides[0] - spec.padding[0] + row)
            start = T.Bind(row * row_size)
            with T.If(T.And(source_row >= 0, source_row < spec.in_height)):
                with T.Then():
                    self._fill(scratch, start, left * self.channels, padding)
                    source = (image * spec.in_height + source_row) * (spec.in_width * spec.in_channels)
                    source = T.Bind(source + skipped * spec.in_channels)
                    self._copy(scratch, start + left * self.channels, x, source, columns, padding)
                    done = (left + columns) * self.channels
                    self._fill(scratch, start + done, row_size - done, padding)
                with T.Else():
                    self._fill(scratch, start, row_size, padding)
        return scratch

    def _bound(self, size: Expr) -> Expr:
        return size if isinstance(size, int) else T.Bind(size)

    def _element(self, value: Expr) -> Expr:
        return T.cast(value, "int16") if self.is_widened else value

    def _fill(self, scratch: Expr, start: Expr, count: Expr, value: Expr) -> None:
        if not isinstance(count, int) or count > 0:
            with T.serial(0, count) as i:
                T.buffer_store(scratch, value, [start + i])

    def _copy(self, scratch: Expr, start: Expr, x: Expr, source: Expr, columns: Expr, padding: Expr) -> None:
        """Copy `columns` pixels of one row; contiguous (a memory copy) where the pixels of both have the same size."""
        if isinstance(columns, int) and columns <= 0:
            return
        inputs = self.spec.in_channels
        if self.spread == 1 and self.channels == inputs:
            with T.serial(0, columns * inputs) as i:
                T.buffer_store(scratch, self._element(x[source + i]), [start + i])
            return
        with T.serial(0, columns) as column:
            with T.serial(0, inputs) as channel, T.serial(0, self.spread) as copy:
                target = start + column * self.channels + channel * self.spread + copy
                T.buffer_store(scratch, self._element(x[source + column * inputs + channel]), [target])
            filled = inputs * self.spread
            self._fill(scratch, start + column * self.channels + filled, self.channels - filled, padding)


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenedPixels:
    """Bytes of `block` pixels as int16, of images that are one long column of `pixels`, `channels` each."""

    pixels: int
    block: int
    channels: int

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        """Allocate the copy, fill it with the pixels from `first_row` on, `filled` or as many as a block has, and return it."""
        del padding
        copy = T.alloc_buffer((dimension(self.block * self.channels + SLACK),), "int16")
        start = T.Bind((image * self.pixels + first_row) * self.channels)
        if filled is not None:
            count = filled
        else:
            is_even = self.pixels % self.block == 0
            count = T.int32(self.block) if is_even else T.min(T.int32(self.block), self.pixels - first_row)
        with T.serial(0, T.Bind(count * self.channels)) as index:
            T.buffer_store(copy, T.cast(x[start + index], "int16"), [index])
        return copy
