"""Convolution by minimal filtering (Winograd) in words: 2 to 4 times fewer products, for AVX2, where they take most of the time.

It is exact: transformed inputs and weights are integers that fit int16, sums are those of the convolution times a constant modulo
2**32, and the constant's odd part has an inverse; a shift undoes the rest, since the convolution's sums leave it room. Whether
they do, `is_exact` says from the weights. So results are those of every other kernel, bit for bit.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ........runtime.shapes import typical
from ........runtime.size import dimension
from ....language.vectors import Expr, bound, chunks_for, intrinsic, load, store
from ....language.x86.vector import LANES
from ...loops.gemm_loops import Panel
from ...loops.geometry import Geometry
from ...loops.packing import Reduction, Weights, lane_channels
from ...loops.scratch import Scratch, padding_value
from ...loops.tiles import Tile
from ...spec import Conv2dSpec
from .minimal_filter import MinimalFilter
from .point_plan import WORDS
from .point_products import HALF, PointProducts
from .winograd_choice import PANEL, WinogradPlan


class Winograd(PointProducts[WinogradPlan]):
    """Emits one layer's PrimFunc; `build` is the entrance."""

    is_copied = True
    asks_for_panels = False

    def __init__(self, plan: WinogradPlan, weights: Weights, spec: Conv2dSpec) -> None:
        """Take a plan, and the layer itself, which may be of an open size that the plan takes for some number."""
        self.plan, self.spec, self.transform = plan, spec, plan.transform
        rows, columns = self.transform.rows, self.transform.columns
        top, left, bottom, right = spec.padding
        down, across = -(-spec.out_height // rows.outputs), -(-spec.out_width // columns.outputs)
        below = (down * rows.outputs - spec.out_height) * rows.stride
        behind = (across * columns.outputs - spec.out_width) * columns.stride
        tiled = dataclasses.replace(spec, padding=(top, left, bottom + below, right + behind))
        self.geometry = Geometry(
            images=spec.batch,
            rows=down,
            columns=across,
            row_stride=rows.outputs * rows.stride * spec.in_width * spec.in_channels,
            column_stride=0,
            image_stride=0,
            reduction=Reduction(taps=((self.transform.points, 0),), run=spec.in_channels, step=2),
            groups=1,
            group_inputs=spec.in_channels,
            group_outputs=spec.out_channels,
        )
        self.tile = Tile(rows=1, columns=1, vectors=min(PANEL, plan.tiling.vectors))
        self.cycles = plan.cycles
        pieces = max(typical(spec.batch) * plan.tiling.rows, len(self.panels))
        self.threads = chunks_for(spec.threads, self.cycles, pieces)
        self.block = self._block_rows()
        self.scratch = self.copy = _TileRows(
            spec=tiled, block=self.block * rows.outputs, channels=spec.in_channels, outputs=rows.outputs
        )
        packed = self._packed(self.transform.weights(weights.centered))
        self._set_constants({"weights": packed}, weights, parts=1)

    def _packed(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """Return weights (points, inputs, outputs) in the order panel, point, vector, step, lane, word; one-dimensional."""
        points, inputs, outputs = values.shape
        order = lane_channels(outputs, self.tile.vectors)
        padded = np.zeros((points, 2 * self.plan.tiling.steps, order.size), np.int16)
        padded[:, :inputs, :outputs] = values
        lanes = padded[..., order].reshape(points, self.plan.tiling.steps, 2, *order.shape).transpose(0, 3, 1, 4, 2)
        ends = np.cumsum(self.panels)[:-1]
        return np.concatenate([panel.ravel() for panel in np.split(lanes, ends, axis=1)])

    def _emit_panel_weights(self, panel: Panel) -> tuple[Expr, Expr, int]:
        size = self.plan.tiling.steps * 2 * LANES
        return self.operands["weights"], T.Bind(panel.first * (self.transform.points * size)), panel.vectors * size

    @property
    def _transform_name(self) -> str:
        return str(self.transform)

    def _padding_value(self, image: Expr) -> Expr | None:
        return padding_value(self.spec, self.parameters, image)

    def _out_base(self, image: Expr, first_row: Expr) -> Expr:
        spec = self.spec
        return (image * spec.out_height + first_row * self.transform.rows.outputs) * (spec.out_width * spec.out_channels)

    # ---- inputs

    def _emit_block_values(self, source: Expr, base: Expr, block: Expr) -> Expr:
        """Emit the transform of the inputs of all tiles of a block; return their buffer."""
        rows, columns = self.transform.rows, self.transform.columns
        width, tile_columns = bound(self.copy.width), bound(self.geometry.columns)
        inputs = T.alloc_buffer((dimension(self.transform.points * self._point_size),), "int16")
        strip = T.alloc_buffer((dimension(rows.points * self.copy.width * WORDS),), "int16")
        with T.serial(0, self._tile_rows_of(block)) as row, T.serial(0, self.plan.tiling.channels // WORDS) as chunk:
            first = T.Bind(row * (rows.outputs * rows.stride * self.copy.row_size) + chunk * WORDS)
            with T.serial(0, width) as x:
                at = T.Bind(first + x * self.spec.in_channels)
                values = [load(source, at + y * self.copy.row_size, WORDS, "int16") for y in range(rows.inputs)]
                for y, value in enumerate(_input_transform(rows, values)):
                    store(strip, (y * width + x) * WORDS, value, WORDS)
            with T.serial(0, tile_columns) as column, T.serial(0, rows.points) as y:
                start = T.Bind((y * width + column * (columns.outputs * columns.stride)) * WORDS)
                tile = T.Bind((row * tile_columns + column) * self.plan.tiling.channels + chunk * WORDS)
                values = [load(strip, start + x * WORDS, WORDS) for x in range(columns.inputs)]
                for x, value in enumerate(_input_transform(columns, values)):
                    store(inputs, (y * columns.points + x) * self._point_size + tile, value, WORDS)
        return inputs

    # ---- outputs

    def _emit_tile(self, sums: Expr, start: Expr, out_base: Expr, tile_row: Expr, row: Expr, column: Expr, panel: Panel) -> None:
        """Emit the outputs of one tile."""
        spec, transform = self.spec, self.transform
        rows, columns = transform.rows, transform.columns
        size = panel.vectors * LANES
        strip = T.alloc_buffer((rows.outputs * columns.points * size,), "int32")
        results = T.alloc_buffer((columns.outputs * size,), "int32")
        with T.serial(0, columns.points) as x, T.serial(0, size // HALF) as part:
            at = T.Bind(x * size + part * HALF)
            values = [load(sums, start + at + y * (columns.points * size), HALF) for y in range(rows.points)]
            for y, value in enumerate(_output_transform(rows, values)):
                store(strip, at + y * (columns.points * size), value, HALF)
        count = _within(spec.out_height, rows.outputs, tile_row)
        valid = _within(spec.out_width, columns.outputs, column)
        first = (row * rows.outputs * spec.out_width + column * columns.outputs) * spec.out_channels
        with T.serial(0, count) as y:
            with T.serial(0, size // HALF) as part:
                at = T.Bind(y * (columns.points * size) + part * HALF)
                values = [load(strip, at + x * size, HALF) for x in range(columns.points)]
                for x, value in enumerate(_output_transform(columns, values)):
                    store(results, x * size + part * HALF, self._unscaled(value), HALF)
            with T.serial(0, valid) as x:
                target = T.Bind(out_base + first + (y * spec.out_width + x) * spec.out_channels)
                at = T.Bind(x * size)
                self._emit_pixel([load(results, at + j * LANES, LANES) for j in range(panel.vectors)], target, panel)

    def _unscaled(self, value: Expr) -> Expr:
        """Return a convolution's sums from those that are too large by the transform's factor.

        The product wraps, so it is no plain one: TVM tells LLVM that those never do, and LLVM might fold the shift into one. What
        is shifted fits int32.
        """
        transform = self.transform
        if transform.inverse != 1:
            factor, every = T.broadcast(T.int32(transform.inverse), HALF), T.broadcast(T.bool(True), HALF)
            value = intrinsic(f"llvm.vp.mul.v{HALF}i32", f"int32x{HALF}", value, factor, every, T.int32(HALF))
        return value >> T.broadcast(T.int32(transform.shift), HALF) if transform.shift else value


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _TileRows(Scratch):
    """The padded copy of the input rows of a block, which begins at a row of tiles of so many `outputs`."""

    outputs: int = 1

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None, filled: Expr | None = None) -> Expr:
        return Scratch.emit(self, x, image, first_row * self.outputs, padding, None if filled is None else filled * self.outputs)


def _within(extent: int, size: int, index: Expr) -> Expr:
    """Return how many of the `size` outputs of a tile lie in range(extent)."""
    return T.int32(size) if extent % size == 0 else T.min(T.int32(size), bound(extent) - index * size)


def _combination(coefficients: tuple[int, ...], values: list[Expr], dtype: str, lanes: int) -> Expr:
    """Return the sum of values times coefficients, vectors of `dtype`."""

    def constant(value: int) -> Expr:
        return T.broadcast(tirx.const(value, dtype), lanes)

    total: Expr | None = None
    terms = [term for term in zip(coefficients, values, strict=True) if term[0]]
    for coefficient, value in sorted(terms, key=lambda term: -term[0]):  # one that is added comes first
        size = abs(coefficient)
        is_power = size & (size - 1) == 0
        term = value if size == 1 else value << constant(size.bit_length() - 1) if is_power else value * constant(size)
        before = constant(0) if total is None and coefficient < 0 else total
        total = term if before is None else before + term if coefficient > 0 else before - term
    assert total is not None, "every row of a transform reads something"
    return total


def _input_transform(axis: MinimalFilter, values: list[Expr]) -> list[Expr]:
    """Return input_rows @ values, vectors of int16."""
    values = [T.Bind(value) for value in values]
    results: list[Expr] = [None] * axis.points
    for first, second in axis.pairs:
        even, odd = (
            T.Bind(_combination(part, values, "int16", WORDS))
            for part in _halves(axis.input_rows[first], axis.input_rows[second])
        )
        results[first], results[second] = even + odd, even - odd
    return [
        _combination(row, values, "int16", WORDS) if result is None else result
        for row, result in zip(axis.input_rows, results, strict=True)
    ]


def _output_transform(axis: MinimalFilter, values: list[Expr]) -> list[Expr]:
    """Return output_rows @ values, vectors of int32."""
    values = [T.Bind(value) for value in values]
    columns = list(zip(*axis.output_rows, strict=True))
    for first, second in axis.pairs:
        plus, minus = T.Bind(values[first] + values[second]), T.Bind(values[first] - values[second])
        values[first], values[second] = plus, minus
        columns[first], columns[second] = _halves(columns[first], columns[second])
    return [_combination(row, values, "int32", HALF) for row in zip(*columns, strict=True)]


def _halves(row: tuple[int, ...], other: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what two rows that differ in signs are the sum and the difference of; each place is 0 in one of them."""
    pairs = list(zip(row, other, strict=True))
    return tuple((a + b) // 2 for a, b in pairs), tuple((a - b) // 2 for a, b in pairs)
