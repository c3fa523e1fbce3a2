"""Product of two int16 activations, batch by batch. Oracle: `numerics.batch_matmul`.

    for each batch, each four rows, each vector of columns:   for each inner index:  acc[row] += (a - a_zero) * (b - b_zero)

Sums have 64 bits; nothing is packed: b is read as it lies, neighbouring columns at a time, once for four rows.
"""

from __future__ import annotations

import math

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics import BATCH_MATMUL_MAX_INNER
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......runtime.shapes import limits
from ..language.broadcast import broadcast_shape, matrix_start
from ..language.fixed_point import accumulated, clamped_integer, fixed_point_scaled
from ..language.isa import lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, for_tiles, load, prim_func, splat, store, worthwhile
from .spec import BatchMatmulSpec

_ROWS = 4


def wide_batch_matmul(spec: BatchMatmulSpec, *, isa: str) -> Kernel:
    """Return the kernel; the caller sees to it that sums times a fixed-point factor stay within 64 bits."""
    assert all(view.axes == tuple(range(len(view.shape))) for view in (spec.a, spec.b, spec.y)), "it reads tensors as they lie"
    rows, inner, columns = spec.rows, spec.inner, spec.columns
    batch = broadcast_shape(spec.a.shape[:-2], spec.b.shape[:-2])
    count = math.prod(batch)

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
            starts = [B.Bind(matrix_start(view, index, batch)) for view in (spec.a, spec.b)]
            at = (starts[0], starts[1], B.Bind(index * (rows * columns)))
            for_tiles(rows, _ROWS, lambda first, height: rows_from(at, first, height))

    sizes = [spec.a.size, spec.b.size, count * rows * columns]
    arguments = [(name, size, "int16") for name, size in zip("aby", sizes, strict=True)]
    return Kernel(
        name="batch_matmul.int16", isa=isa, func=prim_func(arguments, emit), limits=limits((inner, BATCH_MATMUL_MAX_INNER))
    )


def _result(spec: BatchMatmulSpec, sums: Expr, lanes: int) -> Expr:
    assert isinstance(spec.output, Output), "16-bit sums end in integers"
    sums = accumulated(sums, spec.narrow, lanes)
    if isinstance(spec.multiplier, FixedPointMultiplier):
        return clamped_integer(fixed_point_scaled(sums, spec.multiplier, lanes), spec.output, lanes)
    return requantized(sums, spec.multiplier, spec.output, lanes, dtype="int16")
