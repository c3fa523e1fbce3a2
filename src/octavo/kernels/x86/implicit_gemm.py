"""Convolution and matmul as an implicit matrix product: register tiles of pixels x channels, walking NHWC bytes in place.

    for each block of output rows          (a padded copy of its input rows, if there is padding)
      for each panel of output channels    (its weights stay in the first-level cache)
        for each tile of pixels            (its accumulators stay in registers)
          for each tap, for each 4 bytes:  acc[pixel][vector] += dot(4 bytes of the pixel, weights)
          requantize, narrow, store

Pointwise layers and matmuls are one column of pixels, one tap. No im2col buffer, no transformed copy of the input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as T

from ..isa import AVX512_VNNI
from ..spec import Conv2dSpec, Kernel
from ..vectors import Expr, prim_func, worthwhile
from . import vector as v
from .epilogue import Epilogue, groups_of
from .packing import Reduction, Weights, merge_groups, pack_lanes, pack_weights, panel_widths
from .scratch import Scratch
from .tiles import Tile, choose_tile, layer_cycles
from .vector import LANES
from .window_sum import emit_window_sum

INPUT_BLOCK_BYTES = 128 * 1024  # of the input that one block reads for every panel: it must stay in the second-level cache
UNROLLED_STEPS = 4  # a run of at most this many steps is written out, a longer one is a loop
SHORT_REDUCTION = 8  # steps: a single run this short is written out too, and its accumulators start from the bias


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Where the bytes of each output pixel's window lie in the source, and how the output is laid out.

    Parameters
    ----------
    images, rows, columns
        Output pixels.
    row_stride, column_stride
        Bytes of the source from one output pixel's window to the next one's.
    image_stride
        Bytes of the source from one image to the next; unused with a scratch.
    reduction
        The walk over one window.
    groups, group_inputs, group_outputs
        Channels.
    """

    images: int
    rows: int
    columns: int
    row_stride: int
    column_stride: int
    image_stride: int
    reduction: Reduction
    groups: int
    group_inputs: int
    group_outputs: int

    @property
    def channels(self) -> int:
        """Output channels of a pixel."""
        return self.groups * self.group_outputs

    @property
    def group_vectors(self) -> int:
        """Vectors of 16 lanes that hold a group's output channels."""
        return -(-self.group_outputs // LANES)


def geometry_of(spec: Conv2dSpec, groups: int, group_inputs: int, *, padded_width: int | None) -> Geometry:
    """Lay out a convolution over its input (padded_width None) or over a scratch of `padded_width` columns."""
    kernel_h, kernel_w = spec.kernel
    channels = spec.in_channels
    group_outputs = spec.out_channels // groups
    if padded_width is None and spec.kernel == (1, 1) and spec.strides == (1, 1):
        pixels = spec.batch * spec.in_height * spec.in_width  # no border between rows or images: one long column
        return Geometry(
            images=1,
            rows=pixels,
            columns=1,
            row_stride=channels,
            column_stride=0,
            image_stride=0,
            reduction=Reduction(taps=(), run=group_inputs),
            groups=groups,
            group_inputs=group_inputs,
            group_outputs=group_outputs,
        )
    row_bytes = (spec.in_width if padded_width is None else padded_width) * channels
    row_tap = (kernel_h, spec.dilation[0] * row_bytes)
    if groups == 1 and (spec.dilation[1] == 1 or kernel_w == 1):
        reduction = Reduction(taps=(row_tap,), run=kernel_w * channels)
    else:
        reduction = Reduction(taps=(row_tap, (kernel_w, spec.dilation[1] * channels)), run=group_inputs)
    return Geometry(
        images=spec.batch,
        rows=spec.out_height,
        columns=spec.out_width,
        row_stride=spec.strides[0] * row_bytes,
        column_stride=spec.strides[1] * channels,
        image_stride=spec.in_height * row_bytes,
        reduction=reduction,
        groups=groups,
        group_inputs=group_inputs,
        group_outputs=group_outputs,
    )


class ImplicitGemm:
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    def __init__(self, spec: Conv2dSpec, weights: Weights, *, tile: Tile | None = None) -> None:
        values, groups = merge_groups(weights, spec.groups)
        self.spec = spec
        padded = any(spec.padding)
        self.scratch: Scratch | None = Scratch(spec=spec, block=1, channels=spec.in_channels) if padded else None
        self.geometry = geometry_of(
            spec, groups, values.shape[2], padded_width=self.scratch.width if self.scratch is not None else None
        )
        geometry = self.geometry
        steps = geometry.reduction.steps
        shape = {"rows": geometry.rows, "columns": geometry.columns, "channels": geometry.group_outputs, "steps": steps}
        self.tile = tile or choose_tile(**shape)
        cycles = geometry.images * groups * layer_cycles(self.tile, **shape)
        self.threads = worthwhile(spec.threads, int(cycles), max(geometry.images * geometry.rows, len(self.panels)))
        self.block = self._block_rows()
        if padded:
            self.scratch = Scratch(spec=spec, block=self.block, channels=spec.in_channels)
        self.epilogue = Epilogue(output=spec.output, may_exceed_int32=weights.may_exceed_int32())
        self.symmetric = weights.symmetric
        self.uniform_zero_point = int(weights.zero_points[0]) if np.ptp(weights.zero_points) == 0 else None
        vectors = self.tile.vectors
        self.constants = [
            pack_weights(values, geometry.reduction, groups, vectors),
            pack_lanes(weights.folded_bias(spec.input_zero_point), groups, vectors),
            pack_lanes(weights.multiplier, groups, vectors),
        ]
        if self.uniform_zero_point is None:
            self.constants.append(pack_lanes(-weights.zero_points, groups, vectors))

    # ---- shape of the loop nest

    def _block_rows(self) -> int:
        """Output rows of one block, a multiple of the tile's: small enough for the cache, and enough blocks for the threads."""
        geometry, tile, threads = self.geometry, self.tile, self.threads
        reduction = geometry.reduction
        span = max((extent - 1) * distance for extent, distance in reduction.taps) if reduction.taps else 0
        affordable = (INPUT_BLOCK_BYTES - span) // max(geometry.row_stride, 1)
        tiles = max(1, min(affordable, geometry.rows) // tile.rows)
        total = -(-geometry.rows // tile.rows)
        blocks = -(-total // tiles)
        if threads > 1 and geometry.images * total >= 4 * threads:  # else panels are shared out, see _shares_panels
            while (geometry.images * blocks) % threads and blocks < total:
                blocks += 1
        return -(-total // blocks) * tile.rows

    @property
    def blocks(self) -> int:
        """Blocks of rows of one image."""
        return -(-self.geometry.rows // self.block)

    @property
    def panels(self) -> list[int]:
        """Widths of a group's panels."""
        return panel_widths(self.geometry.group_outputs, self.tile.vectors)

    @property
    def _shares_panels(self) -> bool:
        """Whether threads take panels of channels each, for want of rows."""
        units = self.geometry.images * self.blocks
        threads = self.threads
        return units % threads != 0 and units < 4 * threads and len(self.panels) > 1

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        spec, geometry = self.spec, self.geometry
        in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        out_size = geometry.images * geometry.rows * geometry.columns * geometry.channels
        labels = ("weights", "bias", "multiplier", "minus_zero_point")
        operands = [(label, value.size, str(value.dtype)) for label, value in zip(labels, self.constants, strict=False)]
        func = prim_func([("x", in_size, "uint8"), *operands, ("out", out_size, "uint8")], self._emit)
        return Kernel(name=f"{name} {self.tile}", isa=AVX512_VNNI, func=func, constants=tuple(self.constants))

    def _emit(self, x: Expr, *others: Expr) -> None:
        self.x, self.operands, self.out = x, others[:-1], others[-1]
        self._emit_threads()

    def _emit_threads(self) -> None:
        threads = self.threads
        units, panels = self.geometry.images * self.blocks, len(self.panels)
        if threads == 1:
            self._emit_units(0, units, 0, panels)
            return
        with T.parallel(0, threads) as chunk:
            if self._shares_panels:
                self._emit_units(0, units, chunk * panels // threads, (chunk + 1) * panels // threads)
            else:
                self._emit_units(chunk * units // threads, (chunk + 1) * units // threads, 0, panels)

    def _emit_units(self, first: Expr, last: Expr, first_panel: Expr, last_panel: Expr) -> None:
        """Emit the loop over blocks of rows, all images in one sequence."""
        geometry = self.geometry
        with T.serial(0, last - first) as index:
            unit = T.Bind(first + index) if not isinstance(first, int) else index
            image, block = T.floordiv(unit, self.blocks), T.floormod(unit, self.blocks)
            first_row = T.Bind(block * self.block)
            if self.scratch is not None:
                source, base = self.scratch.emit(self.x, image, first_row), T.int32(0)
            else:
                source, base = self.x, T.Bind(image * geometry.image_stride + first_row * geometry.row_stride)
            out_base = T.Bind((image * geometry.rows + first_row) * (geometry.columns * geometry.channels))
            if geometry.groups == 1:
                self._emit_group(source, base, out_base, block, T.int32(0), first_panel, last_panel)
            else:
                with T.serial(0, geometry.groups) as group:
                    inside = T.Bind(base + group * geometry.group_inputs)
                    out_inside = T.Bind(out_base + group * geometry.group_outputs)
                    vector = T.Bind(group * geometry.group_vectors)
                    self._emit_group(source, inside, out_inside, block, vector, first_panel, last_panel)

    def _emit_group(
        self, source: Expr, base: Expr, out_base: Expr, block: Expr, vector: Expr, first_panel: Expr, last_panel: Expr
    ) -> None:
        """Emit the panels of one group over one block; `vector` is the group's first vector of the packed operands."""
        sums = None if self.symmetric else self._emit_window_sums(source, base, block)
        widths = self.panels
        width = widths[0]
        whole = len(widths) if widths[-1] == width else len(widths) - 1

        def panel(index: Expr, vectors: int) -> None:
            first = T.Bind(vector + index * width)
            channels = (
                min(vectors * LANES, self.geometry.group_outputs - index * width * LANES) if isinstance(index, int) else None
            )
            self._emit_rows(source, base, T.Bind(out_base + index * (width * LANES)), block, first, vectors, channels, sums)

        # The last panel is written out apart wherever it differs from the others: narrower, or with padding lanes.
        ragged = whole < len(widths) or self.geometry.group_outputs % LANES != 0
        looped = len(widths) - 1 if ragged else len(widths)
        if looped:
            with self._panel_loop(first_panel, last_panel, looped) as index:
                panel(index, width)
        if ragged:
            if isinstance(last_panel, int):
                panel(len(widths) - 1, widths[-1])
            else:
                with T.If(T.And(first_panel < len(widths), last_panel == len(widths))), T.Then():
                    panel(len(widths) - 1, widths[-1])

    def _panel_loop(self, first: Expr, last: Expr, looped: int) -> Expr:
        if isinstance(first, int):
            return T.serial(0, looped)
        return T.serial(first, T.min(last, T.int32(looped)))

    def _tile_rows(self, block: Expr) -> tuple[Expr, int]:
        """Return how many whole tiles of rows the block holds, and the rows of the tile that is left over in the last block."""
        whole, left = divmod(self.geometry.rows, self.tile.rows)
        per_block = self.block // self.tile.rows
        if self.blocks == 1:
            return whole, left
        return T.min(T.int32(per_block), whole - block * per_block), left

    def _for_tiles(self, block: Expr, body: Callable[[Expr, Expr, int, int], None]) -> None:
        """Emit body(first row within the block, first column, height, width) for every tile of the block."""
        tile, columns = self.tile, self.geometry.columns

        def row_of_tiles(row: Expr, height: int) -> None:
            if columns // tile.columns == 1:
                body(row, 0, height, tile.columns)
            else:
                with T.serial(0, columns // tile.columns) as index:
                    body(row, index * tile.columns, height, tile.columns)
            if columns % tile.columns:
                body(row, columns - columns % tile.columns, height, columns % tile.columns)

        count, left = self._tile_rows(block)
        with T.serial(0, count) as index:
            row_of_tiles(index * tile.rows, tile.rows)
        if left and self.blocks == 1:
            row_of_tiles(self.geometry.rows - left, left)
        elif left:
            with T.If(block == self.blocks - 1), T.Then():
                row_of_tiles(self.geometry.rows - left - block * self.block, left)

    def _emit_window_sums(self, source: Expr, base: Expr, block: Expr) -> Expr:
        """Emit the correction for asymmetric weights, one int32 for each pixel of the block, and return its buffer.

        It is -zero_point * sum(x) where all channels share the zero point, else sum(x).
        """
        geometry = self.geometry
        sums = T.alloc_buffer((self.block * geometry.columns,), "int32")
        rows = self.block if self.blocks == 1 else T.min(T.int32(self.block), geometry.rows - block * self.block)
        if self.blocks == 1:
            rows = geometry.rows
        with T.serial(0, rows) as row, T.serial(0, geometry.columns) as column:
            first = T.Bind(base + row * geometry.row_stride + column * geometry.column_stride)
            total = emit_window_sum(source, first, geometry.reduction, has_slack=self.scratch is not None)
            if self.uniform_zero_point is not None:
                total = total * T.int32(-self.uniform_zero_point)
            T.buffer_store(sums, total, [row * geometry.columns + column])
        return sums

    def _emit_rows(
        self,
        source: Expr,
        base: Expr,
        out_base: Expr,
        block: Expr,
        vector: Expr,
        vectors: int,
        channels: int | None,
        sums: Expr | None,
    ) -> None:
        """Emit all tiles of one panel over one block; `channels` is None for a panel without padding lanes."""
        geometry = self.geometry

        def body(row: Expr, column: Expr, height: int, width: int) -> None:
            pixel = T.Bind(row * geometry.columns + column)
            at = T.Bind(base + row * geometry.row_stride + column * geometry.column_stride)
            out_at = T.Bind(out_base + pixel * geometry.channels)
            offsets = [(y, x) for y in range(height) for x in range(width)]
            starts = [y * geometry.row_stride + x * geometry.column_stride for y, x in offsets]
            pixels = [y * geometry.columns + x for y, x in offsets]
            acc = T.alloc_buffer((len(offsets) * vectors * LANES,), "int32", scope="local")
            # Accumulators of a loop start from 0: started from the bias, LLVM joins those of all tiles into one live range and
            # spills them inside the loops. Where there is no loop, the bias is the cheaper start.
            short = geometry.reduction.runs == 1 and geometry.reduction.steps <= SHORT_REDUCTION
            if short:
                self._emit_bias(acc, pixels, pixel, vector, vectors, sums, start=True)
            else:
                for i in range(len(offsets) * vectors):
                    v.store(acc, i * LANES, T.broadcast(T.int32(0), LANES), LANES)
            self._emit_reduction(acc, source, at, starts, vector, vectors)
            if not short:
                self._emit_bias(acc, pixels, pixel, vector, vectors, sums, start=False)
            self._emit_finish(acc, out_at, pixels, vector, vectors, vectors * LANES if channels is None else channels)

        self._for_tiles(block, body)

    # ---- one tile

    def _emit_bias(
        self, acc: Expr, pixels: list[int], pixel: Expr, vector: Expr, vectors: int, sums: Expr | None, *, start: bool
    ) -> None:
        """Emit acc = (`start`) or acc += the folded bias, less the correction for asymmetric weights."""
        for j in range(vectors):
            bias = T.Bind(v.load(self.operands[1], (vector + j) * LANES, LANES))
            minus_zero_point = None
            if sums is not None and self.uniform_zero_point is None:
                minus_zero_point = T.Bind(v.load(self.operands[3], (vector + j) * LANES, LANES))
            for i, offset in enumerate(pixels):
                value = bias
                if sums is not None:
                    correction = T.broadcast(sums[pixel + offset], LANES)
                    value = bias + (correction if minus_zero_point is None else correction * minus_zero_point)
                index = (i * vectors + j) * LANES
                v.store(acc, index, value if start else v.load(acc, index, LANES) + value, LANES)

    def _emit_reduction(self, acc: Expr, source: Expr, at: Expr, starts: list[int], vector: Expr, vectors: int) -> None:
        """Emit the loops over taps and steps."""
        reduction = self.geometry.reduction
        step_bytes = vectors * 4 * LANES
        run_bytes = len(reduction.step_starts) * step_bytes
        packed = self.operands[0]
        weights_at = T.Bind(vector * (reduction.steps * 4 * LANES))

        def step(byte: Expr, weights: Expr) -> None:
            columns = [T.Bind(v.load(packed, weights + j * 4 * LANES, 4 * LANES)) for j in range(vectors)]
            for i, start in enumerate(starts):
                if reduction.run < 4:
                    values = T.Bind(v.splat_dword(v.dword_of(source, byte + start, reduction.run)))
                else:
                    values = T.Bind(v.splat_bytes(source, byte + start))
                for j, column in enumerate(columns):
                    index = (i * vectors + j) * LANES
                    v.store(acc, index, v.dot(v.load(acc, index, LANES), values, column), LANES)

        def run(byte: Expr, weights: Expr) -> None:
            whole = reduction.run // 4
            if len(reduction.step_starts) <= (SHORT_REDUCTION if reduction.runs == 1 else UNROLLED_STEPS):
                for index, start in enumerate(reduction.step_starts):
                    step(byte + start, weights + index * step_bytes)
                return
            with T.serial(0, whole) as index:
                step(byte + index * 4, weights + index * step_bytes)
            if whole < len(reduction.step_starts):
                step(byte + reduction.step_starts[-1], weights + whole * step_bytes)

        def nest(byte: Expr, weights: Expr, taps: tuple[tuple[int, int], ...]) -> None:
            if not taps:
                run(byte, weights)
                return
            (extent, distance), rest = taps[0], taps[1:]
            inner = int(np.prod([size for size, _ in rest], dtype=np.int64)) * run_bytes
            if extent == 1:
                nest(byte, weights, rest)
                return
            with T.serial(0, extent) as tap:
                nest(T.Bind(byte + tap * distance), T.Bind(weights + tap * inner), rest)

        nest(at, weights_at, reduction.taps)

    def _emit_finish(self, acc: Expr, out_at: Expr, pixels: list[int], vector: Expr, vectors: int, channels: int) -> None:
        """Emit requantization and the stores of the first `channels` channels of each pixel."""
        first = 0
        for group in groups_of(vectors):
            valid = min(group * LANES, channels - first * LANES)
            indices = range(first, first + group)
            multipliers = [T.Bind(v.load(self.operands[2], (vector + j) * LANES, LANES)) for j in indices]
            for i, pixel in enumerate(pixels):
                accumulators = [v.load(acc, (i * vectors + j) * LANES, LANES) for j in indices]
                narrow = self.epilogue.narrow(accumulators, multipliers)
                target = out_at + pixel * self.geometry.channels + first * LANES
                v.store_partial(self.out, target, narrow, group * LANES, valid)
            first += group
