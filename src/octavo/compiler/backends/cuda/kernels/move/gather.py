"""Movement of one tensor, by a step or by indices along each axis, and the change of its integers on the way."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..language.axes import RANK, axis_parameters, vector_length
from ..quantization.change import THREADS, Change


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherAxis:
    """An axis of the result.

    Parameters
    ----------
    size
        Of the result.
    step
        Of the input, from one index of it to the next, in elements.
    indices
        Which index of the input each of the result reads, -1 for padding; None for the same one.
    """

    size: int
    step: int
    indices: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Where a part of a result lies in it: in runs of `length` elements, each `pitch` behind the one before, from `first` on."""

    length: int
    pitch: int
    first: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Walk:
    """An axis as the kernel walks it: steps from `first` on, or places of the input by their order, negative for padding."""

    size: int
    step: int
    first: int = 0
    places: tuple[int, ...] | None = None


def _walk(axis: GatherAxis) -> _Walk:
    indices = axis.indices
    if indices is None:
        return _Walk(size=axis.size, step=axis.step)
    strides = {after - before for before, after in itertools.pairwise(indices)}
    if min(indices) >= 0 and len(strides) <= 1:
        return _Walk(size=axis.size, step=axis.step * (strides.pop() if strides else 1), first=axis.step * indices[0])
    places = tuple(index * axis.step if index >= 0 else -1 for index in indices)
    return _Walk(size=axis.size, step=0, places=places)


def _merged(axes: Sequence[GatherAxis]) -> list[_Walk]:
    """Return the axes without those of size 1 that are no padding, neighbours that stay together as one."""
    merged: list[_Walk] = []
    for walk in map(_walk, axes):
        before = merged[-1] if merged else None
        if walk.size == 1 and walk.places is None:
            merged = [_Walk(size=1, step=0, first=walk.first), *merged] if walk.first else merged
        elif before is not None and before.places is None and walk.places is None and before.step == walk.size * walk.step:
            merged[-1] = _Walk(size=before.size * walk.size, step=walk.step, first=before.first + walk.first)
        else:
            merged.append(walk)
    first = sum(walk.first for walk in merged)
    longer = [walk for walk in merged if walk.size > 1 or walk.places is not None]
    assert len(longer) <= RANK, f"a movement of {len(longer)} axes that part"
    rest = [_Walk(size=walk.size, step=walk.step, places=walk.places) for walk in longer] or [_Walk(size=1, step=1)]
    return [_Walk(size=rest[0].size, step=rest[0].step, first=first, places=rest[0].places), *rest[1:]]


def moves_nothing(axes: Sequence[GatherAxis]) -> bool:
    """Return whether the result's elements are those of the input, in their order."""
    walks = _merged(axes)
    return len(walks) == 1 and walks[0].places is None and walks[0].first == 0 and walks[0].step == 1


def gather(
    axes: Sequence[GatherAxis], fill: int, how: Change, isa: Isa, *, run: Run | None = None, name: str = "move"
) -> BoundKernel:
    """Return the kernel of a result whose axes in memory are these; `fill` is in the input's own integers."""
    walks = _merged(axes)
    items = math.prod(walk.size for walk in walks)
    run = run or Run(length=items, pitch=0, first=0)
    run = Run(length=items, pitch=0, first=run.first) if run.length == items else run
    tables = [walk.places for walk in walks if walk.places is not None]
    starts = np.cumsum([0, *(len(each) for each in tables)]).tolist()
    maps = [-1] * (RANK - len(walks))
    for walk in walks:
        maps.append(-1 if walk.places is None else starts.pop(0))
    steps = [(walk.size, (walk.step,)) for walk in walks]
    has_padding = any(place < 0 for table in tables for place in table)
    places = [walks[0].first, run.length, run.pitch, run.first, *(place for table in tables for place in table if place >= 0)]
    places += [walk.step for walk in walks[:-1]]
    count = vector_length(walks[-1].size if walks[-1].step == 1 else 1, places, items, (how.dtype, how.to), isa)
    parameters: dict[str, Number] = {"items": items, "threads": THREADS, "elements_of_thread": count, "fill": fill}
    parameters |= {f"map{number}": start for number, start in enumerate(maps)}
    parameters |= {"has_padding": has_padding, "x_first": walks[0].first}
    parameters |= {"run": run.length, "pitch": run.pitch, "y_first": run.first}
    kernel = Kernel(
        name=name,
        header="gather.cuh",
        function="gather",
        parameters={**parameters, **axis_parameters(steps, ("x",)), **how.parameters},
        types=how.types,
        arguments=(
            Argument(name="x", dtype=how.dtype),
            Argument(name="maps", dtype="int32"),
            Argument(name="table", dtype=how.to),
            Argument(name="y", dtype=how.to, writes=True),
        ),
        grid=(-(-items // (count * THREADS)), 1, 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (np.array([*(place for table in tables for place in table), 0], np.int32), how.table)
