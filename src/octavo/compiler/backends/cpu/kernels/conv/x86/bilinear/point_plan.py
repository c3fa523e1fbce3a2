"""Estimates for kernels whose outputs are transforms of products at some points of a tile: blocks, groups of tiles, cycles.

Plain numbers, no TIR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ....language.schedule import BilinearSchedule, Schedule
from ....language.x86.vector import LANES
from ...loops.packing import Weights
from ...loops.shares import COPY_BYTES, MEMORY_BYTES
from ...loops.tiles import Core, step_cycles
from ...spec import Conv2dSpec

WORDS = 16
"""int16 lanes of a register."""

MAX_INPUT = 255
"""Inputs are uint8 as they are stored; their zero point is in the bias."""

CACHE_BYTES = 384 * 1024
"""Of the second-level cache, for the transformed inputs of a block."""

CACHED_BYTES = 64
"""Bytes a cycle that a core takes from its second-level cache, about."""

PARALLEL_INSTRUCTIONS = 3.0
"""Instructions of the transforms in a cycle."""

VALUE_INSTRUCTIONS = 1.5
"""Instructions for each value that a transform of one axis reads, adds up or writes."""

GROUP_CYCLES = 8.0
"""To start and end the sums of one point of a group of tiles."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiling:
    """How a layer is cut into tiles, and what their transforms cost.

    Parameters
    ----------
    images, rows, columns
        Tiles: rows of one image, and tiles of a row.
    points
        Products of a tile.
    inputs, outputs
        Channels of one product.
    panel
        Vectors of 16 output channels whose sums are transformed together.
    results, result_cycles
        Vectors of outputs of a tile for each vector of a point's sums; cycles to requantize and store one.
    input_values, sum_values
        Values that the transforms of a tile's inputs read, add up and write, for each register of 16 channels; alike those of its
        sums, for each vector.
    """

    images: int = 1
    rows: int
    columns: int = 1
    points: int
    inputs: int
    outputs: int
    panel: int
    results: int
    result_cycles: float
    input_values: float
    sum_values: float

    @property
    def channels(self) -> int:
        """Words of a tile's transformed inputs at one point: input channels, filled up to whole registers."""
        return -(-self.inputs // WORDS) * WORDS

    @property
    def steps(self) -> int:
        """Pairs of input channels."""
        return -(-self.inputs // 2)

    @property
    def vectors(self) -> int:
        """Vectors of 16 output channels of one product."""
        return -(-self.outputs // LANES)


@dataclass(frozen=True, kw_only=True)
class PointPlan(ABC):
    """One layer, cut into tiles.

    Parameters
    ----------
    spec
        The convolution.
    core
        Whose cycles are estimated.
    block
        Rows of tiles of a block; 0 is for the one with the fewest estimated cycles.
    """

    spec: Conv2dSpec
    core: Core
    block: int = 0

    @cached_property
    @abstractmethod
    def tiling(self) -> Tiling:
        """Its tiles."""

    @property
    @abstractmethod
    def schedule(self) -> BilinearSchedule:
        """What tells the plan from others of the layer."""

    @abstractmethod
    def is_exact(self, weights: Weights) -> bool:
        """Whether all integers fit their bits, whatever the inputs are, which lie in [0; 255]."""

    @property
    @abstractmethod
    def weight_bytes(self) -> int:
        """Of the weights as they are packed."""

    @property
    def weight_cycles(self) -> float:
        """Estimate the cycles of reading all weights, for one block."""
        return self.weight_bytes / (CACHED_BYTES if self.weight_bytes <= CACHE_BYTES else COPY_BYTES)

    def scheduled(self, schedule: Schedule) -> PointPlan | None:
        """Return this plan with the schedule's block; None where it is a schedule of other tiles or no such block exists."""
        if not isinstance(schedule, type(self.schedule)):
            return None
        is_mine = replace(schedule, block=None) == replace(self.schedule, block=None)
        return replace(self, block=schedule.block or 0) if is_mine and (schedule.block or 0) <= self.tiling.rows else None

    @property
    def other_blocks(self) -> list[Schedule]:
        """Return the schedules of other blocks, the nearest first."""
        sizes = {self.best_block * 2, self.best_block // 2, 1, self.tiling.rows} - {self.best_block}
        ordered = sorted((size for size in sizes if 0 < size <= self.tiling.rows), key=lambda size: abs(size - self.best_block))
        return [replace(self, block=size).schedule for size in ordered]

    def block_cycles(self, block: int) -> float:
        """Estimate the cycles of reading weights, and inputs that leave the cache, in blocks of so many rows of tiles."""
        tiling = self.tiling
        inputs = tiling.points * tiling.columns * tiling.channels * 2
        panels = -(-tiling.vectors // tiling.panel)
        beyond = inputs * tiling.rows * panels / COPY_BYTES if inputs * block > CACHE_BYTES else 0.0
        return -(-tiling.rows // block) * self.weight_cycles + beyond

    @cached_property
    def best_block(self) -> int:
        """Rows of tiles of a block: as given, or those with the fewest cycles."""
        if self.block:
            return self.block
        return min(dict.fromkeys(self._block_sizes), key=self.block_cycles)

    @property
    def _block_sizes(self) -> Sequence[int]:
        return [-(-self.tiling.rows // blocks) for blocks in range(1, self.tiling.rows + 1)]

    @cached_property
    def pixels(self) -> int:
        """Tiles whose sums are in registers at once: those with the fewest cycles."""
        most = self.core.most_pixels(1)
        return min(range(most, 0, -1), key=self._group_cycles)

    def _group_cycles(self, pixels: int) -> float:
        """Estimate the cycles of one point and one vector of a block."""
        full, rest = divmod(self.best_block * self.tiling.columns, pixels)

        def cycles(tiles: int) -> float:
            return self.tiling.steps * step_cycles(tiles, 1, self.core) + GROUP_CYCLES

        return full * cycles(pixels) + (cycles(rest) if rest else 0.0)

    @cached_property
    def cycles(self) -> float:
        """Estimate the cycles of the layer, but for waiting for weights."""
        tiling = self.tiling
        products = tiling.rows / self.best_block * tiling.points * tiling.vectors * self._group_cycles(self.pixels)
        inputs = VALUE_INSTRUCTIONS * tiling.input_values * (tiling.channels // WORDS) / PARALLEL_INSTRUCTIONS
        sums = 2 * VALUE_INSTRUCTIONS * tiling.sum_values / PARALLEL_INSTRUCTIONS
        tile = inputs + tiling.vectors * (sums + tiling.results * tiling.result_cycles)
        tiles = tiling.rows * tiling.columns
        return tiling.images * (products + tiles * tile + self.block_cycles(self.best_block))


def total_cycles(plan: PointPlan) -> float:
    """Estimate the cycles of a layer within a network, whose weights come from memory."""
    return plan.cycles + plan.weight_bytes / MEMORY_BYTES
