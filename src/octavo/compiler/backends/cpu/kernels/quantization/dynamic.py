"""Quantization at run time, in two kernels: parameters of each row or column, then its integers. Oracles: `numerics.dynamic`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......numerics.dynamic import DynamicStyle, TorchStyle, style_bounds
from ......runtime.size import is_open
from ..language.float_result import input_scale
from ..language.kernel import Kernel
from ..language.partial import has_masks, load_first, store_first
from ..language.rounding import integer_of, run_time_rounded
from ..language.vectors import (
    Buffer,
    Expr,
    across_lanes,
    chunked,
    load,
    prim_func,
    splat,
    store,
    vector_type,
    where_at_least,
    where_left,
    worthwhile,
)

_LANES = 16
MAGNITUDE_BITS, INFINITY_BITS, NAN_BITS = 0x7FFFFFFF, 0x7F800000, 0x7FC00000
"""As integers, the bits of magnitudes of finite numbers lie below those of infinity, and NaN's above. A comparison of floats
would lose NaN, in one order of its operands or the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicSpec:
    """float32 [rows, size] of which each row gets a scale and a zero point of its own."""

    rows: int
    size: int
    style: DynamicStyle
    threads: int = 1


def dynamic_parameters(spec: DynamicSpec, *, isa: str) -> Kernel:
    """Return the kernel from x to float32 [rows, 2]: scale, and zero point of the uint8 integers."""

    def emit(x: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, spec.rows * spec.size, spec.rows)) as row:
            scale, zero_point = parameters_of(*range_of(x, row * spec.size, spec.size, isa), spec.style)
            B.buffer_store(y, scale, [2 * row])
            B.buffer_store(y, zero_point, [2 * row + 1])

    arguments = [("x", spec.rows * spec.size, "float32"), ("y", 2 * spec.rows, "float32")]
    return Kernel(name="quantization parameters", isa=isa, func=prim_func(arguments, emit))


def dynamic_quantize(spec: DynamicSpec, *, isa: str) -> Kernel:
    """Return the kernel from x and its parameters to uint8 [rows, size]."""

    def emit(x: Buffer, parameters: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, spec.rows * spec.size, spec.rows)) as row:
            scale = B.Bind(input_scale(parameters, row))
            zero_point = B.Bind(parameters[2 * row + 1])
            factor = B.Bind(B.float32(1.0) / scale)

            def result(value: Expr, lanes: int) -> Expr:
                value = value / splat(scale, lanes) if spec.style == "onnx" else value * splat(factor, lanes)
                return run_time_rounded(value, splat(zero_point, lanes), lanes, style_bounds(spec.style))

            vectors, rest = divmod(spec.size, _LANES)
            if is_open(vectors) or vectors:
                with B.serial(0, vectors) as index:
                    at = row * spec.size + index * _LANES
                    store(y, at, result(load(x, at, _LANES), _LANES), _LANES)

            def last() -> None:
                at = B.Bind(row * spec.size + vectors * _LANES)
                if is_open(rest) and has_masks(isa, "uint8"):
                    values: Buffer = B.alloc_buffer((_LANES,), "float32", scope="local")
                    load_first(values, 0, x, at, _LANES, rest, B.float32(0), isa=isa)
                    store_first(y, at, result(load(values, 0, _LANES), _LANES), _LANES, rest, "uint8", isa=isa)
                    return
                with B.serial(0, rest) as index:
                    store(y, at + index, result(load(x, at + index, 1), 1), 1)

            where_left(rest, last)

    size = spec.rows * spec.size
    arguments = [("x", size, "float32"), ("parameters", 2 * spec.rows, "float32"), ("y", size, "uint8")]
    return Kernel(name="quantize at run time", isa=isa, func=prim_func(arguments, emit))


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnsSpec:
    """float32 [batch, size, columns] of which each column of each matrix gets a scale and a zero point of its own."""

    batch: int
    size: int
    columns: int
    style: TorchStyle
    threads: int = 1

    @property
    def elements(self) -> int:
        """Of the tensor."""
        return self.batch * self.size * self.columns


