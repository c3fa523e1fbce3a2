"""Pointwise convolutions and matmuls by Strassen's product in words: 7/8 of the products at each level, for AVX2.

A tile is 2**levels neighbouring pixels. Its matrix of pixels by input channels is cut into blocks, as are the weights when they
are packed and the outputs: `block_product` says how. Sums of activations and of weights fit int16, those of products wrap
modulo 2**32 and come out right, since the product's own sums fit int32. So results are those of every other kernel, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ........runtime.shapes import typical
from ........runtime.size import is_open
from ....language.vectors import Expr, bound, chunks_for, load, store
from ....language.x86.vector import LANES
from ...loops.gemm_loops import Panel
from ...loops.geometry import Geometry
from ...loops.packing import Reduction, Weights, lane_channels
from ...loops.tiles import Tile
from ...spec import Conv2dSpec
from .block_product import BLOCKS, POINTS, left, places, products, right
from .point_plan import WORDS
from .point_products import HALF, SKEW, PointProducts, emit_if
from .strassen_choice import PANEL, StrassenPlan


class Strassen(PointProducts[StrassenPlan]):
    """Emits one layer's PrimFunc; `build` is the entrance."""

    is_copied = False
    scratch = None
    asks_for_panels = True

    def __init__(self, plan: StrassenPlan, weights: Weights, spec: Conv2dSpec) -> None:
        """Take a plan, and the layer itself, which may be of open rows that the plan takes for some number."""
        self.plan, self.spec, tiling = plan, spec, plan.tiling
        self.geometry = Geometry(
            images=1,
            rows=-(-spec.batch * spec.out_height * spec.out_width // plan.size),
            columns=1,
            row_stride=plan.size * spec.in_channels,
            column_stride=0,
            image_stride=0,
            reduction=Reduction(taps=((tiling.points, 0),), run=tiling.inputs, step=2),
            groups=1,
            group_inputs=tiling.inputs,
            group_outputs=tiling.outputs,
        )
        self.tile = Tile(rows=1, columns=1, vectors=min(PANEL, tiling.vectors))
        self.cycles = plan.cycles
        self.threads = chunks_for(spec.threads, self.cycles, max(typical(self.geometry.rows), len(self.panels)))
        self.block = self._block_rows()
        packed: dict[str, npt.NDArray[Any]] = {"weights": self._packed(weights.values[0, 0])}
        if weights.zero_points.any():
            packed["zero_points"] = self._packed_zero_points(weights)
        self._set_constants(packed, weights, parts=plan.size)

    def _packed(self, values: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
        """Return weights (inputs, outputs) in the order vector, step, input part, output part, lane, byte; one-dimensional."""
        size, tiling = self.plan.size, self.plan.tiling
        parts = values.reshape(size, tiling.steps, 2, size, tiling.outputs)[..., lane_channels(tiling.outputs, PANEL)]
        return np.ascontiguousarray(parts.transpose(4, 1, 0, 3, 5, 2)).ravel()

    def _packed_zero_points(self, weights: Weights) -> npt.NDArray[np.int16]:
        """Return weights' zero points in the order vector, output part, lane, twice each; one-dimensional."""
        tiling = self.plan.tiling
        parts = weights.zero_points.reshape(self.plan.size, tiling.outputs)[:, lane_channels(tiling.outputs, PANEL)]
        return np.repeat(parts.transpose(1, 0, 2).ravel(), 2).astype(np.int16)

    @property
    def _transform_name(self) -> str:
        return str(self.plan.size)

    def _out_base(self, image: Expr, first_row: Expr) -> Expr:
        del image
        return first_row * (self.plan.size * self.spec.out_channels)

    # ---- operands

    def _part_at(self, panel: Panel, step: Expr, place: tuple[int, int]) -> Expr:
        """Return where the weights of a step of a panel lie, of this part of the inputs and of the outputs."""
        size = self.plan.size
        return ((panel.first * self.plan.tiling.steps + step) * size**2 + place[0] * size + place[1]) * (2 * LANES)

    def _emit_panel_weights(self, panel: Panel) -> tuple[Expr, Expr, int]:
        # Transformed here, not when they are packed: 7 words for every 4 bytes would have to come from memory.
        size, steps, words = self.plan.size, self.plan.tiling.steps, 2 * LANES
        pitch = steps * words + SKEW
        made = T.alloc_buffer((self.plan.tiling.points * pitch,), "int16")
        strips = self._strips()
        with T.serial(0, steps) as step, T.serial(0, words // WORDS) as half:

            def weights(place: tuple[int, int]) -> Expr:
                value = load(self.operands["weights"], self._part_at(panel, step, place) + half * WORDS, WORDS, "int16")
                if "zero_points" not in self.operands:
                    return value
                return value - load(self.operands["zero_points"], (panel.first * size + place[1]) * words + half * WORDS, WORDS)

            def put(point: Expr, value: Expr) -> None:
                store(made, point * pitch + step * words + half * WORDS, value, WORDS)

            self._emit_operand(right, weights, put, strips)
        return made, T.int32(0), pitch

    def _emit_block_values(self, source: Expr, base: Expr, block: Expr) -> Expr:
        """Emit the transform of the inputs of all tiles of a block; return their buffer."""
        del base
        channels = self.plan.tiling.channels
        made = T.alloc_buffer((self.plan.tiling.points * self._point_size,), "int16")
        strips = self._strips()
        with T.serial(0, self._tile_rows_of(block)) as row:
            first = T.Bind((self._first_tile_row(block) + row) * self.plan.size)
            pixels = [T.Bind(_first_element(self.spec, first + pixel)) for pixel in range(self.plan.size)]
            with T.serial(0, channels // WORDS) as chunk:

                def activations(place: tuple[int, int]) -> Expr:
                    return load(source, pixels[place[0]] + place[1] * channels + chunk * WORDS, WORDS, "int16")

                def put(point: Expr, value: Expr) -> None:
                    store(made, point * self._point_size + row * channels + chunk * WORDS, value, WORDS)

                self._emit_operand(left, activations, put, strips)
        return made

    def _strips(self) -> list[Expr]:
        """Allocate what the levels of an operand's transform hand on, a register of words of each."""
        levels = self.plan.levels
        return [T.alloc_buffer((POINTS**done * BLOCKS ** (levels - done) * WORDS,), "int16") for done in range(1, levels)]

    def _emit_operand(
        self,
        sums: Callable[..., list[Any]],
        values: Callable[[tuple[int, int]], Expr],
        put: Callable[[Expr, Expr], None],
        strips: Sequence[Expr],
    ) -> None:
        """Emit the transform of a register of words of an operand, the largest blocks first: from each four their seven sums."""
        levels = self.plan.levels
        operands = places(levels)
        for done in range(levels):
            rest = BLOCKS ** (levels - 1 - done)
            after = put if done == levels - 1 else _writer(strips[done], WORDS)

            def stage(outer: Expr, before: Callable[[Any], Expr], rest: int = rest, after: Any = after) -> None:
                for i in range(rest):
                    blocks = [T.Bind(before((outer * BLOCKS + block) * rest + i)) for block in range(BLOCKS)]
                    for point, value in enumerate(_bound(sums, blocks)):
                        after((outer * POINTS + point) * rest + i, value)

            if not done:
                stage(0, lambda place: values(operands[place]))
                continue
            with T.serial(0, POINTS**done) as outer:
                stage(outer, _reader(strips[done - 1], WORDS))

    # ---- outputs

    def _emit_tile(self, sums: Expr, start: Expr, out_base: Expr, tile_row: Expr, row: Expr, column: Expr, panel: Panel) -> None:
        """Emit the outputs of one tile: the transform of its sums, the smallest blocks first, then requantization."""
        del column
        size, levels = self.plan.size, self.plan.levels
        at, before = start, sums
        for done in range(levels - 1):
            left = levels - 1 - done
            strip = T.alloc_buffer((POINTS**left * BLOCKS ** (done + 1) * LANES,), "int32")
            with T.serial(0, POINTS**left) as outer, T.serial(0, BLOCKS**done) as i, T.serial(0, LANES // HALF) as half:
                read = _reader(before, LANES, at + half * HALF, HALF)
                values = [T.Bind(read((outer * POINTS + point) * BLOCKS**done + i)) for point in range(POINTS)]
                for block, value in enumerate(_bound(products, values)):
                    store(strip, ((outer * BLOCKS + block) * BLOCKS**done + i) * LANES + half * HALF, value, HALF)
            at, before = T.int32(0), strip
        pixels = self.spec.batch * self.spec.out_height * self.spec.out_width
        divides, end = not is_open(pixels) and pixels % size == 0, bound(pixels)
        order, rest = places(levels), BLOCKS ** (levels - 1)
        for i in range(rest):
            values = [T.Bind(load(before, at + (point * rest + i) * LANES, LANES)) for point in range(POINTS)]
            for block, value in enumerate(_bound(products, values)):
                pixel, part = order[block * rest + i]
                first = (row * size + pixel) * self.spec.out_channels + part * self.plan.tiling.outputs
                with emit_if(True if divides or not pixel else tile_row * size + pixel < end):
                    self._emit_pixel([value], T.Bind(out_base + first), panel, part)


def _first_element(spec: Conv2dSpec, pixel: Expr) -> Expr:
    """Return where the input of an output pixel of all images begins; beyond the last pixel, that of the last."""
    pixels = spec.batch * spec.out_height * spec.out_width
    pixel = T.min(pixel, T.int32(0) + bound(pixels) - 1)
    if spec.strides == (1, 1):
        return pixel * spec.in_channels
    row, column = T.floordiv(pixel, spec.out_width), T.floormod(pixel, spec.out_width)
    image, row = T.floordiv(row, spec.out_height), T.floormod(row, spec.out_height)
    source = (image * spec.in_height + row * spec.strides[0]) * spec.in_width + column * spec.strides[1]
    return source * spec.in_channels


def _bound(transform: Callable[..., list[Any]], values: Sequence[Expr]) -> list[Expr]:
    """Return a transform of vectors, each sum bound to a variable."""
    return [T.Bind(value) for value in transform(*values)]


def _reader(buffer: Expr, pitch: int, offset: Expr | int = 0, lanes: int = WORDS) -> Callable[[Any], Expr]:
    return lambda place: load(buffer, place * pitch + offset, lanes)


def _writer(buffer: Expr, pitch: int, offset: Expr | int = 0, lanes: int = WORDS) -> Callable[[Expr, Expr], None]:
    return lambda place, value: store(buffer, place * pitch + offset, value, lanes)
