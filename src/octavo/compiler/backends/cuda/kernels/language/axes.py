"""Axes of tensors as kernels walk them: neighbours that stay together in every tensor count as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...isa import Isa
from ...kernel import BYTES, Number

RANK = 6
"""Axes that kernels walk."""

_THREADS_OF_PROCESSOR = 512
"""Threads of a multiprocessor with which narrower loads are worth their instructions."""


def dense_steps(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance of neighbours along each axis of a dense tensor, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast_steps(shape: tuple[int, ...], result: tuple[int, ...]) -> tuple[int, ...]:
    """Return the steps of a dense tensor along the axes of a shape that it is broadcast to: 0 where it is repeated."""
    missing = len(result) - len(shape)
    steps = (*(0,) * missing, *dense_steps(shape))
    return tuple(0 if axis < missing or shape[axis - missing] == 1 else step for axis, step in enumerate(steps))


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """A tensor that a kernel reads: its dtype, and its steps along the axes of the result in memory."""

    dtype: str
    steps: tuple[int, ...]


Axis = tuple[int, tuple[int, ...]]
"""Its size, and the step of each tensor along it."""


def merged_axes(shape: Sequence[int], steps: Sequence[Sequence[int]]) -> list[Axis]:
    """Return the axes of a result without those of size 1, neighbours as one where every tensor's steps allow."""
    merged: list[Axis] = []
    for size, *own in zip(shape, *steps, strict=True):
        if size == 1:
            continue
        if merged and all(outer == size * inner for outer, inner in zip(merged[-1][1], own, strict=True)):
            merged[-1] = merged[-1][0] * size, tuple(own)
        else:
            merged.append((size, tuple(own)))
    assert len(merged) <= RANK, f"{len(merged)} axes that lie otherwise in each tensor"
    return merged or [(1, (1,) * len(steps))]


def axis_parameters(axes: Sequence[Axis], names: Sequence[str]) -> dict[str, Number]:
    """Return the members of a structure of parameters that hold axes, the last ones behind ones of size 1."""
    padded = [*[(1, (0,) * len(names))] * (RANK - len(axes)), *axes]
    found: dict[str, Number] = {f"size{number}": size for number, (size, _) in enumerate(padded)}
    for at, name in enumerate(names):
        found |= {f"{name}_step{number}": steps[at] for number, (_, steps) in enumerate(padded)}
    return found


def elements_of_thread(axes: Sequence[Axis], dtypes: Sequence[str], isa: Isa, *, ends: bool) -> int:
    """Return how many neighbours a thread takes of tensors of these dtypes, each by one load.

    They lie side by side in every tensor, or are one element. With `ends` the last thread of a tensor of one axis may take fewer.
    """
    size, steps = axes[-1]
    items = math.prod(each for each, _ in axes)
    if any(step not in (0, 1) for step in steps):
        return 1
    if ends and len(axes) == 1:
        size = -(-size // 16) * 16 if size > 16 else size
    places = [step for _, outer in axes[:-1] for at, step in enumerate(outer) if steps[at]]
    return vector_length(size, places, items, dtypes, isa)


def vector_length(size: int, places: Sequence[int], items: int, dtypes: Sequence[str], isa: Isa) -> int:
    """Return how many of `size` neighbours a thread takes by one load or store of 16 or 4 bytes; 1 where none suits.

    All of `places`, where they lie and how far from each other, are multiples of that number.
    """
    widest = max(BYTES[dtype] for dtype in dtypes)
    narrowest = min(BYTES[dtype] for dtype in dtypes)
    for count in (16 // widest, 4 // narrowest):
        if widest > 4 or size % count or any(place % count for place in places):
            continue
        if count * narrowest == 4 or items >= count * _THREADS_OF_PROCESSOR * isa.multiprocessors:
            return count
    return 1
