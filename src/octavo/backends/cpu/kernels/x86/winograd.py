"""Convolution by minimal filtering (Winograd) in words: 2 to 4 times fewer products, for AVX2, where they take most of the time.

    for each block of rows of tiles          (a padded copy of its input rows)
      transform the inputs of all tiles      (int16, points x tiles x channels)
      for each panel of output channels
        for each point, for each group of tiles:  sums[tile][point] = products of transformed inputs and weights
        for each tile: transform the sums, requantize, store

It is exact: transformed inputs and weights are integers that fit int16, sums are those of the convolution times a constant modulo
2**32, and the constant's odd part has an inverse; a shift undoes the rest, since the convolution's sums leave it room. Whether
they do, `is_exact` says from the weights. So results are those of every other kernel, bit for bit.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..isa import AVX2
from ..layer_function import LayerBuffers, layer_function
from ..spec import Kernel
from ..vectors import Expr, chunks_for, intrinsic, load, store
from . import vector as v
from .epilogue import Group
from .gemm_loops import GemmLoops, Panel
from .geometry import Geometry
from .lane_order import groups_of
from .minimal_filter import MinimalFilter
from .narrow import narrowed
from .packing import Reduction, Weights, lane_channels, pack_lanes
from .scratch import Scratch, padding_value
from .shares import balanced_block
from .tiles import Tile
from .vector import LANES
from .wide_epilogue import emit_groups, epilogue_of
from .winograd_choice import PANEL, WORDS, WinogradPlan

HALF = 8  # int32 lanes of one register
SKEW = 32  # words between the inputs of two points: at multiples of 4 KiB they would share a set of the first-level cache


class Winograd(GemmLoops):
    """Emits one layer's PrimFunc; `build` is the entrance."""

    element_bytes = 1
    is_copied = True

    def __init__(self, plan: WinogradPlan, weights: Weights) -> None:
        self.plan, self.spec, self.transform = plan, plan.spec, plan.transform
        spec, rows, columns = self.spec, self.transform.rows, self.transform.columns
        top, left, bottom, right = spec.padding
        below = (plan.tile_rows * rows.outputs - spec.out_height) * rows.stride
        behind = (plan.tile_columns * columns.outputs - spec.out_width) * columns.stride
        tiled = dataclasses.replace(spec, padding=(top, left, bottom + below, right + behind))
        self.geometry = Geometry(
            images=spec.batch,
            rows=plan.tile_rows,
            columns=plan.tile_columns,
            row_stride=rows.outputs * rows.stride * spec.in_width * spec.in_channels,
            column_stride=0,
            image_stride=0,
            reduction=Reduction(taps=((self.transform.points, 0),), run=spec.in_channels, step=2),
            groups=1,
            group_inputs=spec.in_channels,
            group_outputs=spec.out_channels,
        )
        self.tile = Tile(rows=1, columns=1, vectors=min(PANEL, plan.vectors))
        self.cycles = plan.cycles
        self.threads = chunks_for(spec.threads, self.cycles, max(spec.batch * plan.tile_rows, len(self.panels)))
        self.block = self._block_rows()
        self.scratch = self.copy = _TileRows(
            spec=tiled, block=self.block * rows.outputs, channels=spec.in_channels, outputs=rows.outputs
        )
        self.epilogue = epilogue_of(spec, weights, AVX2)
        self.channel_values = self.epilogue.channel_values(weights)
        lanes = {"bias": weights.folded_bias(spec.folded_zero_point), **self.channel_values}
        self.constants: dict[str, npt.NDArray[Any]] = {
            "weights": self._packed(self.transform.weights(weights.centered)),
            **{label: pack_lanes(values, 1, self.tile.vectors) for label, values in lanes.items()},
        }

    def _block_rows(self) -> int:
        """Rows of tiles of a block, enough blocks for the threads where these share rows."""
        plan = self.plan
        if self.threads == 1 or self._shares_panels:
            return plan.best_block
        return balanced_block(plan.tile_rows, plan.best_block, plan.spec.batch, self.threads)

    def _packed(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
        """Return weights (points, inputs, outputs) in the order panel, point, vector, step, lane, word; one-dimensional."""
        points, inputs, outputs = values.shape
        order = lane_channels(outputs, self.tile.vectors)
        padded = np.zeros((points, 2 * self.plan.steps, order.size), np.int16)
        padded[:, :inputs, :outputs] = values
        lanes = padded[..., order].reshape(points, self.plan.steps, 2, *order.shape).transpose(0, 3, 1, 4, 2)
        ends = np.cumsum(self.panels)[:-1]
        return np.concatenate([panel.ravel() for panel in np.split(lanes, ends, axis=1)])

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        constants = tuple(self.constants.values())
        return Kernel(name=f"{name} {self.transform}", isa=AVX2, func=narrowed(func, AVX2), constants=constants)

    def _emit(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out
        self._emit_threads()

    def _padding_value(self, image: Expr) -> Expr | None:
        return padding_value(self.spec, self.parameters, image)

    def _out_base(self, image: Expr, first_row: Expr) -> Expr:
        spec = self.spec
        return (image * spec.out_height + first_row * self.transform.rows.outputs) * (spec.out_width * spec.out_channels)

    # ---- inputs

    @property
    def _tiles(self) -> int:
        """Tiles of a block."""
        return self.block * self.geometry.columns

    @property
    def _point_size(self) -> int:
        """Words of the transformed inputs of one point of a block."""
        return self._tiles * self.plan.channels + SKEW

    def _tile_rows_of(self, block: Expr) -> Expr:
        """Return how many rows of tiles the block has."""
        rows = self.geometry.rows
        return T.int32(self.block) if rows % self.block == 0 else T.min(T.int32(self.block), rows - block * self.block)

    def _emit_block_values(self, source: Expr, base: Expr, block: Expr) -> Expr:
        """Emit the transform of the inputs of all tiles of a block; return their buffer."""
        rows, columns = self.transform.rows, self.transform.columns
        width, tile_columns = self.copy.width, self.geometry.columns
        inputs = T.alloc_buffer((self.transform.points * self._point_size,), "int16")
        strip = T.alloc_buffer((rows.points * width * WORDS,), "int16")
        with T.serial(0, self._tile_rows_of(block)) as row, T.serial(0, self.plan.channels // WORDS) as chunk:
            first = T.Bind(row * (rows.outputs * rows.stride * self.copy.row_size) + chunk * WORDS)
            with T.serial(0, width) as x:
                at = T.Bind(first + x * self.spec.in_channels)
                values = [load(source, at + y * self.copy.row_size, WORDS, "int16") for y in range(rows.inputs)]
                for y, value in enumerate(_input_transform(rows, values)):
                    store(strip, (y * width + x) * WORDS, value, WORDS)
            with T.serial(0, tile_columns) as column, T.serial(0, rows.points) as y:
                start = T.Bind((y * width + column * (columns.outputs * columns.stride)) * WORDS)
                tile = T.Bind((row * tile_columns + column) * self.plan.channels + chunk * WORDS)
                values = [load(strip, start + x * WORDS, WORDS) for x in range(columns.inputs)]
                for x, value in enumerate(_input_transform(columns, values)):
                    store(inputs, (y * columns.points + x) * self._point_size + tile, value, WORDS)
        return inputs

    # ---- products

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit one panel over one block; `shared` are the transformed inputs."""
        geometry, points = self.geometry, self.transform.points
        tile_rows = self._tile_rows_of(block)
        tiles = T.Bind(tile_rows * geometry.columns)
        sums = T.alloc_buffer((self._tiles * points * panel.vectors * LANES,), "int32")
        last = geometry.rows - (self.blocks - 1) * self.block
        rest, last_rest = self._tiles % self.plan.pixels, last * geometry.columns % self.plan.pixels
        with T.serial(0, points) as point, T.serial(0, panel.vectors) as vector:
            weights = T.Bind((panel.first * points + point * panel.vectors + vector) * (self.plan.steps * 2 * LANES))
            at = T.Bind(point * self._point_size)
            to = T.Bind((point * panel.vectors + vector) * LANES)

            def group(first: Expr, pixels: int) -> None:
                target = to + first * (points * panel.vectors * LANES)
                self._emit_products(shared, T.Bind(at + first * self.plan.channels), weights, sums, target, pixels, panel.vectors)

            with T.serial(0, T.floordiv(tiles, self.plan.pixels)) as index:
                group(T.Bind(index * self.plan.pixels), self.plan.pixels)
            if rest == last_rest and rest:
                group(tiles - rest, rest)
            for left, is_here in ((rest, block < self.blocks - 1), (last_rest, block == self.blocks - 1)):
                if left and rest != last_rest:
                    with T.If(is_here), T.Then():
                        group(tiles - left, left)
        with T.serial(0, tile_rows) as row, T.serial(0, geometry.columns) as column:
            start = T.Bind((row * geometry.columns + column) * (points * panel.vectors * LANES))
            self._emit_tile(sums, start, out_base, block * self.block + row, row, column, panel)

    def _emit_products(self, inputs: Expr, at: Expr, weights: Expr, sums: Expr, target: Expr, pixels: int, vectors: int) -> None:
        """Emit the sums of one point of `pixels` tiles and one vector."""
        acc = T.alloc_buffer((pixels * LANES,), "int32", scope="local")
        zero = T.broadcast(T.int32(0), LANES)

        def step(index: Expr, *, is_first: bool) -> None:
            column = T.Bind(load(self.operands["weights"], weights + index * (2 * LANES), 2 * LANES))
            for i in range(pixels):
                pair = T.reinterpret("int32", load(inputs, at + (i * self.plan.channels) + index * 2, 2))
                values = T.Bind(T.reinterpret(f"int16x{2 * LANES}", T.broadcast(pair, LANES)))
                start = zero if is_first else v.load(acc, i * LANES, LANES)
                v.store(acc, i * LANES, v.dot_int16(start, values, column), LANES)

        # The first step starts the sums: a zero to start from would be kept in a register through all loops.
        step(0, is_first=True)
        with T.serial(0, self.plan.steps - 1) as index:
            step(index + 1, is_first=False)
        for i in range(pixels):
            v.store(sums, target + i * (self.transform.points * vectors * LANES), v.load(acc, i * LANES, LANES), LANES)

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
                self._emit_pixel(results, T.Bind(x * size), target, panel)

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

    def _emit_pixel(self, results: Expr, at: Expr, target: Expr, panel: Panel) -> None:
        """Emit requantization and the stores of the panel's channels of one output pixel."""
        groups: list[Group] = []
        first = 0
        for size in groups_of(panel.vectors):
            indices = range(first, first + size)
            places = [(panel.first + j) * LANES for j in indices]
            values = {
                label: [T.Bind(load(self.operands[label], place, LANES)) for place in places] for label in self.channel_values
            }
            biases = [load(self.operands["bias"], place, LANES) for place in places]
            groups.append(
                Group(
                    out=self.out,
                    target=target + first * LANES,
                    accumulators=[
                        T.Bind(load(results, at + j * LANES, LANES) + bias) for j, bias in zip(indices, biases, strict=True)
                    ],
                    values=values,
                    valid=min(size * LANES, panel.channels - first * LANES),
                    parameters=self.parameters,
                )
            )
            first += size
        emit_groups(self.epilogue, groups, panel.vectors, LANES)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _TileRows(Scratch):
    """The padded copy of the input rows of a block, which begins at a row of tiles of so many `outputs`."""

    outputs: int = 1

    def emit(self, x: Expr, image: Expr, first_row: Expr, padding: Expr | None = None) -> Expr:
        return Scratch.emit(self, x, image, first_row * self.outputs, padding)


def _within(extent: int, size: int, index: Expr) -> Expr:
    """Return how many of the `size` outputs of a tile lie in range(extent)."""
    return T.int32(size) if extent % size == 0 else T.min(T.int32(size), extent - index * size)


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
