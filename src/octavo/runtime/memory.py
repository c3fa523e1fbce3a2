"""Places of the intermediate tensors within one block of memory. Knows sizes and lifetimes, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .shapes import largest, typical

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
    alive: dict[int, list[int]] = {}
    total = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first)):
        wanted = align(lifetimes[index].size, alignment)
        calls = range(lifetimes[index].first, lifetimes[index].last + 1)
        others = {other for call in calls for other in alive.get(call, ())}
        taken = sorted((offsets[other], offsets[other] + align(lifetimes[other].size, alignment)) for other in others)
        offsets[index] = _smallest_gap(taken, wanted)
        for call in calls:
            alive.setdefault(call, []).append(index)
        total = max(total, offsets[index] + wanted)
    return offsets, total


def place_in_slots(lifetimes: Sequence[Lifetime]) -> tuple[list[int], list[int]]:
    """Give each tensor a slot that no other has while it is alive, where sizes are open.

    Largest first, each into the smallest slot that is free: "greedy by size for shared objects" of the same paper.

    Returns
    -------
    slots, sizes
        The number of each tensor's slot, in the order of `lifetimes`; bytes of each slot: those of its largest tensor.
    """
    numbers = [typical(each.size) for each in lifetimes]
    slots = [0] * len(lifetimes)
    in_slots: list[list[int]] = []
    for index in sorted(range(len(lifetimes)), key=lambda i: (-numbers[i], lifetimes[i].first)):
        free = [n for n, others in enumerate(in_slots) if not any(lifetimes[o].overlaps(lifetimes[index]) for o in others)]
        if not free:
            in_slots.append([])
        slots[index] = min(free, key=lambda n: numbers[in_slots[n][0]]) if free else len(in_slots) - 1
        in_slots[slots[index]].append(index)
    return slots, [largest(lifetimes[index].size for index in each) for each in in_slots]


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
