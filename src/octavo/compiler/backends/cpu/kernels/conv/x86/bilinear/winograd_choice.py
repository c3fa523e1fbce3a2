"""Whether a convolution takes minimal filtering, and with which tiles: estimates of cycles, and a proof that it is exact.

Plain numbers, no TIR.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ....language.schedule import WinogradSchedule
from ....language.x86.vector import LANES
from ...loops.packing import Weights
from ...loops.tiles import NARROW_CYCLES, Core
from ...spec import Conv2dSpec
from .minimal_filter import MinimalFilter, TileTransform
from .point_plan import MAX_INPUT, PointPlan, Tiling, total_cycles

FILTERS = {
    (1, 1): (MinimalFilter.of(1, 1),),
    (2, 1): (MinimalFilter.of(2, 2), MinimalFilter.of(4, 2)),
    (3, 1): (MinimalFilter.of(2, 3), MinimalFilter.of(4, 3)),
    (3, 2): (MinimalFilter.strided(2, 3, 2), MinimalFilter.strided(4, 3, 2)),
    (5, 1): (MinimalFilter.of(2, 5), MinimalFilter.split(4, (3, 2))),
    (7, 1): (MinimalFilter.of(2, 7), MinimalFilter.split(4, (4, 3))),
}
"""By taps and stride of an axis, those worth trying, each with tiles of its own size. Larger tiles take too many bits."""

PANEL = 2
"""Vectors of 16 output channels whose sums are transformed together."""


@dataclass(frozen=True, kw_only=True)
class WinogradPlan(PointPlan):
    """One layer with tiles of one size; `transform` is of a tile."""

    transform: TileTransform

    @cached_property
    def tiling(self) -> Tiling:
        """Tiles of neighbouring outputs, all channels at each point."""
        spec, rows, columns = self.spec, self.transform.rows, self.transform.columns
        below = columns.outputs * columns.stride * (rows.inputs + 2 * rows.points if rows.taps > 1 else 0)
        return Tiling(
            images=spec.batch,
            rows=-(-spec.out_height // rows.outputs),
            columns=-(-spec.out_width // columns.outputs),
            points=self.transform.points,
            inputs=spec.in_channels,
            outputs=spec.out_channels,
            panel=PANEL,
            results=self.transform.outputs,
            result_cycles=NARROW_CYCLES[PANEL] * self.core.end_factor + 2,
            input_values=below + rows.points * (columns.inputs + 2 * columns.points),
            sum_values=columns.points * (2 * rows.points + rows.outputs) + rows.outputs * (2 * columns.points + columns.outputs),
        )

    @property
    def weight_bytes(self) -> int:
        """Of the transformed weights, in words."""
        return self.transform.points * self.tiling.steps * self.tiling.vectors * 4 * LANES

    @property
    def schedule(self) -> WinogradSchedule:
        """Its tiles and its block."""
        block = self.block or None
        return WinogradSchedule(tile_rows=self.transform.rows.outputs, tile_columns=self.transform.columns.outputs, block=block)

    def is_exact(self, weights: Weights) -> bool:
        """Whether all integers fit their bits, whatever the inputs are, which lie in [0; 255].

        Transformed, inputs and weights must fit int16. A sum must fit int32 times what the transforms' factors leave of it,
        a power of two: their odd part has an inverse modulo 2**32.
        """
        transform, centered = self.transform, weights.centered
        positive = int(np.maximum(centered, 0).sum(axis=(0, 1, 2)).max(initial=0))
        negative = int(np.maximum(-centered, 0).sum(axis=(0, 1, 2)).max(initial=0))
        limit = np.iinfo(np.int16).max
        if transform.input_reach * MAX_INPUT > limit or MAX_INPUT * max(positive, negative) << transform.shift >= 1 << 31:
            return False
        if transform.weight_reach * int(np.abs(centered).max(initial=0)) <= limit:
            return True
        return float(np.abs(transform.weights(centered)).max(initial=0)) <= limit


def winograd_plans(spec: Conv2dSpec, core: Core) -> list[WinogradPlan]:
    """Return what a convolution can take if its weights allow it, the fewest estimated cycles first."""
    if spec.dilation != (1, 1) or spec.groups > 1 or spec.kernel == (1, 1):
        return []
    rows, columns = (FILTERS.get(axis, ()) for axis in zip(spec.kernel, spec.strides, strict=True))
    pairs = itertools.product(rows, columns)
    plans = [WinogradPlan(spec=spec, core=core, transform=TileTransform(rows=first, columns=second)) for first, second in pairs]
    return sorted(plans, key=total_cycles)
