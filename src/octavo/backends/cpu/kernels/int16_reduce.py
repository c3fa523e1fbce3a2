"""Sums and extremes of int16 over one run of axes. Oracles: `numerics.reduce_sum` and `numerics.reduce_extreme`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as B

from ....numerics.limits import INT16_MAX_COUNT
from .isa import lanes_of
from .rounding import rounded
from .spec import Kernel, Output
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16ReduceSpec:
    """int16 [outer, count, inner] to [outer, inner].

    "sum" becomes clamp(rint(float32(sum - count * input_zero_point) * multiplier) + zero_point); "max" and "min" are clamped to
    the output's bounds.
    """

    kind: Literal["sum", "max", "min"]
    outer: int
    count: int
    inner: int
    output: Output
    multiplier: float = 1.0
    input_zero_point: int = 0
    threads: int = 1


def int16_reduce(spec: Int16ReduceSpec, *, isa: str) -> Kernel:
    """Return the kernel; threads share the outer axis."""
    assert spec.kind != "sum" or spec.count <= INT16_MAX_COUNT // 2, "the rule sees to it"
    dtype = "int32" if spec.kind == "sum" else "int16"
    start_value = {"sum": 0, "max": -32768, "min": 32767}[spec.kind]
    size = spec.outer * spec.count * spec.inner

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(spec.outer, worthwhile(spec.threads, size, spec.outer)) as outer:

            def one(start: Expr, lanes: int) -> None:
                acc: Any = B.alloc_buffer((lanes,), dtype, scope="local")
                store(acc, 0, splat(tvm.tirx.const(start_value, dtype), lanes), lanes)
                with B.serial(0, spec.count) as index:
                    value = load(x, (outer * spec.count + index) * spec.inner + start, lanes, dtype)
                    store(acc, 0, _combined(spec, load(acc, 0, lanes), value), lanes)
                store(y, outer * spec.inner + start, _result(spec, load(acc, 0, lanes), lanes), lanes)

            for_each_vector(spec.inner, lanes_of(isa) // 2, 1, one)

    arguments = [("x", size, "int16"), ("y", spec.outer * spec.inner, "int16")]
    return Kernel(name=f"reduce_{spec.kind}.int16", isa=isa, func=prim_func(arguments, emit))


def _combined(spec: Int16ReduceSpec, a: Expr, b: Expr) -> Expr:
    if spec.kind == "sum":
        return a + b
    return B.max(a, b) if spec.kind == "max" else B.min(a, b)


def _result(spec: Int16ReduceSpec, acc: Expr, lanes: int) -> Expr:
    out = spec.output
    if spec.kind != "sum":
        low, high = (splat(B.int16(bound), lanes) for bound in (out.qmin, out.qmax))
        return B.min(B.max(acc, low), high)
    centered = acc - splat(B.int32(spec.count * spec.input_zero_point), lanes)
    factor = splat(B.float32(float(np.float32(spec.multiplier))), lanes)
    real = centered.astype(vector_type("float32", lanes)) * factor
    return rounded(real, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="int16", lanes=lanes)
