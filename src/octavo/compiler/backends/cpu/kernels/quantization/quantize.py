"""Quantize float32 to 8-bit integers, and dequantize back. Oracles: `numerics.quantize` and `numerics.dequantize`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......numerics import INTEGER_RANGE
from ......numerics.affine import TieRounding
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import rounded
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, worthwhile


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeSpec:
    """float32 to `dtype`, over `size` values: saturate(round(x / scale) + zero_point), whose ties go where `ties` says.

    They are `rows` that begin `room` apart, should that be more than they are long, and whose integers lie side by side.
    """

    size: int
    scale: float
    zero_point: int
    dtype: Literal["uint8", "int8", "int16"] = "uint8"
    ties: TieRounding = "half_even"
    threads: int = 1
    rows: int = 1
    room: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DequantizeSpec:
    """`dtype` to float32, over `size` values: float32(q - zero_point) * scale."""

    size: int
    scale: float
    zero_point: int
    dtype: Literal["uint8", "int8", "int16"] = "uint8"
    threads: int = 1


def quantize(spec: QuantizeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = saturate(round(x / scale) + zero_point); infinities saturate, NaN becomes the dtype's minimum."""
    width, room = lanes_of(isa), spec.room

    def emit(x: Buffer, y: Buffer) -> None:
        def row(source: Expr, target: Expr, size: int, threads: int) -> None:
            def one(start: Expr, lanes: int) -> None:
                store(y, target + start, quantized_vector(spec, load(x, source + start, lanes), lanes), lanes)

            for_each_vector(size, width, threads, one)

        if room is None:
            row(0, 0, spec.size, spec.threads)
            return
        size = spec.size // spec.rows
        with chunked(spec.rows, worthwhile(spec.threads, spec.size, spec.rows)) as index:
            row(B.Bind(index * room), B.Bind(index * size), size, 1)

    read = spec.size if room is None else spec.rows * room
    return Kernel(name="quantize", isa=isa, func=prim_func([("x", read, "float32"), ("y", spec.size, spec.dtype)], emit))


def quantized_vector(spec: QuantizeSpec, x: Expr, lanes: int) -> Expr:
    """Return the integers of a float32 vector."""
    qmin, qmax = INTEGER_RANGE[spec.dtype]
    scale = splat(B.float32(float(np.float32(spec.scale))), lanes)
    bounds: Any = {"zero_point": spec.zero_point, "qmin": qmin, "qmax": qmax}
    return rounded(x / scale, **bounds, dtype=spec.dtype, lanes=lanes, ties=spec.ties)


def dequantize(spec: DequantizeSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = float32(q - zero_point) * scale."""
    width = lanes_of(isa)

    def emit(q: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            store(y, start, real_vector(spec, q, start, lanes), lanes)

        for_each_vector(spec.size, width, spec.threads, one)

    return Kernel(name="dequantize", isa=isa, func=prim_func([("q", spec.size, spec.dtype), ("y", spec.size, "float32")], emit))


def real_vector(spec: DequantizeSpec, q: Buffer, start: Expr, lanes: int) -> Expr:
    """Return what a vector of integers stands for, float32."""
    centered = load(q, start, lanes, "int32") - splat(B.int32(spec.zero_point), lanes)
    scale = splat(B.float32(float(np.float32(spec.scale))), lanes)
    return centered.astype(scale.ty) * scale
