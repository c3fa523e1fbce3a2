"""Reductions of float32 over one run of axes: sums, means, extremes and their places. Oracle: `numerics.float_reduce`.

Along the last axis vectors of a row are combined, with one another and then with themselves; elsewhere a strip of neighbours at a
time, in the order of the axis. No order depends on threads or the ISA.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......numerics.floats.reduce import LANES, ROW_VECTORS
from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.partial import load_first
from ..language.vectors import (
    Buffer,
    Expr,
    across_lanes,
    chunked,
    float_of,
    for_each_vector,
    load,
    prim_func,
    splat,
    store,
    tirx,
    where_left,
    worthwhile,
)

_STRIP = 8
"""Vectors that are reduced together: as many as an addition's latency times two, and a line of memory after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatReduceSpec:
    """float32 [outer, count, inner] to [outer, inner]; "argmax" and "argmin" give the first place of the extreme."""

    kind: Literal["sum", "mean", "max", "min", "argmax", "argmin"]
    outer: int
    count: int
    inner: int
    index_dtype: Literal["int32", "int64"] = "int64"
    threads: int = 1

    @property
    def out_dtype(self) -> str:
        """Dtype of the result."""
        return self.index_dtype if self.gives_places else "float32"

    @property
    def gives_places(self) -> bool:
        """Whether the result is where the extreme is."""
        return self.kind in ("argmax", "argmin")

    @property
    def operations(self) -> int:
        """Elementary ones of all."""
        return self.outer * self.count * self.inner

    @property
    def first(self) -> Expr:
        """What changes no value that it is combined with."""
        return B.float32({"max": -np.inf, "min": np.inf}.get(self.kind[-3:], 0.0))

    def combined(self, one: Expr, other: Expr) -> Expr:
        """Return two values, or vectors of them, as one."""
        return {"max": B.max, "min": B.min}[self.kind[-3:]](one, other) if self.kind[-3:] in ("max", "min") else one + other

    def result(self, total: Expr, lanes: int) -> Expr:
        """Return a value, or a vector, of the result."""
        return total / splat(float_of(self.count), lanes) if self.kind == "mean" else total


def float_reduce(spec: FloatReduceSpec, *, isa: str) -> Kernel:
    """Return the kernel; threads share the rows or strips."""

    def emit(x: Buffer, y: Buffer) -> None:
        if spec.inner == 1:
            with chunked(spec.outer, worthwhile(spec.threads, spec.operations, spec.outer)) as row:
                _Row(spec, isa, x, B.Bind(row * spec.count)).emit(y, row)
        else:
            _Strips(spec, x, y).emit()

    arguments = [("x", spec.operations, "float32"), ("y", spec.outer * spec.inner, spec.out_dtype)]
    return Kernel(name=f"float.{spec.kind}", isa=isa, func=prim_func(arguments, emit))


