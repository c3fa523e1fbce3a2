"""Means of float32 over an axis that is not the last, a strip of neighbours at a time. Oracle: `numerics.float_reduce`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, float_of, for_each_vector, load, prim_func, splat, store, worthwhile

_LANES = 16
_STRIP = 8
"""Vectors that are summed together: as many sums as an addition's latency times two, and a line of memory after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatMeanSpec:
    """float32 [outer, count, inner] to [outer, inner]."""

    outer: int
    count: int
    inner: int
    threads: int = 1


def mean_in_order(spec: FloatMeanSpec, *, isa: str) -> Kernel:
    """Return the kernel of y[o, i] = (x[o, 0, i] + x[o, 1, i] + ...) / count; threads share the strips."""
    width = _STRIP * _LANES
    strips, rest = divmod(spec.inner, width)
    units = -(-spec.inner // width)

    def emit(x: Buffer, y: Buffer) -> None:
        def strip(outer: Expr, first: Expr, pieces: list[tuple[int, int]]) -> None:
            sums: list[Any] = [B.alloc_buffer((lanes,), "float32", scope="local") for _, lanes in pieces]
            for acc, (_, lanes) in zip(sums, pieces, strict=True):
                store(acc, 0, splat(B.float32(0), lanes), lanes)
            with B.serial(0, spec.count) as place:
                base = B.Bind((outer * spec.count + place) * spec.inner + first)
                for acc, (at, lanes) in zip(sums, pieces, strict=True):
                    store(acc, 0, load(acc, 0, lanes) + load(x, base + at, lanes), lanes)
            for acc, (at, lanes) in zip(sums, pieces, strict=True):
                mean = load(acc, 0, lanes) / splat(float_of(spec.count), lanes)
                store(y, outer * spec.inner + first + at, mean, lanes)

        if is_open(spec.inner):
            with chunked(spec.outer, worthwhile(spec.threads, spec.outer * spec.count * spec.inner, spec.outer)) as outer:
                for_each_vector(spec.inner, _LANES, 1, lambda first, lanes: strip(outer, first, [(0, lanes)]))
            return
        total = spec.outer * units
        with chunked(total, worthwhile(spec.threads, spec.outer * spec.count * spec.inner, total)) as index:
            outer, number = B.Bind(B.floordiv(index, units)), B.Bind(B.floormod(index, units))
            if strips and rest:
                with B.If(number < strips):
                    with B.Then():
                        strip(outer, number * width, _pieces(width))
                    with B.Else():
                        strip(outer, B.int32(strips * width), _pieces(rest))
            else:
                strip(outer, number * width, _pieces(rest or width))

    arguments = [("x", spec.outer * spec.count * spec.inner, "float32"), ("y", spec.outer * spec.inner, "float32")]
    return Kernel(name="float.mean", isa=isa, func=prim_func(arguments, emit))


def _pieces(size: int) -> list[tuple[int, int]]:
    """Return (first, lanes) of the vectors that cover `size`."""
    return [(first, min(_LANES, size - first)) for first in range(0, size, _LANES)]
