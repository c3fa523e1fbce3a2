"""Whether a convolution takes minimal filtering, and with which tiles: estimates of cycles, and a proof that it is exact.

Plain numbers, no TIR.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..schedule import WinogradSchedule
from ..spec import Conv2dSpec
from .minimal_filter import MinimalFilter, TileTransform
from .packing import Weights
from .shares import COPY_BYTES, MEMORY_BYTES
from .tiles import NARROW_CYCLES, Core, step_cycles
from .vector import LANES

FILTERS = {
    (1, 1): (MinimalFilter.of(1, 1),),
    (2, 1): (MinimalFilter.of(2, 2), MinimalFilter.of(4, 2)),
    (3, 1): (MinimalFilter.of(2, 3), MinimalFilter.of(4, 3)),
    (3, 2): (MinimalFilter.strided(2, 3, 2), MinimalFilter.strided(4, 3, 2)),
    (5, 1): (MinimalFilter.of(2, 5), MinimalFilter.split(4, (3, 2))),
    (7, 1): (MinimalFilter.of(2, 7), MinimalFilter.split(4, (4, 3))),
}
"""By taps and stride of an axis, those worth trying, each with tiles of its own size. Larger tiles take too many bits."""

WORDS = 16
"""int16 lanes of a register."""

MAX_INPUT = 255
"""Inputs are uint8 as they are stored; their zero point is in the bias."""

PANEL = 2
"""Vectors of 16 output channels whose sums are transformed together."""

CACHE_BYTES = 256 * 1024
"""Of the second-level cache, for the transformed inputs of a block."""

CACHED_BYTES = 64
"""Bytes a cycle that a core takes from its second-level cache, about."""

PARALLEL_INSTRUCTIONS = 3.0
"""Instructions of the transforms in a cycle."""

VALUE_INSTRUCTIONS = 1.5
"""Instructions for each value that a transform of one axis reads, adds up or writes."""

GROUP_CYCLES = 8.0
"""To start and end the sums of one point of a group of tiles."""


@dataclass(frozen=True)
class WinogradPlan:
    """One layer with tiles of one size.

    Parameters
    ----------
    spec
        The convolution.
    transform
        Of a tile.
    core
        Whose cycles are estimated.
    block
        Rows of tiles of a block; 0 is for the one with the fewest estimated cycles.
    """

    spec: Conv2dSpec
    transform: TileTransform
    core: Core
    block: int = 0

    @property
    def tile_rows(self) -> int:
        """Rows of tiles."""
        return -(-self.spec.out_height // self.transform.rows.outputs)

    @property
    def tile_columns(self) -> int:
        """Tiles of a row."""
        return -(-self.spec.out_width // self.transform.columns.outputs)

    @property
    def channels(self) -> int:
        """Words of a transformed pixel: input channels, filled up to whole registers."""
        return -(-self.spec.in_channels // WORDS) * WORDS

    @property
    def steps(self) -> int:
        """Pairs of input channels."""
        return -(-self.spec.in_channels // 2)

    @property
    def vectors(self) -> int:
        """Vectors of 16 output channels."""
        return -(-self.spec.out_channels // LANES)

    @property
    def weight_bytes(self) -> int:
        """Of the transformed weights."""
        return self.transform.points * self.steps * self.vectors * 4 * LANES

    @property
    def schedule(self) -> WinogradSchedule:
        """What tells the plan from others of the layer."""
        block = self.block or None
        return WinogradSchedule(tile_rows=self.transform.rows.outputs, tile_columns=self.transform.columns.outputs, block=block)

    def scheduled(self, schedule: WinogradSchedule) -> WinogradPlan | None:
        """Return this plan with the schedule's block; None where it is a schedule of other tiles or no such block exists."""
        is_mine = replace(schedule, block=None) == replace(self.schedule, block=None)
        return replace(self, block=schedule.block or 0) if is_mine and (schedule.block or 0) <= self.tile_rows else None

    @property
    def other_blocks(self) -> list[WinogradSchedule]:
        """Return the schedules of other blocks, the nearest first."""
        sizes = {self.best_block * 2, self.best_block // 2, 1, self.tile_rows} - {self.best_block}
        ordered = sorted((size for size in sizes if 0 < size <= self.tile_rows), key=lambda size: abs(size - self.best_block))
        return [replace(self, block=size).schedule for size in ordered]

    def block_cycles(self, block: int) -> float:
        """Estimate the cycles of reading weights, and inputs that leave the cache, in blocks of so many rows of tiles."""
        inputs = self.transform.points * self.tile_columns * self.channels * 2
        weights = self.weight_bytes / (CACHED_BYTES if self.weight_bytes <= CACHE_BYTES else COPY_BYTES)
        beyond = inputs * self.tile_rows * -(-self.vectors // PANEL) / COPY_BYTES if inputs * block > CACHE_BYTES else 0.0
        return -(-self.tile_rows // block) * weights + beyond

    @cached_property
    def best_block(self) -> int:
        """Rows of tiles of a block: as given, or those with the fewest cycles."""
        if self.block:
            return self.block
        sizes = dict.fromkeys(-(-self.tile_rows // blocks) for blocks in range(1, self.tile_rows + 1))
        return min(sizes, key=self.block_cycles)

    @cached_property
    def pixels(self) -> int:
        """Tiles whose sums are in registers at once: those with the fewest cycles."""
        most = self.core.most_pixels(1)
        return min(range(most, 0, -1), key=self._group_cycles)

    def _group_cycles(self, pixels: int) -> float:
        """Estimate the cycles of one point and one vector of a block."""
        full, rest = divmod(self.best_block * self.tile_columns, pixels)
        cycles = full * (self.steps * step_cycles(pixels, 1, self.core) + GROUP_CYCLES)
        return cycles + (self.steps * step_cycles(rest, 1, self.core) + GROUP_CYCLES if rest else 0.0)

    @cached_property
    def cycles(self) -> float:
        """Estimate the cycles of the layer, but for waiting for weights."""
        rows, columns = self.transform.rows, self.transform.columns
        blocks = self.tile_rows / self.best_block
        products = blocks * self.transform.points * self.vectors * self._group_cycles(self.pixels)
        below = columns.outputs * columns.stride * (rows.inputs + 2 * rows.points if rows.taps > 1 else 0)
        beside = rows.points * (columns.inputs + 2 * columns.points)
        inputs = VALUE_INSTRUCTIONS * (below + beside) * (self.channels // WORDS) / PARALLEL_INSTRUCTIONS
        values = columns.points * (2 * rows.points + rows.outputs) + rows.outputs * (2 * columns.points + columns.outputs)
        sums = 2 * VALUE_INSTRUCTIONS * values / PARALLEL_INSTRUCTIONS
        ends = self.transform.outputs * (NARROW_CYCLES[PANEL] * self.core.end_factor + 2)
        tiles = self.tile_rows * self.tile_columns
        return self.spec.batch * (products + tiles * (inputs + self.vectors * (sums + ends)) + self.block_cycles(self.best_block))


def plans_of(spec: Conv2dSpec, core: Core) -> list[WinogradPlan]:
    """Return what a convolution can take if its weights allow it, the fewest estimated cycles first."""
    if spec.dilation != (1, 1) or spec.groups > 1 or spec.kernel == (1, 1):
        return []
    rows, columns = (FILTERS.get(axis, ()) for axis in zip(spec.kernel, spec.strides, strict=True))
    pairs = itertools.product(rows, columns)
    plans = [WinogradPlan(spec, TileTransform(rows=first, columns=second), core) for first, second in pairs]
    return sorted(plans, key=total_cycles)


def total_cycles(plan: WinogradPlan) -> float:
    """Estimate the cycles of a layer within a network, whose weights come from memory."""
    return plan.cycles + plan.weight_bytes / MEMORY_BYTES


def is_exact(plan: WinogradPlan, weights: Weights) -> bool:
    """Whether all integers fit their bits, whatever the inputs are, which lie in [0; 255].

    Transformed, inputs and weights must fit int16. A sum must fit int32 times what the transforms' factors leave of it,
    a power of two: their odd part has an inverse modulo 2**32.
    """
    transform, centered = plan.transform, weights.centered
    positive = int(np.maximum(centered, 0).sum(axis=(0, 1, 2)).max(initial=0))
    negative = int(np.maximum(-centered, 0).sum(axis=(0, 1, 2)).max(initial=0))
    limit = np.iinfo(np.int16).max
    if transform.input_reach * MAX_INPUT > limit or MAX_INPUT * max(positive, negative) << transform.shift >= 1 << 31:
        return False
    if transform.weight_reach * int(np.abs(centered).max(initial=0)) <= limit:
        return True
    return float(np.abs(transform.weights(centered)).max(initial=0)) <= limit
