"""Product of two int16 activations, batch by batch. Oracle: `numerics.batch_matmul`.

    for each batch, each four rows, each vector of columns:   for each inner index:  acc[row] += (a - a_zero) * (b - b_zero)

Sums have 64 bits; nothing is packed: b is read as it lies, neighbouring columns at a time, once for four rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm.script.ir_builder import tirx as B

from ....composites.matrix_view import MatrixView
from ....numerics.rounding.fixed_point import FixedPointMultiplier
from ....numerics.rounding.requantize import Multiplier
from .broadcast import broadcast_shape, matrix_start
from .fixed_point import clamped_int16, fixed_point_scaled
from .isa import lanes_of
from .rounding import rounded
from .spec import Kernel, Output
from .vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, splat, store, vector_type, worthwhile

_ROWS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16BatchMatmulSpec:
    """int16 a (..., rows, inner) @ int16 b (..., inner, columns) as they lie; the batch axes broadcast.

    `multiplier` is one factor for all: fixed point, or float32 a_scale * b_scale / out_scale.
    """

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_zero_point: int
    b_zero_point: int
    multiplier: Multiplier
    output: Output
    threads: int = 1


def int16_batch_matmul(spec: Int16BatchMatmulSpec, *, isa: str) -> Kernel:
    """Return the kernel; the caller sees to it that sums times a fixed-point factor stay within 64 bits."""
    (*a_batch, rows, inner), (*b_batch, _, columns) = spec.a_shape, spec.b_shape
    batch = broadcast_shape(tuple(a_batch), tuple(b_batch))
    count = math.prod(batch)
    views = [MatrixView.plain(shape) for shape in (spec.a_shape, spec.b_shape)]

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def tile(at: tuple[Expr, Expr, Expr], first: Expr, height: int, column: Expr, lanes: int) -> None:
            acc = B.alloc_buffer((height * lanes,), "int64", scope="local")
            for row in range(height):
                store(acc, row * lanes, splat(B.int64(0), lanes), lanes)
            with B.serial(0, inner) as k:
                right = load(b, at[1] + k * columns + column, lanes, "int64") - splat(B.int64(spec.b_zero_point), lanes)
                right = B.Bind(right)
                for row in range(height):
                    left = a[at[0] + (first + row) * inner + k].astype("int64") - B.int64(spec.a_zero_point)
                    store(acc, row * lanes, load(acc, row * lanes, lanes) + splat(left, lanes) * right, lanes)
            for row in range(height):
                result = _result(spec, load(acc, row * lanes, lanes), lanes)
                store(y, at[2] + (first + row) * columns + column, result, lanes)

        def rows_from(at: tuple[Expr, Expr, Expr], first: Expr, height: int) -> None:
            for_each_vector(columns, lanes_of(isa) // 8, 1, lambda column, lanes: tile(at, first, height, column, lanes))

        operations = count * rows * inner * columns
        with chunked(count, worthwhile(spec.threads, operations, count)) as index:
            starts = [B.Bind(matrix_start(view, index, batch)) for view in views]
            at = (starts[0], starts[1], B.Bind(index * (rows * columns)))
            if rows // _ROWS:
                with B.serial(0, rows // _ROWS) as block:
                    rows_from(at, B.Bind(block * _ROWS), _ROWS)
            if rows % _ROWS:
                rows_from(at, B.int32(rows - rows % _ROWS), rows % _ROWS)

    sizes = [math.prod(spec.a_shape), math.prod(spec.b_shape), count * rows * columns]
    arguments = [(name, size, "int16") for name, size in zip("aby", sizes, strict=True)]
    return Kernel(name="batch_matmul.int16", isa=isa, func=prim_func(arguments, emit))


def _result(spec: Int16BatchMatmulSpec, sums: Expr, lanes: int) -> Expr:
    out = spec.output
    if isinstance(spec.multiplier, FixedPointMultiplier):
        return clamped_int16(fixed_point_scaled(sums, spec.multiplier, lanes), out, lanes)
    real = sums.astype(vector_type("float32", lanes)) * splat(B.float32(float(np.float32(spec.multiplier))), lanes)
    return rounded(real, zero_point=out.zero_point, qmin=out.qmin, qmax=out.qmax, dtype="int16", lanes=lanes)
