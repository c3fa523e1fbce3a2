"""The loops of kernels for AVX2 whose outputs are transforms of products at some points of a tile, in words.

    for each block of rows of tiles
      transform the inputs of all tiles      (int16, points x tiles x channels)
      for each panel of output channels
        for each point, for each group of tiles:
          sums[tile][point] = products of transformed inputs and weights; some of the weights read next are asked for
        for each tile: transform the sums, requantize, store

Transforms are those of the class that derives from this.
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from ........runtime.shapes import largest, typical
from ........runtime.size import dimension
from ....language.isa import AVX2
from ....language.kernel import Kernel
from ....language.lane_order import groups_of
from ....language.vectors import Expr, bound, for_open_tiles, load, prefetch, store
from ....language.x86 import vector as v
from ....language.x86.narrow import narrowed
from ....language.x86.vector import LANES
from ...layer_function import LayerBuffers, layer_function
from ...loops.gemm_loops import GemmLoops, Panel
from ...loops.packing import Weights, pack_lanes
from ...loops.shares import balanced_block
from ...spec import Conv2dSpec
from ..epilogue import Group
from ..wide_epilogue import emit_groups, epilogue_of
from .point_plan import CACHE_BYTES, WORDS, PointPlan

HALF = 8  # int32 lanes of one register
LINE_BYTES = 64  # of a cache
SKEW = 32  # words between the inputs of two points: at multiples of 4 KiB they would share a set of the first-level cache


Plan = TypeVar("Plan", bound=PointPlan)


@contextlib.contextmanager
def emit_if(condition: Expr) -> Generator[None]:
    """Emit what is done where a condition holds; always, where that is True."""
    if condition is True:
        yield
        return
    with T.If(condition), T.Then():
        yield


class PointProducts(GemmLoops, Generic[Plan]):
    """Emits one layer's PrimFunc; `build` is the entrance.

    `asks_for_panels` says which weights groups of tiles ask for: the next panel's, which are read when it begins, or the next
    point's.
    """

    element_bytes = 1
    asks_for_panels: ClassVar[bool]
    plan: Plan
    spec: Conv2dSpec

    def _set_constants(self, packed: Mapping[str, npt.NDArray[Any]], weights: Weights, parts: int) -> None:
        """Take packed weights, and channels' values of so many parts of the output channels."""
        self.epilogue = epilogue_of(self.plan.spec, weights, AVX2)
        self.channel_values = self.epilogue.channel_values(weights)
        biases = weights.folded_bias(self.plan.spec.folded_zero_point)
        lanes = {label: pack_lanes(values, parts, self.tile.vectors) for label, values in self.channel_values.items()}
        self.constants: dict[str, npt.NDArray[Any]] = {
            **packed,
            "bias": pack_lanes(biases, parts, self.tile.vectors),
            **lanes,
        }

    def _block_rows(self) -> int:
        """Rows of tiles of a block, enough blocks for the threads where these share rows."""
        plan, tiling = self.plan, self.plan.tiling
        if self.has_open_rows:  # as many as the cache holds; the kernel makes blocks of this size at most, all alike
            # Each block reads all weights, each panel all inputs: where weights are most, inputs may rather leave the cache.
            most = CACHE_BYTES * (4 if plan.weight_bytes > len(self.panels) * CACHE_BYTES else 1)
            return largest((1, most // (tiling.points * tiling.channels * 2 * self.geometry.columns)))
        if self.threads == 1 or self._shares_panels:
            return plan.best_block
        return balanced_block(tiling.rows, plan.best_block, tiling.images, self.threads)

    def build(self, name: str) -> Kernel:
        """Emit the PrimFunc and return the kernel."""
        func = layer_function(self.spec, self.constants, self.epilogue.out_dtype, self._emit)
        constants = tuple(self.constants.values())
        return Kernel(name=f"{name} {self._transform_name}", isa=AVX2, func=narrowed(func, AVX2), constants=constants)

    def _emit(self, buffers: LayerBuffers) -> None:
        self._take(buffers)
        self._emit_threads()

    def _take(self, buffers: LayerBuffers) -> None:
        self.x, self.parameters, self.operands, self.out = buffers.x, buffers.parameters, buffers.operands, buffers.out

    @property
    @abstractmethod
    def _transform_name(self) -> str:
        """How the kernel is named, after the kind of its product."""

    @abstractmethod
    def _emit_tile(self, sums: Expr, start: Expr, out_base: Expr, tile_row: Expr, row: Expr, column: Expr, panel: Panel) -> None:
        """Emit the outputs of one tile from its sums at all points, which begin at `start`.

        `tile_row` is its row among all of an image, `row` that within the block.
        """

    @abstractmethod
    def _emit_panel_weights(self, panel: Panel) -> tuple[Expr, Expr, int]:
        """Return the buffer of a panel's transformed weights, where they begin, and the words from one point to the next.

        Emit what makes them, if they are no constants.
        """

    # ---- products

    @property
    def _tiles(self) -> int:
        """Tiles of a block."""
        return self.block * self.geometry.columns

    @property
    def _point_size(self) -> int:
        """Words of the transformed inputs of one point of a block."""
        return self._tiles * self.plan.tiling.channels + SKEW

    def _tile_rows_of(self, block: Expr) -> Expr:
        """Return how many rows of tiles the block has."""
        if self.has_open_rows:
            return self.filled
        rows = self.geometry.rows
        return T.int32(self.block) if rows % self.block == 0 else T.min(T.int32(self.block), rows - block * self.block)

    def _emit_rows(self, source: Expr, base: Expr, out_base: Expr, block: Expr, panel: Panel, shared: Expr | None) -> None:
        """Emit one panel over one block; `shared` are the transformed inputs."""
        geometry, points, channels = self.geometry, self.plan.tiling.points, self.plan.tiling.channels
        tile_rows = self._tile_rows_of(block)
        tiles = T.Bind(tile_rows * bound(geometry.columns))
        packed, begin, pitch = self._emit_panel_weights(panel)
        sums = T.alloc_buffer((dimension(self._tiles * points * panel.vectors * LANES),), "int32")
        with T.serial(0, points) as point, T.serial(0, panel.vectors) as vector:
            weights = T.Bind(begin + point * pitch + vector * (self.plan.tiling.steps * 2 * LANES))
            at = T.Bind(point * self._point_size)
            to = T.Bind((point * panel.vectors + vector) * LANES)

            def group(first: Expr, pixels: int) -> None:
                target = to + first * (points * panel.vectors * LANES)
                start = T.Bind(at + first * channels)
                self._emit_requests(panel, weights, point * panel.vectors + vector, T.floordiv(first, self.plan.pixels))
                self._emit_products((shared, start), (packed, weights), (sums, target), pixels, panel.vectors)

            self._for_groups(tiles, block, group)
        columns = bound(geometry.columns)
        with T.serial(0, tile_rows) as row, T.serial(0, columns) as column:
            start = T.Bind((row * columns + column) * (points * panel.vectors * LANES))
            self._emit_tile(sums, start, out_base, self._first_tile_row(block) + row, row, column, panel)

    def _first_tile_row(self, block: Expr) -> Expr:
        return self.first_row if self.has_open_rows else block * self.block

    def _for_groups(self, tiles: Expr, block: Expr, body: Callable[[Expr, int], None]) -> None:
        """Emit `body(first, pixels)` for groups of a block's tiles, and for those that are left."""
        geometry, pixels = self.geometry, self.plan.pixels
        if self.has_open_rows:
            for_open_tiles(tiles, pixels, body, overlaps=False)
            return
        last = geometry.rows - (self.blocks - 1) * self.block
        rest, last_rest = self._tiles % pixels, last * geometry.columns % pixels
        with T.serial(0, T.floordiv(tiles, pixels)) as index:
            body(T.Bind(index * pixels), pixels)
        if rest == last_rest and rest:
            body(tiles - rest, rest)
        for left, is_here in ((rest, block < self.blocks - 1), (last_rest, block == self.blocks - 1)):
            if left and rest != last_rest:
                with T.If(is_here), T.Then():
                    body(tiles - left, left)

    def _emit_requests(self, panel: Panel, weights: Expr, number: Expr, group: Expr) -> None:
        """Emit the requests of a group of tiles, its share of the weights that are read next.

        `weights` are those of the group's point and vector, which is that `number` of the panel's.
        """
        packed, constant = self.operands["weights"], self.constants["weights"]
        groups, line = -(-typical(self._tiles) // self.plan.pixels), LINE_BYTES // constant.itemsize
        if self.asks_for_panels:
            size = constant.size // len(self.panels)
            first, turn = (panel.number + 1) * size, number * groups + group
            turns = self.plan.tiling.points * panel.vectors * groups
        else:
            size = self.plan.tiling.steps * 2 * LANES
            first, turn, turns = weights + size, group, groups
        share = -(-size // (line * turns))
        at = T.Bind(first + turn * (share * line))
        with T.serial(0, share) as index:
            prefetch(packed, T.min(at + index * line, T.int32(constant.size - 1)), to_write=False)

    def _emit_products(
        self, inputs: tuple[Expr, Expr], weights: tuple[Expr, Expr], sums: tuple[Expr, Expr], pixels: int, vectors: int
    ) -> None:
        """Emit the sums of one point of `pixels` tiles and one vector; operands are buffers and where they begin."""
        acc = T.alloc_buffer((pixels * LANES,), "int32", scope="local")

        def step(index: Expr, *, is_first: bool = False) -> None:
            start = weights[1] + index * (2 * LANES)
            columns = [T.Bind(load(weights[0], start + half * WORDS, WORDS)) for half in range(2)]
            for i in range(pixels):
                pair = T.reinterpret("int32", load(inputs[0], inputs[1] + (i * self.plan.tiling.channels) + index * 2, 2))
                values = T.Bind(T.reinterpret(f"int16x{WORDS}", T.broadcast(pair, HALF)))
                for half in range(2):
                    product = v.multiply_pairs(values, columns[half], HALF)
                    at = i * LANES + half * HALF
                    store(acc, at, product if is_first else load(acc, at, HALF) + product, HALF)

        # The first step starts the sums: a zero to start from would be kept in a register through all loops.
        step(T.int32(0), is_first=True)
        with T.serial(0, self.plan.tiling.steps - 1) as index:
            step(index + 1)
        for i, half in np.ndindex(pixels, 2):
            target = sums[1] + i * (self.plan.tiling.points * vectors * LANES) + half * HALF
            store(sums[0], target, load(acc, i * LANES + half * HALF, HALF), HALF)

    # ---- outputs

    def _emit_pixel(self, sums: Sequence[Expr], target: Expr, panel: Panel, part: Expr | int = 0) -> None:
        """Emit requantization and the stores of one output pixel's channels in the panel, which is one of a part's.

        `sums` are its vectors, without biases.
        """
        groups: list[Group] = []
        start = T.Bind(part * self.geometry.group_vectors + panel.first)
        first = 0
        for size in groups_of(panel.vectors):
            indices = range(first, first + size)
            places = [(start + j) * LANES for j in indices]
            values = {
                label: [T.Bind(load(self.operands[label], place, LANES)) for place in places] for label in self.channel_values
            }
            biases = [load(self.operands["bias"], place, LANES) for place in places]
            groups.append(
                Group(
                    out=self.out,
                    target=target + first * LANES,
                    accumulators=[T.Bind(sums[j] + bias) for j, bias in zip(indices, biases, strict=True)],
                    values=values,
                    valid=min(size * LANES, panel.channels - first * LANES),
                    parameters=self.parameters,
                )
            )
            first += size
        emit_groups(self.epilogue, groups, panel.vectors, LANES)
