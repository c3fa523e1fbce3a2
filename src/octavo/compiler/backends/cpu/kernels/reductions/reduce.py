"""Sum, maximum, minimum of uint8 or int16 over one run of axes, and the places of the extremes of uint8.

Oracles: `numerics.reduce_sum`, `reduce_extreme` and `arg_reduce`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import tvm
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.limits import INT16_MAX_COUNT, REDUCE_MAX_EXTENT
from ......numerics.quant_params import INTEGER_RANGE
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......runtime.shapes import limits, surpasses
from ......runtime.size import is_open
from ..language.fixed_point import clamped_integer, fixed_point_scaled
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import clamped, requantized
from ..language.vectors import (
    Buffer,
    Expr,
    chunked,
    float_of,
    for_each_vector,
    load,
    prim_func,
    splat,
    store,
    vector_type,
    worthwhile,
)

_PLACES = REDUCE_MAX_EXTENT - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ReduceSpec:
    """`dtype` [outer, extent, inner] to [outer, inner].

    "sum" becomes clamp(rint(float32(sum - extent * input_zero_point) * multiplier) + zero_point), or of int16 its product with a
    fixed-point multiplier; "mean" is a sum whose multiplier is divided by the extent; "max" and "min" are clamped to the output's
    bounds. "argmax" and "argmin" of uint8, to which `output` means nothing, give the first place of the extreme in `index_dtype`.
    """

    kind: Literal["sum", "mean", "max", "min", "argmax", "argmin"]
    outer: int
    extent: int
    inner: int
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    multiplier: float | FixedPointMultiplier = 1.0
    input_zero_point: int = 0
    stored_even: bool = False
    index_dtype: Literal["int32", "int64"] = "int64"
    threads: int = 1

    @property
    def out_dtype(self) -> str:
        """Dtype of the result."""
        return self.index_dtype if self.kind in ("argmax", "argmin") else self.dtype


def reduce(spec: ReduceSpec, *, isa: str) -> Kernel:
    """Return the kernel; threads share the outer axis, or the inner one where there is no outer."""
    is_wide, is_fixed = spec.dtype == "int16", isinstance(spec.multiplier, FixedPointMultiplier)
    most = REDUCE_MAX_EXTENT
    if is_wide:
        most = most if spec.kind in ("max", "min") else INT16_MAX_COUNT // (1 if is_fixed else 2)
        assert not spec.kind.startswith("arg"), "places are those of bytes"
    assert spec.extent != 0, "the rule sees to it"
    assert not surpasses(spec.extent, most), "the rule sees to it"
    size = spec.outer * spec.extent * spec.inner
    width = lanes_of(isa) // (4 if is_fixed else 2 if is_wide else 1)

    def emit(x: Buffer, y: Buffer) -> None:
        if spec.outer == 1 and spec.inner != 1:
            for_each_vector(spec.inner, width, spec.threads, lambda at, lanes: _column(spec, x, y, 0, at, lanes))
            return
        with chunked(spec.outer, worthwhile(spec.threads, size, spec.outer)) as row:
            if spec.inner == 1 and not is_wide:
                _row(spec, x, y, row, width)
            else:
                for_each_vector(spec.inner, width, 1, lambda at, lanes: _column(spec, x, y, row, at, lanes))

    arguments = [("x", size, spec.dtype), ("y", spec.outer * spec.inner, spec.out_dtype)]
    name = f"reduce_{'sum' if spec.kind == 'mean' else spec.kind}{'.int16' if is_wide else ''}"
    return Kernel(name=name, isa=isa, func=prim_func(arguments, emit), limits=limits((spec.extent, most)))


def _column(spec: ReduceSpec, x: Buffer, y: Buffer, row: Expr, at: Expr, lanes: int) -> None:
    """Emit `lanes` neighbours of the result, over vectors `inner` apart."""
    acc = _accumulator(spec, lanes)
    with B.serial(0, spec.extent) as place:
        value = load(x, (row * spec.extent + place) * spec.inner + at, lanes)
        store(acc, 0, _combined(spec, load(acc, 0, lanes), _term(spec, value, splat(place, lanes), lanes)), lanes)
    store(y, row * spec.inner + at, _result(spec, load(acc, 0, lanes), lanes), lanes)


def _row(spec: ReduceSpec, x: Buffer, y: Buffer, row: Expr, width: int) -> None:
    """Emit one value of the result, over neighbouring bytes."""
    vectors, rest = divmod(spec.extent, width)
    base = row * spec.extent
    total = _accumulator(spec, 1)
    if is_open(vectors) or vectors:
        acc = _accumulator(spec, width)
        with B.serial(0, vectors) as index:
            term = _term(spec, load(x, base + index * width, width), B.ramp(index * width, 1, width), width)
            store(acc, 0, _combined(spec, load(acc, 0, width), term), width)
        B.buffer_store(total, _across(spec, load(acc, 0, width), width), [0])
    if is_open(rest) or rest:
        with B.serial(vectors * width, spec.extent) as place:
            B.buffer_store(total, _combined(spec, total[0], _term(spec, x[base + place], place, 1)), [0])
    B.buffer_store(y, _result(spec, total[0], 1), [row])


def _acc_dtype(spec: ReduceSpec) -> str:
    return spec.dtype if spec.kind in ("max", "min") else "int32"


def _accumulator(spec: ReduceSpec, lanes: int) -> Any:
    dtype = _acc_dtype(spec)
    acc: Any = B.alloc_buffer((lanes,), dtype, scope="local")
    low, high = INTEGER_RANGE[spec.dtype]
    start = {"max": low, "min": high}.get(spec.kind, 0)
    store(acc, 0, splat(tvm.tirx.const(start, dtype), lanes), lanes)
    return acc


def _term(spec: ReduceSpec, value: Expr, place: Expr, lanes: int) -> Expr:
    """Return what an element adds. Of two places with one value the first has the larger term."""
    if spec.kind in ("max", "min"):
        return value
    wide = value.astype("int32" if lanes == 1 else f"int32x{lanes}")
    if spec.kind in ("sum", "mean"):
        return wide
    order = wide if spec.kind == "argmax" else splat(B.int32(255), lanes) - wide
    return order * splat(B.int32(REDUCE_MAX_EXTENT), lanes) + (splat(B.int32(_PLACES), lanes) - place)


def _combined(spec: ReduceSpec, a: Expr, b: Expr) -> Expr:
    if spec.kind in ("sum", "mean"):
        return a + b
    return B.min(a, b) if spec.kind == "min" else B.max(a, b)


def _across(spec: ReduceSpec, value: Expr, lanes: int) -> Expr:
    """Return all lanes as one value."""
    how = {"sum": "add", "mean": "add", "max": "umax", "min": "umin"}.get(spec.kind, "smax")
    dtype = _acc_dtype(spec)
    identifier = B.llvm_lookup_intrinsic_id(f"llvm.vector.reduce.{how}.v{lanes}{'i8' if dtype == 'uint8' else 'i32'}")
    return B.call_llvm_pure_intrin(identifier, value, dtype=dtype)


def _zero(spec: ReduceSpec, lanes: int) -> Expr:
    """Return what a sum of zero points is."""
    total = spec.extent * spec.input_zero_point
    return splat(B.int32(0) + total if is_open(total) else B.int32(total), lanes)


def _factor(spec: ReduceSpec, multiplier: float, lanes: int) -> float | Expr:
    if spec.kind == "sum":
        return multiplier
    if is_open(spec.extent):
        return splat(B.Bind(B.float32(multiplier) / float_of(spec.extent)), lanes)
    return float(np.float32(multiplier) / np.float32(spec.extent))


def _result(spec: ReduceSpec, acc: Expr, lanes: int) -> Expr:
    out = spec.output
    if spec.kind in ("max", "min"):
        return clamped(acc, out, spec.dtype, lanes)
    if isinstance(spec.multiplier, FixedPointMultiplier):
        centered = acc - _zero(spec, lanes) if spec.input_zero_point else acc
        value = fixed_point_scaled(centered.astype(vector_type("int64", lanes)), spec.multiplier, lanes)
        return clamped_integer(value, out, lanes, spec.dtype)
    if spec.kind in ("sum", "mean"):
        multiplier = _factor(spec, float(spec.multiplier), lanes)
        return requantized(acc - _zero(spec, lanes), multiplier, out, lanes, stored_even=spec.stored_even, dtype=spec.dtype)
    place = splat(B.int32(_PLACES), lanes) - (acc & splat(B.int32(_PLACES), lanes))
    return place.astype(spec.index_dtype if lanes == 1 else f"{spec.index_dtype}x{lanes}")
