"""Sum, difference, product, maximum and minimum of two tensors of 8 or 16 bits that broadcast.

Oracles: `numerics.add`, `mul`, `float_sum`, `maximum` and `minimum`; of int16 `add_int16`, `mul` by a fixed-point multiplier, and
`float_binary_int16`; in the integers of accelerators `combine_in_integers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics import AddParameters, FloatSumParameters, add_parameters, requantize_multiplier
from ......numerics.quantized.binary import product_multiplier, sum_multipliers
from ......numerics.rounding.fixed_point import FIXED_POINT_ROUNDINGS, FixedPointRounding
from ..language.broadcast import Axis, broadcast_shape, for_each_pair
from ..language.fixed_point import clamped_integer, fixed_point_scaled
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import clamped, requantized, rounded, unfused
from ..language.vectors import Buffer, Expr, load, prim_func, splat, store, vector_type
from .float_sum import float_sum
from .spec import Side


@dataclass(frozen=True, kw_only=True, slots=True)
class PairwiseSpec:
    """a and b of one dtype, which is the result's, over shapes that broadcast.

    Of uint8, "mul" rounds half to even and "add" and "sub" half up, or as `float_sum` says, which with `relabelling` is that of
    AddSpec; with "half_even_stored" a tie of "mul" becomes an even integer as stored. int16 is combined in real numbers, every
    operation in float32, or with "fixed_point" by multipliers and shifts; zero points are then 0. One of `FIXED_POINT_ROUNDINGS`
    combines both widths so.
    "max" and "min" choose among the integers as they are: scales and zero points are those of the result.
    """

    kind: Literal["add", "sub", "mul", "max", "min"]
    a: Side
    b: Side
    out_scale: float
    output: Output
    rounding: str = "half_even"
    float_sum: FloatSumParameters | None = None
    relabelling: int = 0
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """`combined`(spec, a, b, lanes) of operands loaded as `loaded`, in vectors of `fewer` times fewer lanes than those of bytes.

    `suffix` tells the kernels' names from those of bytes.
    """

    combined: Callable[[PairwiseSpec, Expr, Expr, int], Expr]
    loaded: str
    fewer: int = 1
    suffix: str = ""


def pairwise(spec: PairwiseSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = a op b in real numbers, over the broadcast shape."""
    assert spec.a.dtype == spec.b.dtype, "operands are of one dtype"
    method, dtype = _method_of(spec), spec.a.dtype

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def one(a_at: Expr, b_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            a_value = _operand(a, a_at, lanes, method.loaded, moves=inner.has_a)
            b_value = _operand(b, b_at, lanes, method.loaded, moves=inner.has_b)
            store(y, y_at, method.combined(spec, a_value, b_value, lanes), lanes)

        for_each_pair(spec.a.shape, spec.b.shape, lanes_of(isa) // method.fewer, spec.threads, one)

    shapes = (spec.a.shape, spec.b.shape, broadcast_shape(spec.a.shape, spec.b.shape))
    arguments = [(name, math.prod(shape), dtype) for name, shape in zip("aby", shapes, strict=True)]
    return Kernel(name=f"{spec.kind}{method.suffix}", isa=isa, func=prim_func(arguments, emit))


def _method_of(spec: PairwiseSpec) -> _Method:
    is_extreme = spec.kind in ("max", "min")
    if spec.rounding in FIXED_POINT_ROUNDINGS and not is_extreme:
        return _Method(combined=_fixed_point_result, loaded="int64", fewer=4, suffix=".fixed_point")
    if spec.a.dtype == "uint8":
        return _Method(combined=_extreme, loaded="uint8") if is_extreme else _Method(combined=_byte_result, loaded="int32")
    if spec.rounding == "fixed_point":
        return _Method(combined=_fixed_point_result, loaded="int64", fewer=4, suffix=".int16")
    return _Method(combined=_extreme if is_extreme else _float_result, loaded="int16", fewer=2, suffix=".int16.float32")


def _operand(buffer: Buffer, at: Expr, lanes: int, dtype: str, *, moves: bool) -> Expr:
    return load(buffer, at, lanes, dtype) if moves else splat(buffer[at].astype(dtype), lanes)


def _extreme(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    return clamped(B.max(a, b) if spec.kind == "max" else B.min(a, b), spec.output, spec.a.dtype, lanes)


def _byte_result(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    if spec.kind == "mul":
        product = (a - splat(B.int32(spec.a.zero_point), lanes)) * (b - splat(B.int32(spec.b.zero_point), lanes))
        multiplier = float(requantize_multiplier(spec.a.scale, spec.b.scale, spec.out_scale))
        return requantized(product, multiplier, spec.output, lanes, stored_even=spec.rounding == "half_even_stored")
    if spec.float_sum is not None:
        return float_sum(spec.float_sum, spec.output, spec.relabelling, a, b, lanes)
    operands = spec.a.scale, spec.a.zero_point, spec.b.scale, spec.b.zero_point
    p = add_parameters(*operands, spec.out_scale, subtract=spec.kind == "sub")
    return _weighted_sum(p, spec.output, a, b, lanes)


def _weighted_sum(p: AddParameters, out: Output, a: Expr, b: Expr, lanes: int) -> Expr:
    def number(value: int) -> Expr:
        return splat(B.int32(value), lanes)

    acc = (number(p.bias) + a * number(p.a_multiplier) + b * number(p.b_multiplier)) >> number(p.shift)
    acc = B.min(B.max(acc, number(out.qmin - out.zero_point)), number(out.qmax - out.zero_point))
    return (acc + number(out.zero_point)).astype(vector_type("uint8", lanes))


def _fixed_point_result(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    scales, dtype = (spec.a.scale, spec.b.scale, spec.out_scale), spec.a.dtype
    rounding: FixedPointRounding = FIXED_POINT_ROUNDINGS.get(spec.rounding, "twice_away")
    a, b = (
        value - splat(B.int64(side.zero_point), lanes) if side.zero_point else value for value, side in ((a, spec.a), (b, spec.b))
    )
    if spec.kind == "mul":
        return clamped_integer(fixed_point_scaled(a * b, product_multiplier(*scales, rounding), lanes), spec.output, lanes, dtype)
    factors = sum_multipliers(*scales, dtype=dtype, rounding=rounding)
    left = splat(B.int64(factors.digits), lanes)
    first, second = fixed_point_scaled(a << left, factors.a, lanes), fixed_point_scaled(b << left, factors.b, lanes)
    total = fixed_point_scaled(first - second if spec.kind == "sub" else first + second, factors.y, lanes)
    return clamped_integer(total, spec.output, lanes, dtype)


def _float_result(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    first, second = _real(a, spec.a, lanes), _real(b, spec.b, lanes)
    if spec.kind == "mul":
        value = first * second
    else:
        first, second = unfused(first, lanes), unfused(second, lanes)
        value = first - second if spec.kind == "sub" else first + second
    steps = value / splat(B.float32(float(np.float32(spec.out_scale))), lanes)
    out = spec.output
    return rounded(steps, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="int16", lanes=lanes)


def _real(integers: Expr, side: Side, lanes: int) -> Expr:
    centered = integers.astype(vector_type("int32", lanes)) - splat(B.int32(side.zero_point), lanes)
    return centered.astype(vector_type("float32", lanes)) * splat(B.float32(float(np.float32(side.scale))), lanes)
