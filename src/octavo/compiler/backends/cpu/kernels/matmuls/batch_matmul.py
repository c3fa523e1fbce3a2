"""Product of two activations of 8 or 16 bits, batch by batch. Oracle: `numerics.batch_matmul`.

int16 is the work of wide_batch_matmul.py, in sums of 64 bits. Of uint8, with VNNI it is the tiled product of
x86_int8_batch_matmul.py, which reads and writes through strides, and x86_row_batch_matmul.py. Elsewhere, and for sums too
long for these, in vectors of columns, of matrices as they lie:

    for each batch, each four rows, each 16 columns:   for each inner index:  acc[row] += (a - a_zero) * (b - b_zero)

Nothing is packed: b is read as it lies, 16 neighbouring columns at a time, once for four rows. Zero points of rows and columns
that were quantized at run time are read there; oracle: `numerics.quantized.matmul.row_batch_matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput, Output, SumOutput
from ......numerics import BATCH_MATMUL_MAX_INNER
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......runtime.shapes import limits, surpasses
from ......runtime.size import is_open
from ..language.broadcast import broadcast_shape
from ..language.float_result import float_result
from ..language.isa import AVX512_VNNI
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, chunked, for_open_tiles, for_tiles, kept, load, prim_func, splat, store, worthwhile
from .spec import BatchMatmulSpec
from .wide_batch_matmul import wide_batch_matmul
from .x86_int8_batch_matmul import MAX_INNER, Int8Product
from .x86_row_batch_matmul import RowInt8Product

_LANES = 16
_ROWS = 4
_DTYPES = {Output: "uint8", FloatOutput: "float32", SumOutput: "int32"}


def takes_views(inner: int, *, dtype: str = "uint8", isa: str) -> bool:
    """Return whether the kernel reads and writes permuted tensors where they lie; else each view must be a plain one.

    That of rows quantized at run time must be plain everywhere.
    """
    return dtype == "uint8" and isa == AVX512_VNNI and not surpasses(inner, MAX_INNER)


def batch_matmul(spec: BatchMatmulSpec, *, isa: str) -> Kernel:
    """Return the kernel; the caller sees to it that inner is at most `numerics.BATCH_MATMUL_MAX_INNER` where it is known."""
    if spec.dtype == "int16":
        return wide_batch_matmul(spec, isa=isa)
    dtypes = ("uint8", "uint8", _DTYPES[type(spec.output)])
    views = (spec.a, spec.b, spec.y)
    arguments = [(name, view.size, dtype) for name, view, dtype in zip("aby", views, dtypes, strict=True)]
    is_tiled = takes_views(spec.inner, isa=isa)
    most = limits((spec.inner, MAX_INNER if is_tiled else BATCH_MATMUL_MAX_INNER))
    if spec.by_row or not is_tiled:
        assert all(view.axes == tuple(range(len(view.shape))) for view in views), "this kernel reads tensors as they lie"
    if spec.by_row:
        sizes = (("a_parameters", 2 * (spec.a.size // spec.inner)), ("b_parameters", 2 * (spec.b.size // spec.inner)))
        given = [(name, size, "float32") for name, size in sizes]
        arguments = [arguments[0], given[0], arguments[1], given[1], arguments[2]]
        if not is_tiled:
            return Kernel(name="batch_matmul.rows", isa=isa, func=prim_func(arguments, _plain(spec)), limits=most)
        assert isinstance(spec.output, FloatOutput), "its scale is known at run time alone"
        by_row = RowInt8Product(*views, output=spec.output, threads=spec.threads)
        func = prim_func(arguments, by_row.emit_with_parameters)
        return Kernel(name="batch_matmul.rows.tiled", isa=isa, func=func, limits=most)
    if not is_tiled:
        return Kernel(name="batch_matmul", isa=isa, func=prim_func(arguments, _plain(spec)), limits=most)
    product = Int8Product(
        *views,
        zero_points=(spec.a_zero_point, spec.b_zero_point),
        finish=lambda sums, lanes: _result(spec, sums, lanes),
        out_dtype=dtypes[2],
        threads=spec.threads,
    )
    return Kernel(name="batch_matmul.tiled", isa=isa, func=prim_func(arguments, product.emit), limits=most)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Matrices:
    """One pair of matrices and their product: buffers, where each starts, and the parameters that come at run time."""

    a: Buffer
    b: Buffer
    y: Buffer
    at: tuple[Expr, Expr, Expr]
    parameters: tuple[Buffer, ...]
    parameters_at: tuple[Expr, Expr]


def _plain(spec: BatchMatmulSpec) -> Callable[..., None]:
    a_batch, b_batch = spec.a.shape[:-2], spec.b.shape[:-2]
    batch = broadcast_shape(a_batch, b_batch)
    count = math.prod(batch)

    def emit(*buffers: Buffer) -> None:
        parameters = (buffers[1], buffers[3]) if spec.by_row else ()
        a, b, y = buffers[::2] if spec.by_row else buffers
        operations = count * spec.rows * spec.inner * spec.columns
        with chunked(count, worthwhile(spec.threads, operations, count)) as index:
            of_a, of_b = (B.Bind(_offset(index, batch, own)) for own in (a_batch, b_batch))
            starts = (of_a * (spec.rows * spec.inner), of_b * (spec.inner * spec.columns), index * (spec.rows * spec.columns))
            matrices = _Matrices(
                a=a,
                b=b,
                y=y,
                at=(B.Bind(starts[0]), B.Bind(starts[1]), B.Bind(starts[2])),
                parameters=parameters,
                parameters_at=(of_a * (2 * spec.rows), of_b * (2 * spec.columns)),
            )
            for_tiles(spec.rows, _ROWS, lambda first, rows: _emit_rows(spec, matrices, first, rows))

    return emit


def _offset(index: Expr, batch: tuple[int, ...], own: tuple[int, ...]) -> Expr:
    """Return which of an operand's matrices meets the output's matrix `index`."""
    padded = (1,) * (len(batch) - len(own)) + own
    at: Expr = B.int32(0)
    inner, stride = 1, 1
    for size, present in zip(reversed(batch), reversed(padded), strict=True):
        if present != 1:
            at = at + B.floormod(B.floordiv(index, inner), size) * stride
        inner, stride = inner * size, stride * present
    return at


def _emit_rows(spec: BatchMatmulSpec, matrices: _Matrices, first: Expr, rows: int) -> None:
    """Emit `rows` rows of one product: whole vectors of columns, then the columns that are left, one by one."""
    if is_open(spec.columns):
        for_open_tiles(spec.columns, _LANES, lambda column, lanes: _emit_tile(spec, matrices, first, rows, column, lanes))
        return
    vectors, left = divmod(spec.columns, _LANES)
    if vectors:
        with B.serial(0, vectors) as index:
            _emit_tile(spec, matrices, first, rows, B.Bind(index * _LANES), _LANES)
    if left:
        with B.serial(0, left) as index:
            _emit_tile(spec, matrices, first, rows, B.Bind(vectors * _LANES + index), 1)


def _emit_tile(spec: BatchMatmulSpec, matrices: _Matrices, first: Expr, rows: int, column: Expr, lanes: int) -> None:
    a, b, y, at = matrices.a, matrices.b, matrices.y, matrices.at
    ends = _found(spec, matrices, first, rows, column, lanes) if spec.by_row else _known(spec, rows, lanes)
    acc = B.alloc_buffer((rows * lanes,), "int32", scope="local")
    for row in range(rows):
        store(acc, row * lanes, splat(B.int32(0), lanes), lanes)
    with B.serial(0, spec.inner) as k:
        weights = B.Bind(load(b, at[1] + k * spec.columns + column, lanes, "int32") - ends.b_zeros)
        for row in range(rows):
            value = a[at[0] + (first + row) * spec.inner + k].astype("int32") - ends.a_zeros[row]
            store(acc, row * lanes, load(acc, row * lanes, lanes) + splat(value, lanes) * weights, lanes)
    for row in range(rows):
        result = ends.result(row, load(acc, row * lanes, lanes))
        store(y, at[2] + (first + row) * spec.columns + column, result, lanes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Ends:
    """Zero points of a tile's rows and columns, int32, and what makes the sums of a row its results."""

    a_zeros: list[Expr]
    b_zeros: Expr
    result: Callable[[int, Expr], Expr]


