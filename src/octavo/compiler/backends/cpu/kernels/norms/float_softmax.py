"""Softmax of float32 rows in plain vectors: largest value, exponentials and their sum, quotients. One text for every ISA.

A row with a NaN becomes NaN. The order of a row's sum is fixed, so a result doesn't depend on threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......runtime.size import is_open
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, load, prim_func, shuffled, splat, store, where_at_least, worthwhile

_LANES = 16
_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""

_LEAST = -87.0
"""exp of it is just a normal float32; what lies below is taken for it, and counts for nothing beside a row's largest, 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatSoftmaxSpec:
    """float32 [rows, columns] to the same."""

    rows: int
    columns: int
    threads: int = 1


def float_softmax(spec: FloatSoftmaxSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = exp(x - max(row)) / sum(exp(x - max(row)))."""
    size = spec.rows * spec.columns

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            _emit_row(x, y, B.Bind(row * spec.columns), spec.columns)

    return Kernel(name="float.softmax", isa=isa, func=prim_func([("x", size, "float32"), ("y", size, "float32")], emit))


def _emit_row(x: Buffer, y: Buffer, base: Expr, columns: int) -> None:
    """Emit a row, by lanes where it has a vector of them."""
    by_lanes, one_by_one = (partial(_emit_lanes, x, y, base, columns, lanes) for lanes in (_LANES, 1))
    where_at_least(columns, _LANES, by_lanes, one_by_one)


def _emit_lanes(x: Buffer, y: Buffer, base: Expr, columns: int, lanes: int) -> None:
    vectors, rest = divmod(columns, lanes)
    # A lane's state lies in memory of its own, which LLVM keeps in a register.
    state: Any = B.alloc_buffer((2 * _LANES,), "float32", scope="local")
    store(state, 0, splat(B.float32(-math.inf), lanes), lanes)
    store(state, _LANES, splat(B.float32(0), lanes), lanes)

    def over_row(body: object) -> None:
        assert callable(body), "a function of (start, lanes)"
        if is_open(vectors) or vectors:
            with B.serial(0, vectors) as index:
                body(B.Bind(base + index * lanes), lanes)
        if is_open(rest) or rest:
            with B.serial(0, rest) as index:
                body(B.Bind(base + vectors * lanes + index), 1)

    def grow(at: Expr, width: int) -> None:
        store(state, 0, B.max(load(state, 0, width), load(x, at, width)), width)

    def add(at: Expr, width: int) -> None:
        value = B.Bind(_exponential(load(x, at, width) - splat(largest, width), width))
        store(y, at, value, width)
        store(state, _LANES, load(state, _LANES, width) + value, width)

    def divide(at: Expr, width: int) -> None:
        store(y, at, load(y, at, width) * splat(factor, width), width)

    over_row(grow)
    largest = B.Bind(across(load(state, 0, lanes), lanes, B.max))
    over_row(add)
    total = across(load(state, _LANES, lanes), lanes, lambda a, b: a + b)
    factor = B.Bind(B.float32(1) / total)
    over_row(divide)


def across(value: Expr, lanes: int, combine: Any) -> Expr:
    """Return all lanes combined: the upper half with the lower, until one is left."""
    value = B.Bind(value)
    while lanes > 1:
        lanes //= 2
        halves = [shuffled([value], [first + i for i in range(lanes)]) for first in (0, lanes)]
        value = B.Bind(combine(*halves))
    return value


def _exponential(value: Expr, lanes: int) -> Expr:
    """Return exp of a float32 vector of values up to 0; NaN stays NaN."""
    value, least = B.Bind(value), splat(B.float32(_LEAST), lanes)
    return ElementMath(lanes).exp(B.Select(value < least, least, value))
