"""The greatest or least elements of rows, and where they are, in order. Oracle: `numerics.top_k_indices`.

8-bit rows are sorted by counting: how often each value occurs says where its first occurrence goes. 16-bit rows are looked
through once for each place of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tvm.script.ir_builder import tirx as B

from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, prim_func, worthwhile

_VALUES = 256
_LEAST = -(1 << 62)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopkSpec:
    """`dtype` [rows, extent] to [rows, count]: the elements themselves, or their places in `index_dtype`."""

    rows: int
    extent: int
    count: int
    largest: bool
    gives: Literal["values", "indices"]
    dtype: Literal["uint8", "int16"] = "uint8"
    index_dtype: Literal["int32", "int64"] = "int64"
    threads: int = 1

    @property
    def out_dtype(self) -> str:
        """Dtype of the result."""
        return self.dtype if self.gives == "values" else self.index_dtype


def topk(spec: TopkSpec, *, isa: str) -> Kernel:
    """Return the kernel; threads share the rows."""
    assert 1 <= spec.count <= spec.extent, "the rule sees to it"
    narrow = spec.dtype == "uint8"
    work = spec.rows * (2 * spec.extent + _VALUES if narrow else spec.extent * spec.count)

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, 4 * work, spec.rows)) as row:
            (_counted if narrow else _looked_through)(spec, x, y, row)

    arguments = [("x", spec.rows * spec.extent, spec.dtype), ("y", spec.rows * spec.count, spec.out_dtype)]
    return Kernel(name=f"topk_{spec.gives}", isa=isa, func=prim_func(arguments, emit))


def _counted(spec: TopkSpec, x: Buffer, y: Buffer, row: Expr) -> None:
    """Emit one row of bytes: count, turn counts into first places, then put each element at its own."""
    base = row * spec.extent
    # Entry v + 1 counts v, and entry v becomes v's place.
    places: Any = B.alloc_buffer((_VALUES + 1,), "int32", scope="local")

    def order(value: Expr) -> Expr:
        wide = value.astype("int32")
        return B.int32(_VALUES - 1) - wide if spec.largest else wide

    with B.serial(0, _VALUES + 1) as value:
        B.buffer_store(places, B.int32(0), [value])
    with B.serial(0, spec.extent) as at:
        behind = order(x[base + at]) + 1
        B.buffer_store(places, places[behind] + 1, [behind])
    with B.serial(1, _VALUES) as value:
        B.buffer_store(places, places[value] + places[value - 1], [value])
    with B.serial(0, spec.extent) as at:
        own = order(x[base + at])
        with B.If(places[own] < spec.count), B.Then():
            given = x[base + at] if spec.gives == "values" else at.astype(spec.index_dtype)
            B.buffer_store(y, given, [row * spec.count + places[own]])
        B.buffer_store(places, places[own] + 1, [own])


def _looked_through(spec: TopkSpec, x: Buffer, y: Buffer, row: Expr) -> None:
    """Emit one row of 16-bit integers: each turn finds the greatest of what comes behind the last one found.

    Value and place make one number, in which of two equal values the first is the greater.
    """
    base = row * spec.extent
    best: Any = B.alloc_buffer((2,), "int64", scope="local")  # of this turn, and of the last
    B.buffer_store(best, B.int64(-_LEAST), [1])
    with B.serial(0, spec.count) as turn:
        B.buffer_store(best, B.int64(_LEAST), [0])
        with B.serial(0, spec.extent) as at:
            wide = x[base + at].astype("int64")
            ordered = wide if spec.largest else -wide
            key = ordered * B.int64(1 << 32) - at.astype("int64")
            B.buffer_store(best, B.if_then_else(key < best[1], B.max(best[0], key), best[0]), [0])
        B.buffer_store(best, best[0], [1])
        place = B.bitwise_and(-best[0], B.int64((1 << 32) - 1))
        given = x[base + place.astype("int32")] if spec.gives == "values" else place.astype(spec.index_dtype)
        B.buffer_store(y, given, [row * spec.count + turn])