def column_parameters(spec: ColumnsSpec, *, isa: str) -> Kernel:
    """Return the kernel from x to float32 [batch, 2, columns]: scales, and zero points of the uint8 integers."""

    def emit(x: Buffer, y: Buffer) -> None:
        def some(matrix: Expr, column: Expr, lanes: int) -> None:
            ends = _nothing(lanes)
            with B.serial(0, spec.size) as row:
                _extend(ends, load(x, (matrix * spec.size + row) * spec.columns + column, lanes), lanes)
            low, high, largest = (B.Bind(load(end, 0, lanes)) for end in ends)
            scale, zero_point = _finite(*_torch(low, high, spec.style, lanes), largest, lanes)
            at = B.Bind(matrix * (2 * spec.columns) + column)
            store(y, at, scale, lanes)
            store(y, at + spec.columns, zero_point, lanes)

        _for_columns(spec, some)

    arguments = [("x", spec.elements, "float32"), ("y", 2 * spec.batch * spec.columns, "float32")]
    return Kernel(name="quantization parameters.columns", isa=isa, func=prim_func(arguments, emit))


def column_quantize(spec: ColumnsSpec, *, isa: str) -> Kernel:
    """Return the kernel from x and its parameters to uint8 of x's shape."""

    def emit(x: Buffer, parameters: Buffer, y: Buffer) -> None:
        def some(matrix: Expr, column: Expr, lanes: int) -> None:
            first = B.Bind(matrix * (2 * spec.columns) + column)
            factor = B.Bind(splat(B.float32(1), lanes) / load(parameters, first, lanes))
            zero_point = B.Bind(load(parameters, first + spec.columns, lanes))
            with B.serial(0, spec.size) as row:
                at = B.Bind((matrix * spec.size + row) * spec.columns + column)
                value = load(x, at, lanes) * factor
                store(y, at, run_time_rounded(value, zero_point, lanes, style_bounds(spec.style)), lanes)

        _for_columns(spec, some)

    size = spec.elements
    arguments = [("x", size, "float32"), ("parameters", 2 * spec.batch * spec.columns, "float32"), ("y", size, "uint8")]
    return Kernel(name="quantize at run time.columns", isa=isa, func=prim_func(arguments, emit))


