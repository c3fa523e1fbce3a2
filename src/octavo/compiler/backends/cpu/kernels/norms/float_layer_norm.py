"""Layer normalization of float32 rows in plain vectors: mean, variance about it, result. One text for every ISA.

The order of a row's sums is fixed, so a result doesn't depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, across_lanes, chunked, intrinsic, load, prim_func, splat, store, worthwhile

_LANES = 16
_OPERATIONS = 4
"""Elementary operations that a value costs, for the choice of threads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatLayerNormSpec:
    """float32 [rows, columns] to the same."""

    rows: int
    columns: int
    epsilon: float
    threads: int = 1


def float_layer_norm(
    spec: FloatLayerNormSpec, *, gamma: npt.NDArray[np.float32], beta: npt.NDArray[np.float32], isa: str
) -> Kernel:
    """Return the kernel of y = (x - mean) / sqrt(variance + epsilon) * gamma + beta; gamma and beta are (columns,)."""
    size = spec.rows * spec.columns
    assert gamma.shape == beta.shape == (spec.columns,), "a factor and an addend for each column"

    def emit(x: Buffer, factors: Buffer, addends: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            _emit_row(spec, (x, factors, addends, y), B.Bind(row * spec.columns))

    sizes = {"x": size, "gamma": spec.columns, "beta": spec.columns, "y": size}
    func = prim_func([(name, count, "float32") for name, count in sizes.items()], emit)
    return Kernel(name="float.layer_norm", isa=isa, func=func, constants=(gamma, beta))


def _emit_row(spec: FloatLayerNormSpec, buffers: tuple[Buffer, Buffer, Buffer, Buffer], base: Expr) -> None:
    x, factors, addends, y = buffers
    columns = B.float32(float(spec.columns))
    mean = B.Bind(_summed(spec.columns, lambda at, lanes: load(x, base + at, lanes)) / columns)

    def square(at: Expr, lanes: int) -> Expr:
        distance = B.Bind(load(x, base + at, lanes) - splat(mean, lanes))
        return distance * distance

    variance = _summed(spec.columns, square) / columns
    deviation = intrinsic("llvm.sqrt", "float32", variance + B.float32(float(np.float32(spec.epsilon))))
    scale = B.Bind(B.float32(1) / deviation)

    def write(at: Expr, lanes: int) -> None:
        normal = (load(x, base + at, lanes) - splat(mean, lanes)) * splat(scale, lanes)
        store(y, base + at, normal * load(factors, at, lanes) + load(addends, at, lanes), lanes)

    _over(spec.columns, write)


def _over(columns: int, body: Callable[[Expr, int], None]) -> None:
    """Emit body(start, lanes) over the columns of a row: whole vectors, then one by one."""
    vectors, rest = divmod(columns, _LANES)
    if vectors:
        with B.serial(0, vectors) as index:
            body(B.Bind(index * _LANES), _LANES)
    if rest:
        with B.serial(0, rest) as index:
            body(B.Bind(vectors * _LANES + index), 1)


def _summed(columns: int, value: Callable[[Expr, int], Expr]) -> Expr:
    """Emit the sum of value(start, lanes) over a row and return it."""
    lanes = _LANES if columns >= _LANES else 1
    state: Any = B.alloc_buffer((_LANES,), "float32", scope="local")
    store(state, 0, splat(B.float32(0), lanes), lanes)
    _over(columns, lambda at, width: store(state, 0, load(state, 0, width) + value(at, width), width))
    return B.Bind(across_lanes(load(state, 0, lanes), lanes, lambda a, b: a + b))
