"""Sums, differences, products and extremes of two int16 tensors, combined in float32. Oracle: `numerics.int16_float`."""

from __future__ import annotations

import math

import numpy as np
from tvm.script.ir_builder import tirx as B

from .broadcast import Axis, broadcast_shape, for_each_pair
from .int16_spec import Int16FloatPairwiseSpec
from .isa import lanes_of
from .rounding import rounded, unfused
from .spec import Kernel
from .vectors import Buffer, Expr, load, prim_func, splat, store, vector_type


def int16_float_pairwise(spec: Int16FloatPairwiseSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = a op b over the broadcast shape."""
    combined = _extreme if spec.kind in ("max", "min") else _real_result

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def one(a_at: Expr, b_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            a_value = load(a, a_at, lanes) if inner.has_a else splat(a[a_at], lanes)
            b_value = load(b, b_at, lanes) if inner.has_b else splat(b[b_at], lanes)
            store(y, y_at, combined(spec, a_value, b_value, lanes), lanes)

        for_each_pair(spec.a_shape, spec.b_shape, lanes_of(isa) // 2, spec.threads, one)

    sizes = [math.prod(spec.a_shape), math.prod(spec.b_shape), math.prod(broadcast_shape(spec.a_shape, spec.b_shape))]
    arguments = [(name, size, "int16") for name, size in zip("aby", sizes, strict=True)]
    return Kernel(name=f"{spec.kind}.int16.float32", isa=isa, func=prim_func(arguments, emit))


def _extreme(spec: Int16FloatPairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    low, high = (splat(B.int16(bound), lanes) for bound in (spec.output.qmin, spec.output.qmax))
    return B.min(B.max(B.max(a, b) if spec.kind == "max" else B.min(a, b), low), high)


def _real_result(spec: Int16FloatPairwiseSpec, a: Expr, b: Expr, lanes: int) -> Expr:
    first = _real(a, spec.a_scale, spec.a_zero_point, lanes)
    second = _real(b, spec.b_scale, spec.b_zero_point, lanes)
    if spec.kind == "mul":
        value = first * second
    else:
        first, second = unfused(first, lanes), unfused(second, lanes)
        value = first - second if spec.kind == "sub" else first + second
    steps = value / splat(B.float32(float(np.float32(spec.out_scale))), lanes)
    out = spec.output
    return rounded(steps, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="int16", lanes=lanes)


def _real(integers: Expr, scale: float, zero_point: int, lanes: int) -> Expr:
    centered = integers.astype(vector_type("int32", lanes)) - splat(B.int32(zero_point), lanes)
    return centered.astype(vector_type("float32", lanes)) * splat(B.float32(float(np.float32(scale))), lanes)