def _for_columns(spec: ColumnsSpec, body: Callable[[Expr, Expr, int], None]) -> None:
    """Emit body(matrix, column, lanes) for neighbouring columns of each matrix; the last ones overlap those before them."""
    columns = spec.columns
    with chunked(spec.batch, worthwhile(spec.threads, spec.elements, spec.batch)) as matrix:

        def blocks(lanes: int) -> None:
            with B.serial(0, columns // lanes) as block:
                body(matrix, B.Bind(block * lanes), lanes)
            where_left(columns % lanes, lambda: body(matrix, B.Bind(B.int32(0) + (columns - lanes)), lanes))

        where_at_least(columns, _LANES, lambda: blocks(_LANES), lambda: blocks(1))


def _nothing(lanes: int) -> list[Buffer]:
    """Emit the least and greatest of 0 alone, and the bits of the largest magnitude."""
    ends = [B.alloc_buffer((lanes,), dtype, scope="local") for dtype in ("float32", "float32", "int32")]
    for end, nothing in zip(ends, (B.float32(0), B.float32(0), B.int32(0)), strict=True):
        store(end, 0, splat(nothing, lanes), lanes)
    return ends


def _extend(ends: list[Buffer], value: Expr, lanes: int) -> None:
    value = B.Bind(value)
    magnitude = B.reinterpret(vector_type("int32", lanes), value) & splat(B.int32(MAGNITUDE_BITS), lanes)
    for end, choose, other in zip(ends, (B.min, B.max, B.max), (value, value, magnitude), strict=True):
        store(end, 0, choose(load(end, 0, lanes), other), lanes)


def _finite(scale: Expr, zero_point: Expr, largest: Expr, lanes: int) -> tuple[Expr, Expr]:
    """Return a scale and its zero point as float32; NaN and 0 where a value or the scale is not finite."""
    bits = B.reinterpret(vector_type("int32", lanes), scale)  # a scale is positive, or NaN
    # Not bound: TVM cannot bind a vector of booleans.
    is_finite = B.Bind(B.max(largest, bits)) < splat(B.int32(INFINITY_BITS), lanes)
    nan = B.reinterpret(vector_type("float32", lanes), splat(B.int32(NAN_BITS), lanes))
    zero_point = zero_point.astype(vector_type("float32", lanes))
    return B.Select(is_finite, scale, nan), B.Select(is_finite, zero_point, splat(B.float32(0), lanes))


def range_of(x: Buffer, start: Expr, size: int, isa: str) -> tuple[Expr, Expr, Expr]:
    """Emit the least and greatest of 0 and `size` values from `start` on, and the bits of the largest magnitude."""
    found = _nothing(1)

    def by_lanes(lanes: int) -> list[Buffer]:
        ends = found if lanes == 1 else _nothing(lanes)
        vectors, rest = divmod(size, lanes)
        with B.serial(0, vectors) as index:
            _extend(ends, load(x, start + index * lanes, lanes), lanes)

        def last() -> None:
            if not by_masks:  # the last vector overlaps its neighbour, which changes no extreme
                _extend(ends, load(x, start + (size - lanes), lanes), lanes)
                return
            values: Buffer = B.alloc_buffer((lanes,), "float32", scope="local")
            load_first(values, 0, x, start + vectors * lanes, lanes, rest, B.float32(0), isa=isa)
            _extend(ends, load(values, 0, lanes), lanes)

        where_left(rest, last)
        return ends

    def by_vectors() -> None:
        for choose, end, one in zip((B.min, B.max, B.max), by_lanes(_LANES), found, strict=True):
            B.buffer_store(one, across_lanes(load(end, 0, _LANES), _LANES, choose), [0])

    def one_by_one() -> None:
        by_lanes(1)

    by_masks = is_open(size) and has_masks(isa, "float32")
    if by_masks:
        by_vectors()
    else:
        where_at_least(size, _LANES, by_vectors, one_by_one)
    low, high, largest = (B.Bind(one[0]) for one in found)
    return low, high, largest


def parameters_of(low: Expr, high: Expr, largest: Expr, style: DynamicStyle) -> tuple[Expr, Expr]:
    """Return scale and zero point, float32, for a row between `low` and `high`; `largest` are the bits of its largest magnitude.

    Both ends include 0. They are NaN and 0 where a value or the scale is not finite.
    """
    return _finite(*_parameters(low, high, style), largest, 1)


def _parameters(low: Expr, high: Expr, style: DynamicStyle) -> tuple[Expr, Expr]:
    if isinstance(style, TorchStyle):
        return _torch(low, high, style, 1)
    return _litert(low, high) if style == "litert" else _onnx(low, high)


def _torch(low: Expr, high: Expr, style: TorchStyle, lanes: int) -> tuple[Expr, Expr]:
    qmin, qmax = (splat(B.int32(bound), lanes) for bound in style.bounds)
    width, least = style.bounds[1] - style.bounds[0], splat(B.float32(float(np.float32(style.eps))), lanes)
    if style.is_symmetric:
        scale = B.max(splat(B.float32(0), lanes) - low, high) / splat(B.float32(width / 2), lanes)
        return B.Bind(B.max(scale, least)), splat(B.int32(128), lanes)
    scale = B.Bind(B.max((high - low) / splat(B.float32(width), lanes), least))
    zero_point = qmin - integer_of(low / scale, lanes)
    return scale, B.Bind(B.min(B.max(zero_point, qmin), qmax))


def _onnx(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    one, zero = B.float32(1), B.float32(0)
    scale = B.Bind((high - low) / B.float32(255))
    scale = B.Bind(B.Select(scale == zero, one, scale))
    value = B.min(B.max((zero - low) / scale, zero), B.float32(255))
    return scale, B.Bind(integer_of(value, 1))


def _litert(low: Expr, high: Expr) -> tuple[Expr, Expr]:
    span = B.Bind(high - low)
    factor = B.Bind(B.Select(span == B.float32(0), B.float32(1), B.float32(255) / span))
    # Bounds beyond what the products reach: between product and sum they keep LLVM from a fused multiply-add.
    below = B.Bind(B.min(B.max(low * factor, B.float32(-256)), B.float32(0)))
    above = B.Bind(B.min(B.max(high * factor, B.float32(0)), B.float32(256)))
    errs_below = (B.float32(-128) + below) + (B.float32(127) + above) > B.float32(0)
    zero = B.Select(errs_below, B.float32(-128) - below, B.float32(127) - above)
    zero = B.min(B.max(zero, B.float32(-128)), B.float32(127))
    return B.Bind(B.float32(1) / factor), B.Bind(integer_of(zero, 1) + B.int32(128))
