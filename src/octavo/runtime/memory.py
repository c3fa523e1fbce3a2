"""Places of the intermediate tensors within one block of memory. Knows sizes and lifetimes, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes: a cache line, and what TVM's kernels assume of every tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetime:
    """A tensor's size in bytes, the number of the call that writes it and of the last one that reads it."""

    size: int
    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether both tensors are alive during some call."""
        return self.first <= other.last and other.first <= self.last


def align(size: int, alignment: int = ALIGNMENT) -> int:
    """Round a size in bytes up to a multiple of an alignment: whole cache lines by default."""
    return -(-size // alignment) * alignment


def place(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> tuple[list[int], int]:
    """Give each tensor an offset so that tensors alive at the same time don't overlap.

    Largest first, each into the smallest gap that holds it between those already placed ("greedy by size": Pisarchyk and Lee,
    "Efficient Memory Management for Deep Neural Net Inference", 2020).

    Returns
    -------
    offsets, size
        Offsets in bytes, multiples of the alignment, in the order of `lifetimes`; bytes of the whole block.
    """
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first)):
        wanted = align(lifetimes[index].size, alignment)
        taken = sorted(
            (offsets[other], offsets[other] + align(lifetimes[other].size, alignment))
            for other in placed
            if lifetimes[other].overlaps(lifetimes[index])
        )
        offsets[index] = _smallest_gap(taken, wanted)
        placed.append(index)
        total = max(total, offsets[index] + wanted)
    return offsets, total


def _smallest_gap(taken: list[tuple[int, int]], wanted: int) -> int:
    """Return where `wanted` bytes fit best between the intervals, which are sorted; behind them all where no gap is enough."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        gap = start - end
        if gap >= wanted and (best is None or gap < best[0]):
            best = gap, end
        end = max(end, stop)
    return end if best is None else best[1]
