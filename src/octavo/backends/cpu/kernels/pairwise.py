"""Sum, difference, product, maximum and minimum of two uint8 tensors that broadcast.

Oracles: `numerics.add`, `mul`, `float_sum` and `maximum`, `minimum`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ....numerics import AddParameters, FloatSumParameters, add_parameters, requantize_multiplier
from .broadcast import Axis, broadcast_shape, for_each_pair
from .float_sum import float_sum
from .isa import lanes_of
from .rounding import requantized
from .spec import Kernel, Output
from .vectors import Buffer, Expr, load, prim_func, splat, store, vector_type


@dataclass(frozen=True, kw_only=True, slots=True)
class PairwiseSpec:
    """uint8 a and uint8 b of shapes that broadcast; "mul" rounds half to even, "add" and "sub" half up, as their oracles do.

    "max" and "min" choose among the integers as they are: scales and zero points are those of the result.
    `float_sum` and `relabelling` are those of AddSpec, for "add" and "sub". With `stored_even` a tie of "mul" becomes an even
    integer as stored.
    """

    kind: Literal["add", "sub", "mul", "max", "min"]
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_scale: float
    a_zero_point: int
    b_scale: float
    b_zero_point: int
    out_scale: float
    output: Output
    float_sum: FloatSumParameters | None = None
    relabelling: int = 0
    stored_even: bool = False
    threads: int = 1


def pairwise(spec: PairwiseSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = a + b, a - b or a * b in real numbers, over the broadcast shape."""
    width = lanes_of(isa)

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def one(a_at: Expr, b_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            if spec.kind in ("max", "min"):
                sides = (
                    _operand(a, a_at, lanes, "uint8", moves=inner.has_a),
                    _operand(b, b_at, lanes, "uint8", moves=inner.has_b),
                )
                store(y, y_at, _chosen(spec, *sides, lanes), lanes)
                return
            a_value = _operand(a, a_at, lanes, moves=inner.has_a)
            b_value = _operand(b, b_at, lanes, moves=inner.has_b)
            store(y, y_at, _result(spec, a_value, b_value, lanes), lanes)

        for_each_pair(spec.a_shape, spec.b_shape, width, spec.threads, one)

    sizes = [math.prod(spec.a_shape), math.prod(spec.b_shape), math.prod(broadcast_shape(spec.a_shape, spec.b_shape))]
    arguments = [(name, size, "uint8") for name, size in zip("aby", sizes, strict=True)]
    return Kernel(name=spec.kind, isa=isa, func=prim_func(arguments, emit))


def _operand(buffer: Buffer, at: Expr, lanes: int, dtype: str = "int32", *, moves: bool) -> Expr:
    return load(buffer, at, lanes, dtype) if moves else splat(buffer[at].astype(dtype), lanes)


def _chosen(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    value = B.max(a, b) if spec.kind == "max" else B.min(a, b)
    low, high = (splat(B.uint8(bound), lanes) for bound in (spec.output.qmin, spec.output.qmax))
    value = B.max(value, low) if spec.output.qmin > 0 else value
    return B.min(value, high) if spec.output.qmax < 255 else value


def _result(spec: PairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    if spec.kind == "mul":
        product = (a - splat(B.int32(spec.a_zero_point), lanes)) * (b - splat(B.int32(spec.b_zero_point), lanes))
        multiplier = float(requantize_multiplier(spec.a_scale, spec.b_scale, spec.out_scale))
        return requantized(product, multiplier, spec.output, lanes, stored_even=spec.stored_even)
    if spec.float_sum is not None:
        return float_sum(spec.float_sum, spec.output, spec.relabelling, a, b, lanes)
    operands = spec.a_scale, spec.a_zero_point, spec.b_scale, spec.b_zero_point
    p = add_parameters(*operands, spec.out_scale, subtract=spec.kind == "sub")
    return _weighted_sum(p, spec.output, a, b, lanes)


def _weighted_sum(p: AddParameters, out: Output, a: Expr, b: Expr, lanes: int) -> Expr:
    def number(value: int) -> Expr:
        return splat(B.int32(value), lanes)

    acc = (number(p.bias) + a * number(p.a_multiplier) + b * number(p.b_multiplier)) >> number(p.shift)
    acc = B.min(B.max(acc, number(out.qmin - out.zero_point)), number(out.qmax - out.zero_point))
    return (acc + number(out.zero_point)).astype(vector_type("uint8", lanes))
