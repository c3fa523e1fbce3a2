"""The implicit matrix product for AVX2: bytes are widened to words before the loops, which multiply pairs of words (vpmaddwd).

AVX2's one product of bytes saturates pairs to int16: weights beyond half their range make it inexact. Words are exact, and hold
asymmetric weights less their zero points, 9 bits, as they are. Activations are widened once for each block of rows and read by
all panels; weights are packed as words, or as bytes where few pixels read them: then their size is what costs. Dense and
pointwise layers of open sizes have bytes, and widen those of a panel where some tiles of rows read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......runtime.shapes import typical
from .......runtime.size import is_open
from ...language.isa import AVX2
from ...language.vectors import Expr, load, store, values_by_turn
from ...language.x86 import vector as v
from ...language.x86.vector import LANES
from ..loops.borders import Borders
from ..loops.gemm_loops import Panel, TilePlace
from ..loops.geometry import geometry_of, is_pointwise
from ..loops.packing import Weights
from ..loops.scratch import Scratch, WidenedPixels
from ..loops.shares import MEMORY_BYTES
from ..loops.tiles import Tile, ranked_tiles
from ..spec import Conv2dSpec
from .cores import CORES
from .implicit_gemm import SHORT_REDUCTION, ImplicitGemm

WORDS_FROM = 64
"""Output pixels from which on weights are packed as words."""

LARGE_WEIGHTS = 1 << 20
"""Weights beyond which an image of open size is taken to be small: a network has as many where few pixels are left."""

WIDENED_FROM = 4
"""Whole tiles of open rows from which on a panel's weights are widened once, and not by each of them."""


def direct_choice(spec: Conv2dSpec) -> tuple[float, Tile]:
    """Return the estimated cycles of a convolution of one group, whose weights come from memory, and its tile."""
    width = None if _is_flat(spec) else spec.in_width
    geometry = geometry_of(spec, 1, spec.in_channels, padded_width=width, step=WordGemm.step_elements)
    rows, columns = typical(geometry.rows), typical(geometry.columns)
    shape: dict[str, Any] = {"rows": rows, "columns": columns, "channels": spec.out_channels}
    steps = geometry.reduction.steps
    borders = Borders.of(spec, spec.in_channels, WordGemm.step_elements)
    cycles, tile = ranked_tiles(**shape, steps=steps, borders=borders, core=CORES[AVX2])[0]
    words = 1 if typical(spec.batch * spec.out_height * spec.out_width) < WORDS_FROM else 2
    weight_bytes = 2 * words * steps * -(-spec.out_channels // LANES) * LANES
    return typical(geometry.images) * cycles + weight_bytes / MEMORY_BYTES, tile


def _is_flat(spec: Conv2dSpec) -> bool:
    """Whether pixels of all rows and images are one sequence."""
    return is_pointwise(spec) and not any(spec.padding)


class WordGemm(ImplicitGemm):
    """Emits one layer's PrimFunc, in steps of two words."""

    element_bytes = 2
    step_elements = 2
    strung_panels = 4

    def _terms(self, weights: Weights) -> list[npt.NDArray[Any]]:
        spec, centered = self.spec, weights.centered
        pixels = spec.batch // spec.stack * spec.out_height * spec.out_width
        if is_open(pixels):
            is_short = -(-spec.in_channels // self.step_elements) <= SHORT_REDUCTION
            are_few = not is_short if _is_flat(spec) else centered.size > LARGE_WEIGHTS
        else:
            are_few = pixels < WORDS_FROM
        fits = bool((np.abs(2 * centered + 1) <= 255).all())  # [-128; 127]
        dtype = np.int8 if fits and are_few else np.int16
        self.step_bytes = 2 * np.dtype(dtype).itemsize
        return [centered.astype(dtype)]

    def _copy_of(self, spec: Conv2dSpec) -> Scratch | WidenedPixels:
        if _is_flat(spec):
            pixels = (spec.batch if spec.stack == 1 else 1) * spec.in_height * spec.in_width
            return WidenedPixels(pixels=pixels, block=1, channels=spec.in_channels)
        return Scratch(spec=spec, block=1, channels=spec.in_channels, is_widened=True)

    def _panels_by_turn(self, panel: Panel) -> Callable[[TilePlace], Panel]:
        if not self._is_short:
            return self._widened_for_tiles(panel)
        # Where steps are written out, LLVM would move all weights of a panel to the stack first, and read them from there.
        first = values_by_turn(panel.first)

        def of_tile(place: TilePlace) -> Panel:
            turn = T.floordiv(place.row, self.tile.rows) + T.floordiv(place.column, self.tile.columns)
            return replace(panel, first=first(turn))

        return of_tile

    def _widened_for_tiles(self, panel: Panel) -> Callable[[TilePlace], Panel]:
        """Emit a copy in words of the weights of a panel, where tiles of rows will read it; return what each tile reads."""
        packed = self.operands["weights"]
        if not is_open(self.geometry.rows) or self.geometry.columns != 1 or str(packed.dtype) != "int8" or panel.strung:
            return super()._panels_by_turn(panel)
        vectors, size = self.geometry.reduction.steps * panel.vectors, 2 * LANES
        start = self._weights_at(panel)
        copy = T.alloc_buffer((vectors * size,), "int16")
        with T.If(self._are_many()), T.Then(), T.serial(0, vectors) as vector:
            store(copy, vector * size, load(packed, start + vector * size, size, "int16"), size)
        return lambda place: replace(panel, copy=copy) if place.height == self.tile.rows else panel

    def _are_many(self) -> Expr:
        """Return whether so many rows are there that weights are widened for them."""
        return T.int32(0) + self.filled >= WIDENED_FROM * self.tile.rows

    def _emit_reduction(self, acc: Expr, source: Expr, at: Expr, starts: Sequence[Expr], panel: Panel) -> None:
        if panel.copy is None:
            super()._emit_reduction(acc, source, at, starts, panel)
            return
        with T.If(self._are_many()):
            with T.Then():
                super()._emit_reduction(acc, source, at, starts, panel)
            with T.Else():
                super()._emit_reduction(acc, source, at, starts, replace(panel, copy=None))

    def _weights_at(self, panel: Panel) -> Expr:
        return super()._weights_at(panel) if panel.copy is None else T.int32(0)

    def _splat(self, source: Expr, byte: Expr) -> Expr:
        if self.geometry.reduction.run == 1:
            pair = T.cast(source[byte], "int32")
        else:
            pair = T.reinterpret("int32", load(source, byte, 2))
        return T.reinterpret(f"int16x{2 * LANES}", T.broadcast(pair, LANES))

    def _column(self, index: Expr, panel: Panel) -> Expr:
        return load(self.operands["weights"] if panel.copy is None else panel.copy, index, 2 * LANES, "int16")

    def _product(self, acc: Expr, values: Expr, weights: Expr) -> Expr:
        return v.dot_int16(acc, values, weights)
