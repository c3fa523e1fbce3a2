"""The outer loops of depthwise kernels: threads, images and blocks of output rows, each block with its copy of the input."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ......runtime.shapes import largest
from ......runtime.size import is_open
from ..conv.loops.scratch import Scratch, padding_value
from ..conv.loops.shares import balanced_block
from ..conv.spec import Conv2dSpec
from ..language.schedule import WindowSchedule
from ..language.vectors import Expr, split


class DepthwiseRows:
    """What kernels of either product have in common; they decide the fields, and emit what a block computes."""

    spec: Conv2dSpec
    channels: int
    schedule: WindowSchedule
    threads: int
    block: int
    scratch: Scratch | None
    x: Expr
    parameters: Expr | None

    @property
    def blocks(self) -> int:
        """Blocks of rows of one image."""
        return -(-self.spec.out_height // self.block)

    def _rows_for(self, cached_bytes: int, pixel_bytes: int) -> int:
        """Output rows of one block: few enough for so many bytes of cache, and enough blocks for the threads."""
        spec = self.spec
        if self.schedule.block is not None and self.threads == 1:  # what was measured; threads need blocks of their own
            return self.schedule.block
        row_bytes = (spec.in_width + spec.padding[1] + spec.padding[3]) * pixel_bytes
        extra = spec.dilation[0] * (spec.kernel[0] - 1)
        affordable = largest((1, (cached_bytes // row_bytes - extra) // spec.strides[0]))
        return balanced_block(spec.out_height, affordable, spec.batch, self.threads)

    def _other_blocks(self) -> list[WindowSchedule]:
        """Return schedules with other blocks, to be measured; none where blocks are laid out when the kernel runs."""
        if is_open(self.block):
            return []
        rows = self.spec.out_height
        sizes = dict.fromkeys(min(rows, size) for size in (self.block * 2, self.block // 2, rows, self.block // 4) if size)
        return [WindowSchedule(outputs=self.schedule.outputs, block=size) for size in sizes if size != self.block]

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
            image, block = split(unit, self.blocks)
            first_row = T.Bind(block * self.block)
            source = self.x
            if self.scratch is not None:
                source = self.scratch.emit(self.x, image, first_row, self._padding_value(image))
            out_base = T.Bind((image * spec.out_height + first_row) * (spec.out_width * spec.out_channels))
            rows: Expr = spec.out_height
            if self.blocks != 1:
                rows = T.min(T.int32(0) + self.block, spec.out_height - first_row)
            self._emit_channels(source, image, first_row, out_base, rows)

    def _padding_value(self, image: Expr) -> Expr | None:
        """Return what padding of an image is filled with; None for the constant that the copy knows."""
        return padding_value(self.spec, self.parameters, image)

    def _emit_channels(self, source: Expr, image: Expr, first_row: Expr, out_base: Expr, rows: Expr) -> None:
        """Emit all blocks of channels of one block of rows."""
        raise NotImplementedError
