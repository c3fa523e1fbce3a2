"""float32 convolution and matmul as an implicit matrix product, with the loops of the integer one.

    for each tile of pixels x vectors:   for each tap, for each input channel:  acc[pixel][vector] += x * weights

A step is one input channel: its value in every lane, times one vector of weights for each 16 output channels. Written in plain
vectors: LLVM contracts each product and sum into a fused multiply-add where the target has one. Sums run in the order of the
walk, one accumulator for each output, so a result depends neither on tiles nor on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ......ir.graph.kernel_attributes import OPEN_ATTR, SCALAR_LOOPS_ATTR
from ......numerics.floats.float_function import FloatFunction
from ......numerics.statistics.observer_state import COUNTS_SIZE
from ......runtime.shapes import typical
from ......runtime.size import is_open
from ..language.float_function import ElementMath
from ..language.isa import AVX512_VNNI
from ..language.kernel import Kernel
from ..language.partial import load_partial
from ..language.schedule import NO_SCHEDULES, Schedules
from ..language.vectors import (
    Expr,
    chunks_for,
    clamped_to,
    for_open_tiles,
    load,
    prefetch,
    prim_func,
    shuffled,
    store,
    store_partial,
)
from ..language.x86.vector import LANES
from ..observer.statistics import ObserveSpec
from ..observer.x86_observe_tiles import TileObserver
from .float_parts import Part, steps_of_part
from .float_spec import FloatConv2dSpec
from .loops.borders import Borders
from .loops.float_packing import pack_bias, pack_weights
from .loops.gemm_loops import GemmLoops, Panel, TilePlace, for_runs
from .loops.geometry import geometry_of
from .loops.open_tiles import has_tile_for_each
from .loops.scratch import Scratch
from .loops.strips import Strips, StripTile
from .loops.tiles import Core, Tile
from .schedule_key import schedule_key
from .stored_weights import load_weights, stored
from .x86.cores import CORES

FloatArray = npt.NDArray[np.float32]
FAR_BYTES = 512 * 1024  # of a result: one as large lies beyond the second-level cache
UNROLLED_STEPS = 4  # steps of a run that are written out together


class FloatGemm(GemmLoops):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    element_bytes = 4
    dtype = "float32"
    step_elements = 1  # of the input that one step takes
    skips_borders = True  # taps that lie in the padding for all pixels of a run
    takes_any_pixels = True
    strung_panels = 4
    part: Part | None = None

    def __init__(
        self,
        spec: FloatConv2dSpec,
        weight: FloatArray,
        bias: FloatArray,
        *,
        tile: Tile | None = None,
        core: Core = CORES[AVX512_VNNI],
        observe: ObserveSpec | None = None,
        schedules: Schedules = NO_SCHEDULES,
    ) -> None:
        """Take the tile, or choose one; with `observe`, observe what is computed, which `spec` does not clamp then."""
        assert observe is None or can_observe(spec), "only whole vectors are observed, on one thread"
        self.spec = spec
        self.observe = observe
        self.observer: TileObserver | None = None
        self.takes_any_pixels = self.takes_any_pixels and observe is None and spec.function is None
        self.has_few_pixels = not is_open(spec.in_width)
        if spec.function is None:  # which takes registers of its own
            self.open_accumulators = 24  # as many as where rows are known: a panel of weights is read less often
        padded = Scratch(spec=spec, block=1, channels=spec.in_channels) if any(spec.padding) else None
        self.is_copied = padded is not None
        self.geometry = geometry = geometry_of(
            spec, spec.groups, weight.shape[2], padded_width=padded.width if padded is not None else None
        )
        self.steps = geometry.reduction.runs * -(-geometry.reduction.run // self.step_elements)
        # What is not finite is multiplied by the zeros of the padding, too.
        skips = self.skips_borders and bool(np.isfinite(weight).all())
        self.borders = Borders.of(spec, weight.shape[2], self.step_elements) if skips else None
        shape: dict[str, Any] = {
            "channels": geometry.group_outputs,
            "steps": self.steps,
            "borders": self.borders,
        }
        self.key = schedule_key(spec)
        self.is_tunable = tile is None and observe is None
        if tile is not None:
            self._take_tile(tile, core, shape)
        else:
            self._choose_tile(self.key, schedules if self.is_tunable else NO_SCHEDULES, core, shape)
        if self.takes_any_pixels:
            inputs, step = weight.shape[2], self.step_elements
            tap_steps = None if inputs % step else inputs // step
            self.strips = Strips.of(spec, geometry, self.tile, self.steps, tap_steps, skips=skips)
        one_tile = not is_open(geometry.rows) and geometry.rows <= self.tile.rows
        takes_parts = not (one_tile or geometry.reduction.taps or observe is not None)
        self.depth = steps_of_part(core, self.steps, self.tile.vectors) if takes_parts else self.steps
        self.far_block_bytes = core.far_block_bytes or self.far_block_bytes
        self.threads = chunks_for(spec.threads, self.cycles, max(typical(geometry.images * geometry.rows), len(self.panels)))
        self.block = self._block_rows()
        self.scratch = Scratch(spec=spec, block=self.block, channels=spec.in_channels) if padded is not None else None
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._packed(weight),
            "bias": pack_bias(bias, geometry.groups),
        }

    @property
    def block_row_elements(self) -> int:
        """Elements of a row that the panels of a block read again and again."""
        return self.geometry.row_stride if self.depth == self.steps else self.depth

    @property
    def column_lanes(self) -> int:
        """Channels of every access to a tile's sums: were some wider than others, LLVM would keep sums in memory."""
        return LANES

    def _packed(self, weight: FloatArray) -> npt.NDArray[Any]:
        """Return the weights as steps read them, one-dimensional."""
        return stored(pack_weights(weight, self.geometry.groups, self.tile.vectors), self.spec.weight_dtype)

    def _loaded_weights(self, index: Expr, lanes: int = LANES) -> Expr:
        """Return a vector of weights as products take it."""
        return load_weights(self.weights, index, lanes, self.spec.weight_dtype, self.isa)

    def build(self, name: str, isa: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        self.isa = isa
        spec, geometry = self.spec, self.geometry
        in_size = spec.batch * spec.in_height * spec.in_width * spec.in_channels
        assert geometry.interleave is None, "a part of an image is no tensor"
        out_size = geometry.images * geometry.rows * geometry.columns * geometry.channels
        operands = [(label, value.size, str(value.dtype)) for label, value in self.constants.items()]
        others = [("addend", out_size, self._addend_dtype)] if spec.adds else state_arguments(self.observe)
        func: Any = prim_func([("x", in_size, self.dtype), *others, *operands, ("out", out_size, self._out_dtype)], self._emit)
        if OPEN_ATTR in func.attrs and not self.is_copied:
            func = func.with_attr(SCALAR_LOOPS_ATTR, 1)
        return Kernel(
            name=f"{name} {self.tile}",
            isa=isa,
            func=func,
            constants=tuple(self.constants.values()),
            tunable=self._tunable(self.key) if self.is_tunable else None,
        )

    @property
    def _addend_dtype(self) -> str:
        return self.dtype

    @property
    def _out_dtype(self) -> str:
        return self.dtype

    def emit_serial(self, isa: str, x: Expr, *rest: Expr) -> None:
        """Emit the loops of one thread over the buffers that `build` makes arguments, into a function that has more to do."""
        self.isa = isa
        self._take(x, *rest)
        self._emit_units(0, self.geometry.images * self.blocks, 0, len(self.panels))

    def _take(self, x: Expr, *rest: Expr) -> list[Expr]:
        """Keep the buffers, and return those that stand between the input and the constants."""
        *others, self.weights, self.bias, self.out = rest
        self.x = x
        self.addend = others[0] if self.spec.adds else None
        return others

    def _emit(self, x: Expr, *rest: Expr) -> None:
        others = self._take(x, *rest)
        if self.observe is None:
            self._emit_threads()
            return
        reduction = self.geometry.reduction
        self.observer = TileObserver(
            self.observe,
            *others,
            values=self.tile.pixels * self.tile.vectors * LANES,
            slots=reduction.runs * (reduction.run if reduction.run > UNROLLED_STEPS else 1),
        )
        self._emit_threads()
        self.observer.drain()

    def _emit_group(
        self, source: Expr, base: Expr, out_base: Expr, block: Expr, group: Expr, first_panel: Expr, last_panel: Expr
    ) -> None:
        """Emit the panels of one group over one block, part by part of their steps; the result holds the sums between."""
        if self.depth == self.steps:
            super()._emit_group(source, base, out_base, block, group, first_panel, last_panel)
            return
        depth: Expr = self.depth
        if self.filled is not None:  # of rows that one tile holds no other takes the weights
            depth = T.Bind(T.Select(self.filled <= self.tile.rows, T.int32(self.steps), T.int32(depth)))
        with T.serial(0, T.truncdiv(self.steps + depth - 1, depth)) as index:
            first = T.Bind(index * depth)
            self.part = Part(first=first, steps=T.Bind(T.min(T.int32(self.steps) - first, depth)), all_steps=self.steps)
            super()._emit_group(source, base, out_base, block, group, first_panel, last_panel)

    def _for_open_tiles(self, count: Expr, size: int, body: Callable[[Expr, int], None], *, are_few: bool) -> None:
        if self.part is None or has_tile_for_each(size, are_few=are_few):
            super()._for_open_tiles(count, size, body, are_few=are_few)
        else:  # what is taken twice would be added twice
            for_open_tiles(count, size, body, overlaps=False)

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit all tiles of one panel over one block."""
        geometry = self.geometry

        def body(place: TilePlace) -> None:
            at = T.Bind(base + place.row * geometry.row_stride + place.column * geometry.column_stride)
            out_at = T.Bind(out_base + place.row * geometry.row_pitch + place.column * geometry.pixel_pitch)
            offsets = place.pixels
            starts = [y * geometry.row_stride + x * geometry.column_stride for y, x in offsets]
            pixels = [y * geometry.row_pitch + x * geometry.pixel_pitch for y, x in offsets]
            self._emit_prefetches(out_at, pixels, panel)
            acc = self._emit_start(len(offsets), panel)
            if self.part is not None:
                self._emit_part(self.part, acc, source, (at, out_at), (starts, pixels), panel, place)
                return
            if self.borders is None:
                self._emit_reduction(acc, source, at, starts, panel)
            else:
                self._emit_bordered(acc, source, at, starts, panel, place, block)
            self._emit_end(acc, out_at, pixels, panel, place)

        def strung(tile: StripTile) -> None:
            acc = self._emit_start(tile.size, panel)
            self._emit_strung(acc, source, base, tile, panel)
            self._emit_finish(acc, out_base, [T.Bind(pixel * geometry.channels) for pixel in tile.pixels], panel)

        if self.table is None:
            self._for_tiles(block, body, panel)
        else:
            self.table.for_tiles(strung)

    def _emit_end(self, acc: Expr, out_at: Expr, pixels: list[int], panel: Panel, place: TilePlace) -> None:
        """Emit what becomes of a tile's sums."""
        if self.spec.function is not None:
            self._emit_function(self.spec.function, acc, out_at, place, panel)
        elif self.observer is None:
            self._emit_finish(acc, out_at, pixels, panel)
        else:
            self._emit_observed(self.observer, acc, out_at, pixels, panel, place.width)

    def _emit_part(
        self,
        part: Part,
        acc: Expr,
        source: Expr,
        at: tuple[Expr, Expr],
        offsets: tuple[list[int], list[int]],
        panel: Panel,
        place: TilePlace,
    ) -> None:
        """Emit a part of a tile's steps; `at` and `offsets` are of its windows, and of its outputs."""
        starts, pixels = offsets
        places = [at[1] + pixel for pixel in pixels]
        part.resume(acc, self.out, places, panel)
        weights = T.Bind(self._weights_at(panel) + part.first * self._pitches(panel)[0])
        self._emit_run(acc, source, T.Bind(at[0] + part.first), weights, part.steps, list(enumerate(starts)), panel)
        with T.If(part.is_last):
            with T.Then():
                self._emit_end(acc, at[1], pixels, panel, place)
            with T.Else():
                part.leave(acc, self.out, places, panel)

    def _emit_start(self, pixels: int, panel: Panel) -> Expr:
        """Allocate the sums of a tile, and start them from 0, not from the bias: see ImplicitGemm."""
        registers = self._accumulated(pixels) * panel.vectors
        acc = T.alloc_buffer((registers * LANES,), "float32", scope="local")
        for index in range(0, registers * LANES, self.column_lanes):
            store(acc, index, T.broadcast(T.float32(0), self.column_lanes), self.column_lanes)
        return acc

    def _accumulated(self, pixels: int) -> int:
        """Return for how many pixels a tile of so many has sums."""
        return pixels

    def _emit_prefetches(self, out_at: Expr, pixels: list[int], panel: Panel) -> None:
        """Ask for what the end of the tile reads and writes, where that is too much to be near: the next tile waits for it."""
        geometry = self.geometry
        outputs = geometry.images * geometry.rows * geometry.columns
        elements = 0 if is_open(outputs) else outputs * geometry.channels
        if elements * self.element_bytes < FAR_BYTES:
            return
        for pixel in pixels:
            for j in range(panel.vectors):
                index = out_at + pixel + j * LANES
                prefetch(self.out, index, to_write=True)
                if self.addend is not None:
                    prefetch(self.addend, index, to_write=False)

    def _emit_reduction(self, acc: Expr, source: Expr, at: Expr, starts: Sequence[Expr], panel: Panel) -> None:
        """Emit the loops over taps and steps."""
        taps = self.geometry.reduction.taps
        self._emit_taps(acc, source, at, self._weights_at(panel), taps, list(enumerate(starts)), panel)

    def _emit_taps(
        self,
        acc: Expr,
        source: Expr,
        at: Expr,
        weights_at: Expr,
        taps: tuple[tuple[int, int], ...],
        pixels: list[tuple[int, Expr]],
        panel: Panel,
    ) -> None:
        """Emit the loops over these taps and over the steps of each."""
        length = self.geometry.reduction.run

        def run(element: Expr, weights: Expr) -> None:
            self._emit_run(acc, source, element, weights, length, pixels, panel)

        for_runs(taps, at, weights_at, -(-length // self.step_elements) * panel.vectors * LANES, run)

    def _emit_strung(self, acc: Expr, source: Expr, base: Expr, tile: StripTile, panel: Panel) -> None:
        """Emit the loops over those taps that some pixel of a strip's tile reads outside the padding."""
        if tile.reads_all:
            self._emit_reduction(acc, source, base, tile.starts, panel)
            return
        reduction, pixels = self.geometry.reduction, list(enumerate(tile.starts))

        def walk(element: Expr, weights: Expr, elements: Expr | None) -> None:
            if elements is None:
                self._emit_taps(acc, source, element, weights, reduction.taps[1:], pixels, panel)
            else:
                self._emit_run(acc, source, element, weights, elements, pixels, panel)

        row_weights = self.steps // self.spec.kernel[0] * panel.vectors * LANES
        tile.for_taps(reduction, base, self._weights_at(panel), row_weights, walk)

    def _emit_bordered(
        self, acc: Expr, source: Expr, at: Expr, starts: list[int], panel: Panel, place: TilePlace, block: Expr
    ) -> None:
        """Emit the loops over those taps that some row of the tile, and each of these columns, reads outside the padding."""
        assert self.borders is not None
        reduction, weights_at, columns = self.geometry.reduction, self._weights_at(panel), self.borders.columns
        row_size = self.steps // self.borders.rows.count * panel.vectors * LANES
        tap_steps = self.steps // (self.borders.rows.count * columns.count)
        are_neighbours = len(reduction.taps) == 1

        def tap_row(tap: Expr) -> None:
            element, weights = T.Bind(at + tap * reduction.taps[0][1]), T.Bind(weights_at + tap * row_size)
            for run in place.runs:
                pixels = place.read_in(run, starts)

                def walk(first: Expr, elements: int, distance: int, pixels: list[tuple[int, int]] = pixels) -> None:
                    start = T.Bind(element + first * distance)
                    packed = T.Bind(weights + first * (tap_steps * panel.vectors * LANES))
                    self._emit_run(acc, source, start, packed, elements, pixels, panel)

                if are_neighbours and run.last - run.first == columns.count:  # a step may hold parts of two taps
                    self._emit_run(acc, source, element, weights, reduction.run, pixels, panel)
                elif are_neighbours:  # the taps of a row lie side by side: one walk over all of them
                    tap = tap_steps * self.step_elements
                    walk(run.first, (run.last - run.first) * tap, tap)
                elif run.last - run.first == 1:
                    walk(run.first, reduction.run, reduction.taps[1][1])
                else:  # the last step of a tap may hold fewer elements than others: what lies behind is another pixel's
                    with T.serial(run.first, run.last) as index:
                        walk(index, reduction.run, reduction.taps[1][1])

        self._for_row_taps(place, block, tap_row)

    def _weights_at(self, panel: Panel) -> Expr:
        return T.Bind(panel.first * (self.steps * LANES))

    def _pitches(self, panel: Panel) -> tuple[int, int]:
        """Return how many weights lie between two steps of a panel, and between two of its vectors."""
        return (LANES, self.steps * LANES) if panel.strung else (panel.vectors * LANES, LANES)

    def _emit_run(
        self,
        acc: Expr,
        source: Expr,
        element: Expr,
        weights: Expr,
        elements: Expr,
        pixels: list[tuple[int, Expr]],
        panel: Panel,
    ) -> None:
        """Emit the steps over `elements` neighbours of pixels (number, first element); whole steps where that is open."""
        step_size, pitch = self._pitches(panel)

        def step(element: Expr, weights: Expr, taken: int) -> None:
            columns = [T.Bind(self._loaded_weights(weights + j * pitch)) for j in range(panel.vectors)]
            for i, start in pixels:
                value = T.Bind(self._splat(source, element + start, taken))
                for j, column in enumerate(columns):
                    index = (i * panel.vectors + j) * LANES
                    store(acc, index, self._multiplied(load(acc, index, LANES), value, column), LANES)

        is_known = isinstance(elements, int)
        steps, left = divmod(elements, self.step_elements) if is_known else (T.truncdiv(elements, self.step_elements), 0)

        def numbered(index: Expr) -> None:
            step(element + index * self.step_elements, weights + index * step_size, self.step_elements)

        if is_known and steps <= UNROLLED_STEPS:
            for index in range(steps):
                numbered(index)
            if self.observer is not None:
                self.observer.slot()
        elif self.observer is not None:
            self.observer.among(steps, numbered)
        else:
            with T.serial(0, steps) as index:
                numbered(index)
        if left:
            step(element + steps * self.step_elements, weights + steps * step_size, left)

    def _splat(self, source: Expr, element: Expr, taken: int) -> Expr:
        """Return the `taken` elements of a step in every lane."""
        del taken
        return T.broadcast(source[element], LANES)

    def _multiplied(self, acc: Expr, value: Expr, weights: Expr) -> Expr:
        """Return the sum with a step's products."""
        return acc + value * weights

    def _summed(self, acc: Expr, index: int) -> Expr:
        """Return a vector of sums."""
        parts = [load(acc, index + first, self.column_lanes) for first in range(0, LANES, self.column_lanes)]
        return parts[0] if len(parts) == 1 else shuffled(parts, range(LANES))

    def _added(self, value: Expr, place: Expr, valid: int) -> Expr:
        """Return the value with what is added to it."""
        return value + load_partial(self.addend, place, LANES, valid)

    def _store(self, place: Expr, value: Expr, valid: int) -> None:
        """Emit the store of a vector of results."""
        store_partial(self.out, place, value, LANES, valid, "float32")

    def _emit_finish(self, acc: Expr, out_at: Expr, pixels: Sequence[Expr], panel: Panel) -> None:
        """Emit bias, addend, clamp and the stores of the panel's channels of each pixel."""
        for j in range(panel.vectors):
            bias = T.Bind(load(self.bias, (panel.first + j) * LANES, LANES))
            valid = min(LANES, panel.channels - j * LANES)
            for i, pixel in enumerate(pixels):
                value = self._summed(acc, (i * panel.vectors + j) * LANES) + bias
                place = out_at + pixel + j * LANES
                if self.addend is not None:
                    value = self._added(value, place, valid)
                self._store(place, clamped(value, self.spec, LANES), valid)

    def _emit_function(self, function: FloatFunction, acc: Expr, out_at: Expr, place: TilePlace, panel: Panel) -> None:
        """Emit bias, function and the stores, in a loop over the tile's sums: written out for each, the code would be long."""
        geometry, pixels = self.geometry, place.height * place.width
        sums: Any = T.alloc_buffer((panel.vectors * pixels * LANES,), "float32", scope="local")
        for j in range(panel.vectors):
            bias = T.Bind(load(self.bias, (panel.first + j) * LANES, LANES))
            for i in range(pixels):
                store(sums, (j * pixels + i) * LANES, self._summed(acc, (i * panel.vectors + j) * LANES) + bias, LANES)

        def column(j: Expr, valid: int) -> None:
            with T.serial(0, place.height) as y, T.serial(0, place.width) as x:
                at = T.Bind(out_at + y * geometry.row_pitch + x * geometry.pixel_pitch + j * LANES)
                values = [load(sums, (j * pixels + y * place.width + x) * LANES, LANES)]
                if self.addend is not None:
                    values.append(load_partial(self.addend, at, LANES, valid))
                self._store(at, ElementMath(LANES).apply(function, values), valid)

        full, left = divmod(panel.channels, LANES)
        if full:
            with T.serial(0, full) as j:
                column(j, LANES)
        if left:
            column(full, left)

    def _emit_observed(
        self, observer: TileObserver, acc: Expr, out_at: Expr, pixels: list[int], panel: Panel, width: int
    ) -> None:
        """Emit bias, observation, clamp and the stores of the panel's channels of each pixel."""
        geometry = self.geometry
        sums: list[list[Expr]] = []
        for j in range(panel.vectors):
            bias = T.Bind(load(self.bias, (panel.first + j) * LANES, LANES))
            places = [(i * panel.vectors + j) * LANES for i in range(len(pixels))]
            sums.append([T.Bind(load(acc, place, LANES) + bias) for place in places])

        def index_of(pixel: Expr) -> Expr:
            row, column = T.floordiv(pixel, width), T.floormod(pixel, width)
            return out_at + row * geometry.row_pitch + column * geometry.pixel_pitch

        observer.take(sums, T.Bind(T.floormod(out_at, geometry.channels)), index_of)
        for j, column in enumerate(sums):
            for value, pixel in zip(column, pixels, strict=True):
                store(self.out, out_at + pixel + j * LANES, observer.clamped(value), LANES)


def clamped(value: Expr, spec: FloatConv2dSpec, lanes: int) -> Expr:
    """Return the value within the bounds of `spec`."""
    return clamped_to(value, spec.low, spec.high, lanes)


def can_observe(spec: FloatConv2dSpec) -> bool:
    """Return whether a kernel of `spec` can observe its sums: one thread, and every group's channels fill whole vectors."""
    return spec.threads == 1 and not spec.adds and (spec.out_channels // spec.groups) % LANES == 0


def state_arguments(observe: ObserveSpec | None) -> list[tuple[str, int, str]]:
    """Return the buffers that an observing kernel takes behind its input."""
    return [] if observe is None else [("ranges", 2 * observe.channels, "float32"), ("counts", COUNTS_SIZE, "int32")]
