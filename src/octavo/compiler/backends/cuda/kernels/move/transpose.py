"""Transpositions of any rank: axes that stay together count as one."""

from __future__ import annotations

import math
from typing import Any

import numpy.typing as npt

from ...isa import Isa
from ...kernel import Argument, Kernel

_THREADS = 256
_RANK = 6


def transpose(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, isa: Isa) -> tuple[Kernel, tuple[npt.NDArray[Any], ...]]:
    """Return the kernel that writes the axes of a dense tensor in another order: y[i] = x[i of `axes`]."""
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    sizes = [shape[axis] for axis in axes]
    steps = [strides[axis] for axis in axes]
    merged: list[tuple[int, int]] = []
    for size, step in zip(sizes, steps, strict=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * step:
            merged[-1] = merged[-1][0] * size, step
        else:
            merged.append((size, step))
    assert len(merged) <= _RANK, f"a transposition of {len(merged)} axes that part"
    padded = [(1, 0)] * (_RANK - len(merged)) + merged
    items = math.prod(shape)
    kernel = Kernel(
        name="transpose",
        header="transpose.cuh",
        function="transpose",
        parameters={
            "items": items,
            "threads": _THREADS,
            **{f"size{number}": size for number, (size, _) in enumerate(padded)},
            **{f"step{number}": step for number, (_, step) in enumerate(padded)},
        },
        types={"X": dtype},
        arguments=(Argument(name="x", dtype=dtype), Argument(name="y", dtype=dtype, writes=True)),
        grid=(-(-items // _THREADS), 1, 1),
        block=(_THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, ()
