"""Convolution and matmul as an implicit matrix product: register tiles of pixels x channels, walking NHWC bytes in place.

    for each block of output rows          (a padded copy of its input rows, if there is padding)
      for each panel of output channels    (its weights stay in the first-level cache)
        for each tile of pixels            (its accumulators stay in registers)
          for each tap, for each 4 bytes:  acc[pixel][vector] += dot(4 bytes of the pixel, weights)
          requantize, narrow, store

Asymmetric weights w - zero_point have 9 bits. Where nearly all fit int8, as in trained layers, the one or two others get extra
steps; else the products take w alone, and sums of the windows correct them (`weight_zero_points`).
Pointwise layers and matmuls are one column of pixels, one tap. No im2col buffer, no transformed copy of the input.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import typical
from .......runtime.size import is_open
from ...language.isa import AVX512_VNNI
from ...language.kernel import Kernel
from ...language.lane_order import groups_of
from ...language.schedule import NO_SCHEDULES, Schedules
from ...language.vectors import Expr, chunks_for, dword_of, store
from ...language.x86 import vector as v
from ...language.x86.narrow import narrowed
from ...language.x86.vector import LANES
from ..layer_function import LayerBuffers, layer_function, weights_of_image
from ..loops.borders import Borders, Run, pads_zeros
from ..loops.gemm_loops import INPUT_BLOCK_BYTES, GemmLoops, Panel, TilePlace, for_runs
from ..loops.geometry import geometry_of
from ..loops.packing import ExtraSteps, Weights, merge_groups, pack_lanes, pack_weights, split_terms
from ..loops.scratch import Scratch, WidenedPixels, padding_value
from ..loops.strips import Strips, StripTile
from ..schedule_key import schedule_key
from ..spec import Conv2dSpec
from .cores import CORES
from .epilogue import Group
from .rows_ahead import RowsAhead
from .weight_zero_points import SumLanes, ZeroPoints, are_extra_steps_cheap, zero_points_of
from .weights_ahead import WeightsAhead
from .wide_epilogue import emit_groups, epilogue_of
from .window_sum import WindowSums

UNROLLED_STEPS = 4  # a run of at most this many steps is written out, a longer one is a loop
WAITING_ACCUMULATORS = 4  # wait for the latency of their products: a second set takes each other step
SHORT_REDUCTION = 16  # steps: a single run this short is written out too, and its accumulators start from the bias


class ImplicitGemm(GemmLoops):
    """Emits one layer's PrimFunc; `build` is the entrance, the other methods emit one level of the loop nest each."""

    element_bytes = 1
    step_elements = 4
    sums_windows = False
    takes_any_pixels = True
    far_block_bytes = 4 * INPUT_BLOCK_BYTES
    _ahead: WeightsAhead | None = None

    def __init__(
        self, spec: Conv2dSpec, weights: Weights, *, isa: str = AVX512_VNNI, schedules: Schedules = NO_SCHEDULES
    ) -> None:
        self.spec = spec
        self.has_few_pixels = not is_open(spec.in_width)
        self.key = schedule_key(spec, asymmetric=bool(weights.zero_points.any()))
        self.isa = isa
        self.core = CORES[isa]
        self._lay_out([merge_groups(term, spec.groups) for term in self._terms(weights)], schedules)
        geometry = self.geometry
        self.extra = ExtraSteps.of(self.terms[1:], geometry.reduction, geometry.sets, self.tile.vectors)
        bias = weights.folded_bias(spec.folded_zero_point)
        self.zero_points = ZeroPoints()
        self.sum_lanes: SumLanes | None = None
        if not are_extra_steps_cheap(len(self.extra.places), geometry, is_short=self._is_short):
            self._sum_windows(weights, bias, schedules)
        self.epilogue = epilogue_of(spec, weights, isa)
        groups, vectors = self.geometry.sets, self.tile.vectors
        values, bias = self.terms[0], bias + np.int32(self.zero_points.bias_start)
        if self.sum_lanes is not None:
            values = self.sum_lanes.appended(values, groups, self.zero_points.factor)
            bias = self.sum_lanes.appended(bias, groups, self.zero_points.start)
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": pack_weights(values, self.geometry.reduction, groups, vectors),
            "bias": pack_lanes(bias, groups, vectors),
        }
        self.channel_values = self.epilogue.channel_values(weights)
        self.constants |= {label: pack_lanes(values, groups, vectors) for label, values in self.channel_values.items()}
        if self.zero_points.minus is not None:
            self.constants["minus_zero_point"] = pack_lanes(self.zero_points.minus, groups, vectors)
        if self.extra.places:
            self.constants["extra_weights"] = self.extra.weights

    def _terms(self, weights: Weights) -> list[npt.NDArray[Any]]:
        """Return what the weights less their zero points are the sum of: what products can take, and the rest."""
        return [*split_terms(weights)]

    def _copy_of(self, spec: Conv2dSpec) -> Scratch | WidenedPixels | None:
        """Return the copy of the input that tiles read, of a block of one row; None where they read it in place."""
        return Scratch(spec=spec, block=1, channels=spec.in_channels) if any(spec.padding) else None

    def _sum_windows(self, weights: Weights, bias: npt.NDArray[np.int32], schedules: Schedules) -> None:
        """Let products take the weights as they are, and sums of the windows correct them: a lane's, if one is idle."""
        self.extra = ExtraSteps.of([], self.geometry.reduction, self.geometry.sets, self.tile.vectors)
        self._lay_out([(weights.values, self.spec.groups)], schedules)
        lanes = SumLanes.of(self.geometry.group_outputs, self.tile.vectors) if len(self.panels) == 1 else None
        self.zero_points = zero_points_of(self.spec, weights, bias, is_late=self._is_short or lanes is not None)
        self.sum_lanes = lanes if self.zero_points.is_late else None
        self.sums_windows = self.is_walked_before = self.sum_lanes is None
        self._lay_out([(weights.values, self.spec.groups)], schedules)

    @property
    def _is_short(self) -> bool:
        """Whether all steps are written out and accumulators start from the bias."""
        return self.geometry.reduction.runs == 1 and self.geometry.reduction.steps <= SHORT_REDUCTION

    def _lay_out(self, terms: list[tuple[npt.NDArray[Any], int]], schedules: Schedules) -> None:
        """Decide the loop nest for weights of these terms, each (values, groups)."""
        spec = self.spec
        self.terms, groups = [values for values, _ in terms], terms[0][1]
        copy, inputs = self._copy_of(spec), self.terms[0].shape[2]
        self.is_copied = copy is not None
        width = copy.width if isinstance(copy, Scratch) else None
        self.geometry = geometry = geometry_of(spec, groups, inputs, padded_width=width, step=self.step_elements)
        self.borders = Borders.of(spec, inputs, self.step_elements)
        shape: dict[str, Any] = {
            "channels": geometry.group_outputs,
            "steps": geometry.reduction.steps,
            "borders": self.borders,
        }
        self._choose_tile(self.key, schedules, self.core, shape)
        steps, tap_steps = geometry.reduction.steps, None if inputs % self.step_elements else inputs // self.step_elements
        self.strips = Strips.of(spec, geometry, self.tile, steps, tap_steps, skips=pads_zeros(spec))
        self.threads = chunks_for(spec.threads, self.cycles, max(typical(geometry.images * geometry.rows), len(self.panels)))
        self.block = self._block_rows()
        self.scratch = dataclasses.replace(copy, block=self.block) if copy is not None else None

    # ---- emission, from the outside in

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        return Kernel(
            name=f"{name} {self.tile}",
            isa=self.isa,
            func=narrowed(func, self.isa),
            constants=tuple(self.constants.values()),
            tunable=self._tunable(self.key),
        )

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out
        self.indices = buffers.indices
        self._emit_threads()

    def _weights_of(self, image: Expr) -> Expr:
        return weights_of_image(self.spec, self.indices, image)

    def _padding_value(self, image: Expr) -> Expr | None:
        return padding_value(self.spec, self.parameters, image)

    def _emit_block_values(self, source: Expr, base: Expr, block: Expr) -> Expr | None:
        """Emit the windows' sums, where weights are asymmetric: one int32 for each pixel of the block; return their buffer."""
        if not self.sums_windows:
            return None
        geometry = self.geometry
        rows = (
            self.filled
            if self.has_open_rows
            else geometry.rows
            if self.blocks == 1
            else T.min(T.int32(self.block), geometry.rows - block * self.block)
        )
        sums = WindowSums(
            geometry=geometry,
            block=self.block,
            row_step=self.spec.strides[0],
            factor=self.zero_points.factor,
            start=self.zero_points.start,
            has_slack=self.scratch is not None,
        )
        return sums.emit(source, base, rows)

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit all tiles of one panel over one block; `shared` are the window sums."""
        geometry, panels = self.geometry, self._panels_by_turn(panel)

        def strung(tile: StripTile) -> None:
            totals = [None if shared is None else shared[pixel] for pixel in tile.pixels]
            taken = panels(TilePlace(tile.first, T.int32(0), 1, tile.size, ()))
            places = tile.starts, out_base, tile.pixels
            self._emit_tile(source, base, *places, totals, taken, lambda acc: self._emit_strung(acc, source, base, tile, taken))

        def body(place: TilePlace) -> None:
            pixel = T.Bind(place.row * geometry.columns + place.column)
            at = T.Bind(base + place.row * geometry.row_stride + place.column * geometry.column_stride)
            out_at = T.Bind(out_base + pixel * geometry.channels)
            offsets = place.pixels
            starts = [y * geometry.row_stride + x * geometry.column_stride for y, x in offsets]
            pixels = [y * geometry.columns + x for y, x in offsets]
            if self._rows_ahead is not None:
                self._rows_ahead.ask(source, at, place.height)
            totals = [None if shared is None else shared[pixel + offset] for offset in pixels]
            taken = panels(place)

            def reduce(acc: Expr) -> None:
                if self.borders is None:
                    self._ahead = self._weights_ahead(T.truncdiv(pixel, len(pixels)), len(pixels), taken)
                    self._emit_reduction(acc, source, at, starts, taken)
                else:
                    self._emit_bordered(acc, source, at, starts, taken, place, block)

            self._emit_tile(source, at, starts, out_at, pixels, totals, taken, reduce)

        if self.table is None:
            self._for_tiles(block, body, panel)
        else:
            self.table.for_tiles(strung)

    def _emit_tile(
        self,
        source: Expr,
        at: Expr,
        starts: Sequence[Expr],
        out_at: Expr,
        pixels: Sequence[Expr],
        totals: list[Expr | None],
        panel: Panel,
        reduce: Callable[[Expr], None],
    ) -> None:
        """Emit a tile: `reduce` adds the products to its accumulators; `totals` are the window sums of its pixels."""
        acc = T.alloc_buffer((len(pixels) * panel.vectors * LANES,), "int32", scope="local")
        # Accumulators of a loop start from 0 or from a pixel's correction: started from the bias, LLVM joins those of all
        # tiles into one live range and spills them inside the loops. Where there is no loop, the bias is the cheaper start.
        if self._is_short:
            self._emit_bias(acc, totals, panel, is_first=True)
        else:
            self._emit_start(acc, totals, panel.vectors)
        reduce(acc)
        if "extra_weights" in self.constants:
            self._emit_extra_steps(acc, source, at, starts, panel)
        if not self._is_short:
            self._emit_bias(acc, totals, panel, is_first=False)
        self._emit_finish(acc, out_at, pixels, totals, panel)

    def _panels_by_turn(self, panel: Panel) -> Callable[[TilePlace], Panel]:
        """Emit what tiles read of their panel beforehand, if anything, and return how each tile knows the panel."""
        return lambda place: panel

    @property
    def _rows_ahead(self) -> RowsAhead | None:
        """Return what tiles ask for of the next block, if anything: of blocks that one panel reads where they lie."""
        if not self.is_walked_before or self.is_copied or len(self.panels) > 1 or self.blocks == 1:
            return None
        return RowsAhead.of(self.geometry, self.block)

    def _weights_ahead(self, tile: Expr, size: int, panel: Panel) -> WeightsAhead | None:
        """Return what tiles of so many pixels ask for of the next panel, if anything."""
        if self.has_open_rows or len(self.panels) == 1:
            return None
        step, packed = panel.vectors * self.step_elements * LANES, self.constants["weights"]
        how: dict[str, Any] = {"tile": tile, "tiles": self.block * self.geometry.columns // size, "step": step}
        start, size_of_panel = self._weights_at(panel), self.geometry.reduction.steps * step
        return WeightsAhead.of(self.operands["weights"], packed, start=start, panel=size_of_panel, **how)

    # ---- one tile

    def _emit_start(self, acc: Expr, totals: list[Expr | None], vectors: int) -> None:
        """Emit what the accumulators of a loop start from: 0, but for the zero points of the weights."""
        for i, total in enumerate(totals):
            value = T.Bind(self.zero_points.first(total))
            for j in range(vectors):
                store(acc, (i * vectors + j) * LANES, value, LANES)

    def _emit_bias(self, acc: Expr, totals: list[Expr | None], panel: Panel, *, is_first: bool) -> None:
        """Emit acc = (`is_first`) or acc += the folded bias, and what the zero points of the weights make of it."""
        for j in range(panel.vectors):
            bias = T.Bind(v.load(self.operands["bias"], (panel.first + j) * LANES, LANES))
            minus = self._minus_zero_point(panel, j)
            for i, total in enumerate(totals):
                value = self.zero_points.with_bias(bias, total, minus, is_first=is_first)
                index = (i * panel.vectors + j) * LANES
                store(acc, index, value if is_first else v.load(acc, index, LANES) + value, LANES)

    def _minus_zero_point(self, panel: Panel, vector: int) -> Expr | None:
        """Return those of one vector's channels, where each has its own."""
        constant = self.operands.get("minus_zero_point")
        return None if constant is None else T.Bind(v.load(constant, (panel.first + vector) * LANES, LANES))

    def _emit_extra_steps(self, acc: Expr, source: Expr, at: Expr, starts: Sequence[Expr], panel: Panel) -> None:
        """Emit the extra steps of those vectors that have some; the other panels skip them."""
        for index, (number, vector, distance) in enumerate(self.extra.places):
            if vector >= panel.vectors or (isinstance(panel.number, int) and panel.number != number):
                continue
            with contextlib.ExitStack() as only_here:
                if not isinstance(panel.number, int):
                    only_here.enter_context(T.If(panel.number == number))
                    only_here.enter_context(T.Then())
                weights = T.Bind(v.load(self.operands["extra_weights"], index * 4 * LANES, 4 * LANES))
                for i, start in enumerate(starts):
                    values = self._splat(source, at + (distance + start))
                    where = (i * panel.vectors + vector) * LANES
                    store(acc, where, v.dot(v.load(acc, where, LANES), values, weights), LANES)

    def _splat(self, source: Expr, byte: Expr) -> Expr:
        """Return the step's bytes from source[byte] on, in every lane; a run shorter than 4 has no more to be read."""
        run = self.geometry.reduction.run
        return v.splat_dword(dword_of(source, byte, run)) if run < 4 else v.splat_bytes(source, byte)

    def _column(self, index: Expr, panel: Panel) -> Expr:
        """Return the weights of a step and a vector."""
        del panel
        return v.load(self.operands["weights"], index, 4 * LANES)

    def _product(self, acc: Expr, values: Expr, weights: Expr) -> Expr:
        """Return a vector of sums and the products of one step."""
        return v.dot(acc, values, weights)

    def _emit_reduction(self, acc: Expr, source: Expr, at: Expr, starts: Sequence[Expr], panel: Panel) -> None:
        """Emit the loops over taps and steps."""
        self._emit_taps(acc, source, at, self._weights_at(panel), self.geometry.reduction.taps, list(enumerate(starts)), panel)

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
        walk = self.geometry.reduction.step_starts

        def run(byte: Expr, weights: Expr) -> None:
            self._emit_run(acc, source, byte, weights, walk, pixels, panel)

        for_runs(taps, at, weights_at, len(walk) * self._pitches(panel)[0], run)

    def _emit_strung(self, acc: Expr, source: Expr, base: Expr, tile: StripTile, panel: Panel) -> None:
        """Emit the loops over those taps that some pixel of a strip's tile reads outside the padding."""
        if tile.reads_all:
            self._emit_reduction(acc, source, base, tile.starts, panel)
            return
        reduction, pixels, size = self.geometry.reduction, list(enumerate(tile.starts)), self.step_elements
        step_weights = panel.vectors * size * LANES

        def walk(byte: Expr, weights: Expr, elements: Expr | None) -> None:
            if elements is None:
                self._emit_taps(acc, source, byte, weights, reduction.taps[1:], pixels, panel)
                return
            with T.serial(0, T.truncdiv(elements, size)) as index:
                self._emit_step(acc, source, byte + index * size, weights + index * step_weights, pixels, panel)

        row_weights = reduction.steps // self.spec.kernel[0] * step_weights
        tile.for_taps(reduction, base, self._weights_at(panel), row_weights, walk)

    def _emit_bordered(
        self, acc: Expr, source: Expr, at: Expr, starts: list[int], panel: Panel, place: TilePlace, block: Expr
    ) -> None:
        """Emit the loops over those taps that some row of the tile, and each of these columns, reads outside the padding."""
        assert self.borders is not None
        reduction, weights_at = self.geometry.reduction, self._weights_at(panel)
        row_weights = reduction.steps // self.borders.rows.count * panel.vectors * self.step_elements * LANES

        def tap_row(tap: Expr) -> None:
            byte, weights = T.Bind(at + tap * reduction.taps[0][1]), T.Bind(weights_at + tap * row_weights)
            for run in place.runs:
                self._emit_column_taps(acc, source, byte, weights, run, place.read_in(run, starts), panel)

        self._for_row_taps(place, block, tap_row)

    def _emit_column_taps(
        self, acc: Expr, source: Expr, byte: Expr, weights: Expr, run: Run, pixels: list[tuple[int, int]], panel: Panel
    ) -> None:
        """Emit the column taps of one run, over the pixels that read them."""
        assert self.borders is not None
        reduction, taps = self.geometry.reduction, self.borders.columns
        step_weights = panel.vectors * self.step_elements * LANES
        if len(reduction.taps) == 1:  # the taps of a row lie side by side: one walk over all of them
            tap_elements, size = reduction.run // taps.count, self.step_elements
            interior_run = range(run.first * tap_elements, run.last * tap_elements)
            is_full = len(interior_run) == reduction.run
            walk = reduction.step_starts if is_full else tuple(interior_run)[::size]
            first = weights + run.first * tap_elements // size * step_weights
            self._emit_run(acc, source, byte, first, walk, pixels, panel)
            return
        inner = len(reduction.step_starts) * step_weights

        def tap(index: Expr) -> None:
            start, packed = T.Bind(byte + index * reduction.taps[1][1]), T.Bind(weights + index * inner)
            self._emit_run(acc, source, start, packed, reduction.step_starts, pixels, panel)

        if run.last - run.first == 1:
            tap(run.first)
        else:
            with T.serial(run.first, run.last) as index:
                tap(index)

    def _pitches(self, panel: Panel) -> tuple[int, int]:
        """Return how many weights lie between two steps of a panel, and between two of its vectors."""
        size = self.step_elements * LANES
        return (size, self.geometry.reduction.steps * size) if panel.strung else (panel.vectors * size, size)

    def _weights_at(self, panel: Panel) -> Expr:
        return T.Bind(panel.first * (self.geometry.reduction.steps * self.step_elements * LANES))

    def _emit_run(
        self,
        acc: Expr,
        source: Expr,
        byte: Expr,
        weights: Expr,
        walk: tuple[int, ...],
        pixels: list[tuple[int, Expr]],
        panel: Panel,
    ) -> None:
        """Emit the steps that start at the elements of `walk`, side by side but for the last, over pixels (number, first one)."""
        size, (step_weights, _) = self.step_elements, self._pitches(panel)
        # Open rows have tiles of many sizes: but for whole ones and a single row, they take more time to compile than they save.
        is_part = self.has_open_rows and 1 < len(pixels) < self.tile.rows * self.tile.columns
        if len(walk) <= (SHORT_REDUCTION if self.geometry.reduction.runs == 1 and not is_part else UNROLLED_STEPS):
            for index, start in enumerate(walk):
                self._emit_step(acc, source, byte + start, weights + index * step_weights, pixels, panel)
            return
        is_even = walk[-1] - walk[0] == size * (len(walk) - 1)
        full = len(walk) if is_even else len(walk) - 1
        count, sets = len(pixels) * panel.vectors, [acc]
        are_few = count <= WAITING_ACCUMULATORS and 2 * count + panel.vectors <= self.core.registers
        if self.geometry.reduction.runs == 1 and are_few:
            sets.append(T.alloc_buffer((count * LANES,), "int32", scope="local"))
            for i in range(count):
                store(sets[1], i * LANES, T.broadcast(T.int32(0), LANES), LANES)
        with T.serial(0, full // len(sets)) as index:
            for number, each in enumerate(sets):
                place = T.Bind(index * len(sets) + number)
                self._emit_step(each, source, byte + walk[0] + place * size, weights + place * step_weights, pixels, panel)
        for index in range(full - full % len(sets), len(walk)):
            self._emit_step(acc, source, byte + walk[index], weights + index * step_weights, pixels, panel)
        for other in sets[1:]:
            for i in range(count):
                store(acc, i * LANES, v.load(acc, i * LANES, LANES) + v.load(other, i * LANES, LANES), LANES)

    def _emit_step(
        self, acc: Expr, source: Expr, byte: Expr, weights: Expr, pixels: list[tuple[int, Expr]], panel: Panel
    ) -> None:
        """Emit one step over pixels (number, first element)."""
        if self._ahead is not None:
            self._ahead.ask(weights)
        pitch = self._pitches(panel)[1]
        columns = [T.Bind(self._column(weights + j * pitch, panel)) for j in range(panel.vectors)]
        for i, start in pixels:
            values = T.Bind(self._splat(source, byte + start))
            for j, column in enumerate(columns):
                index = (i * panel.vectors + j) * LANES
                store(acc, index, self._product(v.load(acc, index, LANES), values, column), LANES)

    def _emit_finish(self, acc: Expr, out_at: Expr, pixels: Sequence[Expr], totals: list[Expr | None], panel: Panel) -> None:
        """Emit requantization and the stores of the panel's channels of each pixel."""
        vectors = panel.vectors
        sums = [None if total is None else T.Bind(T.broadcast(total, LANES)) for total in totals]
        if self.sum_lanes is not None:
            places = [(i * vectors + self.sum_lanes.vector) * LANES for i in range(len(pixels))]
            sums = [T.Bind(self.sum_lanes.spread(v.load(acc, place, LANES))) for place in places]
        groups = self._groups(acc, out_at, pixels, sums, panel)
        emit_groups(self.epilogue, groups, len(pixels) * vectors, LANES)

    def _groups(
        self, acc: Expr, out_at: Expr, pixels: Sequence[Expr], sums: Sequence[Expr | None], panel: Panel
    ) -> Iterator[Group]:
        """Yield the panel's groups of sums of each pixel."""
        first, vectors = 0, panel.vectors
        for group in [1] * vectors if panel.strung else groups_of(vectors):
            valid = min(group * LANES, panel.channels - first * LANES)
            indices = range(first, first + group)
            values = {
                label: [T.Bind(v.load(self.operands[label], (panel.first + j) * LANES, LANES)) for j in indices]
                for label in self.channel_values
            }
            minus = [self._minus_zero_point(panel, j) for j in indices]
            for i, (offset, total) in enumerate(zip(pixels, sums, strict=True)):
                accumulators = [v.load(acc, (i * vectors + j) * LANES, LANES) for j in indices]
                pairs = zip(accumulators, minus, strict=True)
                accumulators = [self.zero_points.last(each, total, zero_point) for each, zero_point in pairs]
                target = out_at + offset * self.geometry.channels + first * LANES
                yield Group(
                    out=self.out, target=target, accumulators=accumulators, values=values, valid=valid, parameters=self.parameters
                )
            first += group
