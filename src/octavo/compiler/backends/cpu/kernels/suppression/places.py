"""Where booleans are true: the places in their order, one row of numbers each. One text for every ISA.

A row stands where the ones before it end, so one thread does it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ..language.kernel import Kernel
from ..language.vectors import Buffer, prim_func


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacesSpec:
    """Booleans of a shape to int64 [elements, axes]: the places of those that are true, and -1 in all rows behind."""

    shape: tuple[int, ...]


def places(spec: PlacesSpec, *, isa: str) -> Kernel:
    """Return the kernel."""
    count, rank = math.prod(spec.shape), len(spec.shape)

    def emit(x: Buffer, y: Buffer) -> None:
        row: Any = B.alloc_buffer((1,), "int32", scope="local")
        B.buffer_store(row, B.int32(0), [0])
        with B.serial(0, count * rank) as place:
            B.buffer_store(y, B.int64(-1), [place])
        with B.serial(0, count) as place:
            is_true = B.Bind(B.Select(x[place], B.int32(1), B.int32(0)))
            with B.serial(0, is_true):  # a condition
                for axis, size in enumerate(spec.shape):
                    inner = math.prod(spec.shape[axis + 1 :])
                    number = B.floormod(B.floordiv(place, inner), size)
                    B.buffer_store(y, B.Cast("int64", number), [row[0] * rank + axis])
            B.buffer_store(row, row[0] + is_true, [0])

    sizes = [("x", count, "bool"), ("y", count * rank, "int64")]
    return Kernel(name="places", isa=isa, func=prim_func(sizes, emit))