def _known(spec: BatchMatmulSpec, rows: int, lanes: int) -> _Ends:
    b_zeros = splat(B.int32(spec.b_zero_point), lanes)
    a_zero = kept(B.int32(spec.a_zero_point), "int32")
    return _Ends(a_zeros=[a_zero] * rows, b_zeros=b_zeros, result=lambda _, sums: _result(spec, sums, lanes))


def _found(spec: BatchMatmulSpec, matrices: _Matrices, first: Expr, rows: int, column: Expr, lanes: int) -> _Ends:
    """Emit the loads of the parameters of rows and columns that were quantized at run time."""
    assert isinstance(spec.output, FloatOutput), "its scale is known at run time alone"
    output, (of_rows, of_columns) = spec.output, matrices.parameters
    at = B.Bind(matrices.parameters_at[1] + column)
    places = [B.Bind(matrices.parameters_at[0] + 2 * (first + row)) for row in range(rows)]
    zero = splat(B.float32(0), lanes)

    def result(row: int, sums: Expr) -> Expr:
        return float_result(output, sums, load(of_columns, at, lanes), zero, of_rows[places[row]], lanes)

    return _Ends(
        a_zeros=[B.Bind(of_rows[place + 1].astype("int32")) for place in places],
        b_zeros=B.Bind(load(of_columns, at + spec.columns, lanes, "int32")),
        result=result,
    )


def _result(spec: BatchMatmulSpec, sums: Expr, lanes: int) -> Expr:
    if isinstance(spec.output, SumOutput):
        return sums
    assert not isinstance(spec.multiplier, FixedPointMultiplier), "which int16 alone has"
    if isinstance(spec.output, Output):
        return requantized(sums, spec.multiplier, spec.output, lanes)
    multiplier, zero = (splat(B.float32(value), lanes) for value in (spec.multiplier, 0.0))
    return float_result(spec.output, sums, multiplier, zero, None, lanes)
