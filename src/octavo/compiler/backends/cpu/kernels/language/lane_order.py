"""Which output channel each lane of a panel's vectors holds: epilogues narrow them by packing instructions, which reorder lanes.

It packs nothing and narrows nothing: packing.py and epilogue.py both go by it.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

LANES = 16  # int32 sums of a vector: one register of 512 bits, two of 256, four of 128


def groups_of(vectors: int) -> list[int]:
    """Split `vectors` into groups of 4, then at most one of 2, then at most one of 1."""
    return [4] * (vectors // 4) + [2] * (vectors % 4 // 2) + [1] * (vectors % 2)


@cache
def channel_order(vectors: int, lanes: int = LANES) -> npt.NDArray[np.int64]:
    """Return which of the panel's channels each lane holds, shape (vectors, lanes): lane 4 q + r of vector j of a group of g
    holds channel 4 g q + 4 j + r of the group. The array is read-only."""
    orders: list[npt.NDArray[np.int64]] = []
    start = 0
    lane = np.arange(lanes)
    for group in groups_of(vectors):
        orders.extend(start + 4 * group * (lane // 4) + 4 * j + lane % 4 for j in range(group))
        start += group * lanes
    order = np.stack(orders)
    order.flags.writeable = False  # it is everybody's
    return order
