"""Whether a product of pixels and weights takes Strassen's form, and how many levels of it: estimates of cycles.

Plain numbers, no TIR.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....language.schedule import StrassenSchedule
from ....language.x86.vector import LANES
from ...loops.packing import Weights
from ...loops.tiles import Core
from ...spec import Conv2dSpec
from .block_product import BLOCKS, LEFT_SUMS, POINTS, PRODUCT_SUMS, REACH, RIGHT_SUMS
from .point_plan import MAX_INPUT, PARALLEL_INSTRUCTIONS, VALUE_INSTRUCTIONS, WORDS, PointPlan, Tiling, total_cycles

MAX_LEVELS = 2
"""A third takes another eighth of the products, but as many sums."""


PANEL = 1
"""Vectors of 16 output channels whose sums are transformed together: a tile has many sums of each."""


RESULT_CYCLES = 5.0
"""To requantize a vector of outputs whose sums are in registers, and to store it; fitted on a Zen 4."""


@dataclass(frozen=True, kw_only=True)
class StrassenPlan(PointPlan):
    """One layer with so many `levels`: tiles are 2**levels neighbouring pixels, of all images in one sequence."""

    levels: int

    @property
    def size(self) -> int:
        """Pixels of a tile, and parts of the input channels and of the output channels."""
        return 1 << self.levels

    @property
    def _stages(self) -> int:
        """Transforms of four blocks, or of seven sums, of one tile.

        Each level has one for each point of the levels before it and for each block of those to come.
        """
        return sum(BLOCKS**level * POINTS ** (self.levels - 1 - level) for level in range(self.levels))

    @cached_property
    def tiling(self) -> Tiling:
        """Tiles of neighbouring pixels, of all images in one sequence; a part of the channels at each point."""
        spec, size, levels, stages = self.spec, self.size, self.levels, self._stages
        return Tiling(
            rows=-(-spec.batch * spec.out_height * spec.out_width // size),
            points=POINTS**levels,
            inputs=spec.in_channels // size,
            outputs=spec.out_channels // size,
            panel=PANEL,
            results=size**2,
            result_cycles=RESULT_CYCLES,
            input_values=stages * (BLOCKS + LEFT_SUMS + POINTS),
            # The last level's sums stay in registers.
            sum_values=stages * (POINTS + PRODUCT_SUMS + BLOCKS) - BLOCKS**levels,
        )

    @property
    def weight_bytes(self) -> int:
        """Of the weights, in bytes: they are transformed when they are read."""
        return self.spec.in_channels * self.spec.out_channels

    @property
    def weight_cycles(self) -> float:
        """Estimate the cycles of reading and transforming all weights, for one block."""
        registers = self.tiling.steps * self.tiling.vectors * (2 * LANES // WORDS)
        values = registers * self._stages * (BLOCKS + RIGHT_SUMS + POINTS)
        return super().weight_cycles + VALUE_INSTRUCTIONS * values / PARALLEL_INSTRUCTIONS

    @property
    def schedule(self) -> StrassenSchedule:
        """Its levels and its block."""
        return StrassenSchedule(levels=self.levels, block=self.block or None)

    @property
    def _block_sizes(self) -> Sequence[int]:
        # Whole groups of tiles: a rest would be a group of few, in each block.
        group = self.core.most_pixels(1)
        groups = -(-self.tiling.rows // group)
        return [min(-(-groups // blocks) * group, self.tiling.rows) for blocks in range(1, groups + 1)]

    def is_exact(self, weights: Weights) -> bool:
        """Whether transformed inputs and weights fit int16: at two levels of trained weights they always do."""
        reach = REACH**self.levels
        largest = max(MAX_INPUT, int(np.abs(weights.centered).max(initial=0)))
        return reach * largest <= np.iinfo(np.int16).max


def strassen_plans(spec: Conv2dSpec, core: Core) -> list[StrassenPlan]:
    """Return what a product can take, the fewest estimated cycles first."""
    if spec.kernel != (1, 1) or max(spec.groups, spec.stack) > 1 or any(spec.padding):
        return []
    plans = [StrassenPlan(spec=spec, core=core, levels=levels) for levels in range(1, MAX_LEVELS + 1)]
    divisible = [plan for plan in plans if not any(side % (WORDS * plan.size) for side in (spec.in_channels, spec.out_channels))]
    return sorted(divisible, key=total_cycles)
