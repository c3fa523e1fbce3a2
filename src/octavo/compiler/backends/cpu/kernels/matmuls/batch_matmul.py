"""Product of two activations of 8 or 16 bits, batch by batch. Oracle: `numerics.batch_matmul`.

int16 is the work of wide_batch_matmul.py, in sums of 64 bits. Of uint8, with VNNI it is the tiled product of
x86_int8_batch_matmul.py, which reads and writes through strides, or of x86_row_batch_matmul.py; with AVX2 that of
x86_word_batch_matmul.py. Elsewhere, and for sums too long for these, in vectors of columns, of matrices as they lie:

    for each batch, each four rows, each 16 columns:   for each inner index:  acc[row] += (a - a_zero) * (b - b_zero)

Nothing is packed: b is read as it lies, 16 neighbouring columns at a time, once for four rows. Zero points of rows and columns
that were quantized at run time are read there; oracle: `numerics.quantized.matmul.row_batch_matmul`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import FloatOutput, Output, SumOutput
from ......numerics import BATCH_MATMUL_MAX_INNER
from ......runtime.shapes import limits, surpasses
from ......runtime.size import is_open
from ..language.broadcast import broadcast_shape
from ..language.float_result import float_result
from ..language.isa import AVX2, AVX512_VNNI, AVX_VNNI
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_open_tiles, for_tiles, kept, load, prim_func, splat, store, worthwhile
from ..language.x86.narrow import narrowed
from .batch_product import tile_for
from .spec import BatchMatmulSpec, known_result
from .wide_batch_matmul import wide_batch_matmul
from .x86_int8_batch_matmul import MAX_INNER, Int8Product
from .x86_row_batch_matmul import RowInt8Product
from .x86_word_batch_matmul import WordProduct

_LANES = 16
_ROWS = 4
_BY_ROW = "batch_matmul.rows"
TILED_ROWS = f"{_BY_ROW}.tiled"
"""Kernel of rows quantized at run time that reads and writes views."""
_DTYPES = {Output: "uint8", FloatOutput: "float32", SumOutput: "int32"}


def takes_views(inner: int, *, dtype: str = "uint8", isa: str) -> bool:
    """Return whether the kernel reads and writes permuted tensors where they lie; else each view must be a plain one."""
    return dtype == "uint8" and isa in (AVX512_VNNI, AVX_VNNI) and not surpasses(inner, MAX_INNER)


def batch_matmul(spec: BatchMatmulSpec, *, isa: str) -> Kernel:
    """Return the kernel; the caller sees to it that inner is at most `numerics.BATCH_MATMUL_MAX_INNER` where it is known."""
    if spec.dtype == "int16":
        return wide_batch_matmul(spec, isa=isa)
    takes_bytes = takes_views(spec.inner, isa=isa)
    views, threads, tile = (spec.a, spec.b, spec.y), spec.threads, tile_for(isa)
    if not takes_bytes:
        assert all(view.axes == tuple(range(len(view.shape))) for view in views), "this kernel reads tensors as they lie"
    out_dtype = _DTYPES[type(spec.output)]
    arguments = [(name, view.size, dtype) for name, view, dtype in zip("aby", views, ("uint8", "uint8", out_dtype), strict=True)]
    if spec.by_row:
        sizes = (("a_parameters", 2 * (spec.a.size // spec.inner)), ("b_parameters", 2 * (spec.b.size // spec.inner)))
        given = [(name, size, "float32") for name, size in sizes]
        arguments = [arguments[0], given[0], arguments[1], given[1], arguments[2]]
    form, emit = "", _plain(spec)
    if takes_bytes and spec.by_row:
        assert isinstance(spec.output, FloatOutput), "its scale is known at run time alone"
        rows = RowInt8Product(*views, parameters=spec.parameters, output=spec.output, threads=threads, tile=tile)
        form, emit = ".tiled", rows.emit_with_parameters
    elif takes_bytes:
        zero_points, finish = (spec.a_zero_point, spec.b_zero_point), partial(known_result, spec)
        product = Int8Product(*views, zero_points=zero_points, finish=finish, out_dtype=out_dtype, threads=threads, tile=tile)
        form, emit = ".tiled", product.emit
    elif isa in (AVX2, AVX_VNNI):
        words = WordProduct(spec, out_dtype=out_dtype, tile=tile)
        form, emit = ".words", words.emit_with_parameters if spec.by_row else words.emit
    func = prim_func(arguments, emit)
    if isa in (AVX2, AVX_VNNI):
        func = narrowed(func, isa)
    most = limits((spec.inner, MAX_INNER if takes_bytes else BATCH_MATMUL_MAX_INNER))
    name = _BY_ROW if spec.by_row else "batch_matmul"
    return Kernel(name=f"{name}{form}", isa=isa, func=func, limits=most)


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
    return _Ends(a_zeros=[a_zero] * rows, b_zeros=b_zeros, result=lambda _, sums: known_result(spec, sums, lanes))


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
