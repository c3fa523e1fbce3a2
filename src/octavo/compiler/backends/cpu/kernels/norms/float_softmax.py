"""Softmax of float32 rows in plain vectors: largest value, exponentials and their sum, quotients. One text for every ISA.

A row with a NaN becomes NaN. The order of a row's sum is fixed, so a result doesn't depend on threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as B

from ......runtime.size import is_open
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, across_lanes, chunked, load, prim_func, splat, store, worthwhile

_LANES = 16
_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""

_LEAST = -80.0
"""What lies further below a row's largest value is 0: beside its 1 it counts for nothing. Its quotient by the row's sum might be
no normal float32, and a product that reads such takes a hundred cycles for each: where attention is masked, half of them are."""


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
    """Emit a row in whole vectors; what is behind them is one more, filled with what counts for nothing."""
    vectors, rest = divmod(columns, _LANES)
    # A lane's state lies in memory of its own, which LLVM keeps in a register.
    state: Any = B.alloc_buffer((3 * _LANES,), "float32", scope="local")
    last = 2 * _LANES
    store(state, 0, splat(B.float32(-math.inf), _LANES), _LANES)
    store(state, _LANES, splat(B.float32(0), _LANES), _LANES)
    has_rest = is_open(rest) or rest

    def over_row(body: Callable[[Buffer, Expr, Buffer, Expr], None]) -> None:
        """Emit the body of (values read, their place, values written, their place)."""
        if is_open(vectors) or vectors:
            with B.serial(0, vectors) as index:
                at = B.Bind(base + index * _LANES)
                body(x, at, y, at)
        if has_rest:
            body(state, last, state, last)

    if has_rest:
        store(state, last, splat(B.float32(-math.inf), _LANES), _LANES)
        with B.serial(0, rest) as index:
            store(state, last + index, load(x, base + vectors * _LANES + index, 1), 1)

    def grow(source: Buffer, at: Expr, target: Buffer, to: Expr) -> None:
        del target, to
        store(state, 0, B.max(load(state, 0, _LANES), load(source, at, _LANES)), _LANES)

    def add(source: Buffer, at: Expr, target: Buffer, to: Expr) -> None:
        value = B.Bind(_exponential(load(source, at, _LANES) - splat(largest, _LANES), _LANES))
        store(target, to, value, _LANES)
        store(state, _LANES, load(state, _LANES, _LANES) + value, _LANES)

    def divide(source: Buffer, at: Expr, target: Buffer, to: Expr) -> None:
        del source
        store(target, to, load(target, at, _LANES) * splat(factor, _LANES), _LANES)

    over_row(grow)
    largest = B.Bind(across_lanes(load(state, 0, _LANES), _LANES, B.max))
    over_row(add)
    total = across_lanes(load(state, _LANES, _LANES), _LANES, lambda a, b: a + b)
    factor = B.Bind(B.float32(1) / total)
    over_row(divide)
    if has_rest:
        with B.serial(0, rest) as index:
            store(y, base + vectors * _LANES + index, load(state, last + index, 1), 1)


def _exponential(value: Expr, lanes: int) -> Expr:
    """Return exp of a float32 vector of values up to 0; NaN stays NaN."""
    value = B.Bind(value)
    exponential = B.Bind(ElementMath(lanes).exp_of_normal(value))
    return B.Select(value < splat(B.float32(_LEAST), lanes), splat(B.float32(0), lanes), exponential)
