"""float32 depthwise convolution: vectors of channels, neighbouring output pixels in registers.

    for each block of output rows          (its input stays in the second-level cache)
      for each block of channels
        for each row                       (kernel rows in the padding are skipped)
          for each tile of columns         (those at the border are written out, without their taps in the padding)
            for each kernel row, each input column: load once, for each output it touches:  acc += x * weights

Nothing is copied. Plain vectors: LLVM contracts each product and sum into a fused multiply-add where the target has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ......ir.graph.kernel_attributes import OPEN_ATTR, SCALAR_LOOPS_ATTR
from ......numerics.floats.float_function import FloatFunction
from ......runtime.shapes import largest, typical
from ......runtime.size import is_open
from ..conv.float_gemm import FloatArray, clamped, state_arguments
from ..conv.float_spec import FloatConv2dSpec
from ..conv.loops.shares import balanced_block
from ..conv.stored_weights import load_weights, stored
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Expr, bound, chunked, chunks_for, interior, load, prim_func, split, store
from ..language.x86.vector import LANES
from ..observer.statistics import ObserveSpec
from ..observer.x86_observe_tiles import TileObserver

INPUT_BYTES = 256 * 1024  # of the input rows that one block reads again for each block of channels
MAX_TAPS = 64  # products written out for one kernel row of a tile


def channel_blocks(channels: int, lanes: int) -> list[tuple[int, int]]:
    """Return (first channel, width) of vectors of `lanes` that cover `channels`, the last may overlap; below, powers of two."""
    if channels >= lanes:
        starts = list(range(0, channels - lanes + 1, lanes))
        return [(start, lanes) for start in (starts if channels % lanes == 0 else [*starts, channels - lanes])]
    blocks: list[tuple[int, int]] = []
    start = 0
    while start < channels:
        width = 1 << ((channels - start).bit_length() - 1)
        blocks.append((start, width))
        start += width
    return blocks


class FloatDepthwise:
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each.

    `lanes` are the channels of a vector, of one register or some.
    """

    lanes: ClassVar[int] = LANES

    def __init__(
        self,
        spec: FloatConv2dSpec,
        weight: FloatArray,
        bias: FloatArray,
        *,
        columns: int,
        observe: ObserveSpec | None = None,
    ) -> None:
        """Take at most `columns` neighbouring outputs at once; with `observe`, observe them, whom `spec` does not clamp then."""
        assert observe is None or (spec.threads == 1 and spec.out_channels % LANES == 0), "whole vectors, on one thread"
        assert spec.groups == spec.in_channels == spec.out_channels, "a depthwise convolution has one channel to a group"
        self.spec = spec
        self.observe = observe
        most = min(columns, max(1, MAX_TAPS // spec.kernel[1]))
        is_sized = not is_open(spec.out_width)
        self.width = -(-spec.out_width // -(-spec.out_width // most)) if is_sized else most  # tiles of about the same width
        self.constants: tuple[npt.NDArray[Any], ...] = (
            # HWIO with I = 1: taps, then channels.
            stored(np.ascontiguousarray(weight, np.float32).ravel(), spec.weight_dtype),
            np.ascontiguousarray(bias, np.float32),
        )

    def build(self, name: str, isa: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        self.isa = isa
        spec = self.spec
        arguments = [
            ("x", spec.batch * spec.in_height * spec.in_width * spec.in_channels, self._dtypes[0]),
            *state_arguments(self.observe),
            ("weights", self.constants[0].size, str(self.constants[0].dtype)),
            ("bias", self.constants[1].size, "float32"),
            ("out", spec.batch * spec.out_height * spec.out_width * spec.out_channels, self._dtypes[1]),
        ]
        func: Any = prim_func(arguments, self._emit)
        if OPEN_ATTR in func.attrs:
            func = func.with_attr(SCALAR_LOOPS_ATTR, 1)
        return Kernel(name=f"{name} {self.width}x{self.lanes}", isa=isa, func=func, constants=self.constants)

    def _emit(self, x: Expr, *rest: Expr) -> None:
        *states, self.weights, self.bias, self.out = rest
        self.x = x
        spec = self.spec
        self.observer = None
        if self.observe is not None:
            self.observer = TileObserver(self.observe, *states, values=self.width * LANES, slots=spec.kernel[0])
        pixels = typical(spec.batch * spec.out_height * spec.out_width)
        cycles = pixels * spec.out_channels * spec.kernel[0] * spec.kernel[1] // LANES
        threads = chunks_for(spec.threads, cycles, typical(spec.batch * spec.out_height))
        block = self._block_rows(threads)
        blocks = -(-spec.out_height // block)
        with chunked(spec.batch * blocks, threads) as unit:
            image, number = split(unit, blocks) if spec.batch != 1 else (T.int32(0), unit)
            image, first_row = T.Bind(image) if spec.batch != 1 else image, T.Bind(number * block)
            rows = T.min(T.int32(0) + block, spec.out_height - first_row) if blocks != 1 else spec.out_height
            self.distances = self._emit_distances() if is_open(spec.in_width) else None
            lanes, widths = self.lanes, channel_blocks(spec.in_channels, self.lanes)
            looped = sum(width == lanes and start % width == 0 for start, width in widths)
            if looped:
                with T.serial(0, looped) as index:
                    self._emit_rows(image, first_row, rows, T.Bind(index * lanes), lanes)
            for start, width in widths[looped:]:
                self._emit_rows(image, first_row, rows, T.int32(start), width)
        if self.observer is not None:
            self.observer.drain()

    def _emit_distances(self) -> Expr:
        """Emit how far rows of taps lie apart in the input, and in the weights, and return what holds it.

        What is loaded, LLVM does not follow from turn to turn: to choose among the ways in which open distances could be added up
        takes it as long as all else that becomes machine code.
        """
        spec, taps = self.spec, self.spec.kernel[0]
        distances: Any = T.alloc_buffer((2 * taps,), "int32", scope="local")
        for tap in range(taps):
            T.buffer_store(distances, T.int32(0) + tap * spec.dilation[0] * spec.in_width * spec.in_channels, [tap])
            T.buffer_store(distances, T.int32(0) + tap * spec.kernel[1] * spec.in_channels, [taps + tap])
        return distances

    def _block_rows(self, threads: int) -> int:
        """Output rows of one block: few enough for the cache, and enough blocks for the threads."""
        spec = self.spec
        affordable = INPUT_BYTES // (spec.in_width * spec.in_channels * 4) - spec.dilation[0] * (spec.kernel[0] - 1)
        return balanced_block(spec.out_height, largest((1, affordable // spec.strides[0])), spec.batch, threads)

    def _emit_rows(self, image: Expr, first_row: Expr, rows: Expr, channel: Expr, lanes: int) -> None:
        spec = self.spec
        always = spec.padding[0] == 0 and spec.padding[2] == 0
        with T.serial(0, rows) as row:
            top = T.Bind((first_row + row) * spec.strides[0] - spec.padding[0])
            taps = interior(top, spec.kernel[0], spec.dilation[0], spec.in_height, always=always)
            at = T.Bind((image * spec.in_height + top) * (spec.in_width * spec.in_channels) + channel)
            out_row = image * spec.out_height + first_row + row
            out_at = T.Bind(out_row * (spec.out_width * spec.out_channels) + channel)

            def tile(column: Expr, count: int, at: Expr = at, out_at: Expr = out_at, taps: tuple[Expr, Expr] = taps) -> None:
                self._emit_tile(at, out_at, channel, lanes, column, count, taps)

            if is_open(spec.in_width):
                self._for_open_columns(tile)
            else:
                self._for_columns(tile)

    def _for_open_columns(self, tile: Callable[[Expr, int], None]) -> None:
        """Emit tile(first column, columns) over one row, in tiles and what they leave by two, and by one."""
        width, most = T.Bind(T.int32(0) + self.spec.out_width), self.width
        full = T.Bind(T.truncdiv(width, T.int32(most)))
        with T.serial(0, full) as index:
            tile(T.Bind(index * most), most)
        left = T.Bind(width - full * most)
        if most > 2:
            with T.serial(0, T.shift_right(left, T.int32(1))) as index:
                tile(T.Bind(full * most + index * 2), 2)
        if most > 1:
            with T.If(T.bitwise_and(left, T.int32(1)) != 0), T.Then():
                tile(T.Bind(width - 1), 1)

    def _for_columns(self, tile: Callable[[Expr, int], None]) -> None:
        """Emit tile(first column, columns) over one row: the border's with constant positions, a loop over those between."""
        spec, width = self.spec, self.width
        stride, left = spec.strides[1], spec.padding[1]
        reach = spec.dilation[1] * (spec.kernel[1] - 1)
        begin = min(-(-left // stride), spec.out_width)  # the first column with no tap in the padding on the left
        end = min(max((spec.in_width - 1 - reach + left) // stride + 1, begin), spec.out_width)
        column = 0
        while column < begin:
            count = min(width, spec.out_width - column)
            tile(column, count)
            column += count
        full = max(end - column, 0) // width
        if full:
            with T.serial(0, full) as index:
                tile(column + index * width, width)
            column += full * width
        while column < spec.out_width:
            count = min(width, spec.out_width - column)
            tile(column, count)
            column += count

    def _emit_tile(
        self, at: Expr, out_at: Expr, channel: Expr, lanes: int, column: Expr, count: int, taps: tuple[Expr, Expr]
    ) -> None:
        """Emit `count` neighbouring outputs of `lanes` channels; of a row of a known width only a constant `column` may lie at
        the border."""
        spec = self.spec
        left = column * spec.strides[1] - spec.padding[1]
        outside = self._outside(left, count) if is_open(spec.in_width) else {}
        at = T.Bind(at + left * spec.in_channels)
        out_at = T.Bind(out_at + column * spec.out_channels)

        def is_interior(position: int) -> bool:
            return not isinstance(left, int) or 0 <= left + position < spec.in_width

        acc = T.alloc_buffer((count * lanes,), "float32", scope="local")
        bias = T.Bind(load(self.bias, channel, lanes))
        for pixel in range(count):
            store(acc, pixel * lanes, bias, lanes)
        uses = self._uses(count, is_interior)
        with T.serial(*taps) as ky:
            if self.distances is None:
                row = T.Bind(at + ky * (spec.dilation[0] * spec.in_width * spec.in_channels))
                weights_row = T.Bind(ky * (spec.kernel[1] * spec.in_channels) + channel)
            else:
                row = T.Bind(at + self.distances[ky])
                weights_row = T.Bind(self.distances[spec.kernel[0] + ky] + channel)
            places = [weights_row + kx * spec.in_channels for kx in range(spec.kernel[1])]
            columns = [T.Bind(load_weights(self.weights, at, lanes, spec.weight_dtype, self.isa)) for at in places]

            def take(position: int, row: Expr = row, columns: list[Expr] = columns) -> None:
                value = T.Bind(self._loaded(row + position * spec.in_channels, lanes))
                for pixel, kx in uses[position]:
                    store(acc, pixel * lanes, load(acc, pixel * lanes, lanes) + value * columns[kx], lanes)

            for position in uses:
                if position in outside:
                    with T.If(outside[position]), T.Then():
                        take(position)
                else:
                    take(position)
            if self.observer is not None:
                self.observer.slot()
        self._emit_end(acc, out_at, channel, lanes, count)

    def _outside(self, left: Expr, count: int) -> dict[int, Expr]:
        """Return the input columns of a tile which may lie in the padding, and what holds where one does not."""
        spec = self.spec
        reach = spec.dilation[1] * (spec.kernel[1] - 1)
        before, after = (reach if is_open(each) else each for each in (spec.padding[1], spec.padding[3]))
        last = (count - 1) * spec.strides[1] + reach
        left, width = T.Bind(T.int32(0) + left), bound(spec.in_width)
        found: dict[int, Expr] = {}
        for position in range(last + 1):
            bounds = [left + position >= 0] * (position < before) + [left + position < width] * (position > last - after)
            if bounds:
                found[position] = bounds[0] if len(bounds) == 1 else T.And(*bounds)
        return found

    def _emit_end(self, acc: Expr, out_at: Expr, channel: Expr, lanes: int, count: int) -> None:
        """Emit what becomes of the sums of neighbouring outputs, and their stores."""
        spec = self.spec
        if spec.function is not None:
            self._emit_function(spec.function, acc, out_at, lanes, count)
            return
        sums = [T.Bind(load(acc, pixel * lanes, lanes)) for pixel in range(count)]
        if self.observer is not None:
            self.observer.take([sums], channel, lambda pixel: out_at + pixel * spec.out_channels)
        for pixel, value in enumerate(sums):
            result = clamped(value, spec, lanes) if self.observer is None else self.observer.clamped(value)
            self._store(out_at + pixel * spec.out_channels, result, lanes)

    def _emit_function(self, function: FloatFunction, acc: Expr, out_at: Expr, lanes: int, count: int) -> None:
        """Emit the function of each sum and its store, in a loop: written out for each, the code would be long."""
        sums: Any = T.alloc_buffer((count * lanes,), "float32", scope="local")
        for pixel in range(count):
            store(sums, pixel * lanes, load(acc, pixel * lanes, lanes), lanes)
        with T.serial(0, count) as pixel:
            value = ElementMath(lanes).apply(function, [load(sums, pixel * lanes, lanes)])
            self._store(out_at + pixel * self.spec.out_channels, value, lanes)

    @property
    def _dtypes(self) -> tuple[str, str]:
        """Return how the input and the result are stored."""
        return "float32", "float32"

    def _loaded(self, index: Expr, lanes: int) -> Expr:
        """Return neighbours of the input in float32."""
        return load(self.x, index, lanes)

    def _store(self, index: Expr, value: Expr, lanes: int) -> None:
        """Emit the store of neighbours of the result."""
        store(self.out, index, value, lanes)

    def _uses(self, count: int, is_interior: Callable[[int], bool]) -> dict[int, list[tuple[int, int]]]:
        """Return for each input column, relative to the tile's first, the (output, kernel column) pairs that read it."""
        spec = self.spec
        uses: dict[int, list[tuple[int, int]]] = {}
        for pixel in range(count):
            for kx in range(spec.kernel[1]):
                position = pixel * spec.strides[1] + kx * spec.dilation[1]
                if is_interior(position):
                    uses.setdefault(position, []).append((pixel, kx))
        return dict(sorted(uses.items()))