class _Row:
    """Writes the reduction of one row, which starts at `base`."""

    def __init__(self, spec: FloatReduceSpec, isa: str, x: Buffer, base: Expr) -> None:
        self.spec, self.isa, self.x, self.base = spec, isa, x, base
        self.vectors, self.rest = divmod(spec.count, LANES)

    def emit(self, y: Buffer, row: Expr) -> None:
        """Emit the row's result."""
        total = self._reduced("float32", self.spec.first, lambda value, at: value, self.spec.combined)
        if not self.spec.gives_places:
            B.buffer_store(y, self.spec.result(total, 1), [row])
            return
        last = B.Bind(B.int32(0) + (self.spec.count - 1))  # where nothing equals a NaN

        def place(value: Expr, at: Expr) -> Expr:
            return B.Select(value.equal(splat(total, LANES)), tirx.Ramp(at, B.int32(1), LANES), splat(last, LANES))

        found = self._reduced("int32", last, place, B.min)
        B.buffer_store(y, found.astype(self.spec.index_dtype), [row])

    def _reduced(self, dtype: str, first: Expr, of: Callable[[Expr, Expr], Expr], combined: Callable[[Expr, Expr], Expr]) -> Expr:
        """Return what is made of vectors of the row and of where they start, combined."""
        width = ROW_VECTORS if is_open(self.vectors) else min(ROW_VECTORS, max(1, self.vectors))
        accs: list[Any] = [B.alloc_buffer((LANES,), dtype, scope="local") for _ in range(width)]
        for acc in accs:
            store(acc, 0, splat(first, LANES), LANES)

        def take(acc: Buffer, vector: Expr) -> None:
            at = vector * LANES
            value = of(load(self.x, self.base + at, LANES), B.int32(0) + at)
            store(acc, 0, combined(load(acc, 0, LANES), value), LANES)

        rounds, left = divmod(self.vectors, width)
        if is_open(rounds) or rounds:
            with B.serial(0, rounds) as turn:
                for number, acc in enumerate(accs):
                    take(acc, turn * width + number)
        for number, acc in enumerate(accs[:-1]):
            where_left(
                left - number if is_open(left) else max(0, left - number), lambda a=acc, n=number: take(a, rounds * width + n)
            )
        where_left(self.rest, lambda: self._take_rest(accs[0], first, of, combined))
        values = [load(acc, 0, LANES) for acc in accs]
        while len(values) > 1:
            values = [combined(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
        return B.Bind(across_lanes(values[0], LANES, combined))

    def _take_rest(
        self, acc: Buffer, first: Expr, of: Callable[[Expr, Expr], Expr], combined: Callable[[Expr, Expr], Expr]
    ) -> None:
        at = self.vectors * LANES
        staged: Any = B.alloc_buffer((LANES,), "float32", scope="local")
        load_first(staged, 0, self.x, self.base + at, LANES, self.rest, self.spec.first, isa=self.isa)
        value = B.Bind(of(load(staged, 0, LANES), B.int32(0) + at))
        if self.spec.gives_places and acc.dtype == "int32":  # a place behind the row's end is none
            value = B.min(value, splat(first, LANES))
        store(acc, 0, combined(load(acc, 0, LANES), value), LANES)


class _Strips:
    """Writes the reduction of strips of neighbours."""

    def __init__(self, spec: FloatReduceSpec, x: Buffer, y: Buffer) -> None:
        self.spec, self.x, self.y = spec, x, y

    def emit(self) -> None:
        """Emit all strips."""
        spec, width = self.spec, _STRIP * LANES
        if is_open(spec.inner):
            with chunked(spec.outer, worthwhile(spec.threads, spec.operations, spec.outer)) as outer:
                for_each_vector(spec.inner, LANES, 1, lambda first, lanes: self._strip(outer, first, [(0, lanes)]))
            return
        strips, rest = divmod(spec.inner, width)
        units = -(-spec.inner // width)
        total = spec.outer * units
        with chunked(total, worthwhile(spec.threads, spec.operations, total)) as index:
            outer, number = B.Bind(B.floordiv(index, units)), B.Bind(B.floormod(index, units))
            if strips and rest:
                with B.If(number < strips):
                    with B.Then():
                        self._strip(outer, number * width, _pieces(width))
                    with B.Else():
                        self._strip(outer, B.int32(strips * width), _pieces(rest))
            else:
                self._strip(outer, number * width, _pieces(rest or width))

    def _strip(self, outer: Expr, first: Expr, pieces: list[tuple[int, int]]) -> None:
        spec = self.spec
        totals: list[Any] = [B.alloc_buffer((lanes,), "float32", scope="local") for _, lanes in pieces]
        places: list[Any] = [B.alloc_buffer((lanes,), "int32", scope="local") for _, lanes in pieces if spec.gives_places]
        for acc, (_, lanes) in zip(totals, pieces, strict=True):
            store(acc, 0, splat(spec.first, lanes), lanes)
        for acc, (_, lanes) in zip(places, pieces, strict=False):
            store(acc, 0, splat(B.int32(0), lanes), lanes)
        with B.serial(0, spec.count) as place:
            base = B.Bind((outer * spec.count + place) * spec.inner + first)
            for number, (acc, (at, lanes)) in enumerate(zip(totals, pieces, strict=True)):
                value, before = B.Bind(load(self.x, base + at, lanes)), B.Bind(load(acc, 0, lanes))
                if places:
                    is_new = value > before if spec.kind == "argmax" else value < before
                    kept = load(places[number], 0, lanes)
                    store(places[number], 0, B.Select(is_new, splat(B.int32(0) + place, lanes), kept), lanes)
                store(acc, 0, spec.combined(before, value), lanes)
        for number, (acc, (at, lanes)) in enumerate(zip(totals, pieces, strict=True)):
            found = load(places[number], 0, lanes, spec.index_dtype) if places else spec.result(load(acc, 0, lanes), lanes)
            store(self.y, outer * spec.inner + first + at, found, lanes)


def _pieces(size: int) -> list[tuple[int, int]]:
    """Return (first, lanes) of the vectors that cover `size`."""
    return [(first, min(LANES, size - first)) for first in range(0, size, LANES)]
