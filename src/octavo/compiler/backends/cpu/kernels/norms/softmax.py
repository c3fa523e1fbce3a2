"""Softmax of rows. Those of uint8: a table of exponentials, an integer sum. Oracle: `numerics.softmax`.

int16 takes a longer table (exact_softmax.py), or in fixed point two interpolated ones (interpolated_softmax.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.softmax import SHORT_ROW_BITS, SOFTMAX_MAX_COLUMNS, softmax_table, softmax_tables
from ......runtime.shapes import limits
from ......runtime.size import is_open
from ..language.isa import AVX512_VNNI, lanes_of
from ..language.kernel import Kernel
from ..language.rounding import requantized
from ..language.vectors import Buffer, Expr, chunked, load, prim_func, splat, store, where_at_least, where_left, worthwhile
from ..language.x86.table import Table
from .exact_softmax import exact_softmax
from .interpolated_softmax import interpolated_softmax
from .spec import SoftmaxSpec

_TABLE_FROM = 192
"""Columns from which a table of the row's 256 possible results costs less than its results one by one."""

_OPERATIONS = 8
"""Elementary operations that a value costs, for the choice of threads."""


def softmax(spec: SoftmaxSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = clamp(rint(e[max(row) - x] / (sum(e) * out_scale)) + zero_point)."""
    if spec.dtype == "int16":
        return (interpolated_softmax if spec.rounding == "fixed_point" else exact_softmax)(spec, isa=isa)
    size = spec.rows * spec.columns
    writer = _Rows(spec, isa)

    table = exponentials_of(spec)

    def emit(x: Buffer, exponentials: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            writer.emit(x, exponentials, y, row * spec.columns)

    func = prim_func([("x", size, "uint8"), ("exponentials", table.size, "int32"), ("y", size, "uint8")], emit)
    return Kernel(name="softmax", isa=isa, func=func, constants=(table,), limits=limits((spec.columns, SOFTMAX_MAX_COLUMNS)))


def exponentials_of(spec: SoftmaxSpec) -> npt.NDArray[np.int32]:
    """Return the table of exponentials of a row, or of open rows those of all lengths."""
    return softmax_tables(spec.scale).reshape(-1) if is_open(spec.columns) else softmax_table(spec.scale, spec.columns)


def row_table(columns: Expr) -> Expr:
    """Return which of the tables of `exponentials_of` a row's is."""
    if not is_open(columns):
        return B.int32(0)
    zeros = B.call_llvm_pure_intrin(
        B.llvm_lookup_intrinsic_id("llvm.ctlz.i32"), B.int32(0) + (columns - 1), B.bool(False), dtype="int32"
    )
    return B.Bind(B.max(B.int32(32 - SHORT_ROW_BITS) - zeros, B.int32(0)))


class _Rows:
    """Writes one row's statements."""

    def __init__(self, spec: SoftmaxSpec, isa: str) -> None:
        self.spec = spec
        self.isa = isa
        self.lanes = lanes_of(isa)

    def emit(self, x: Buffer, exponentials: Buffer, y: Buffer, base: Expr) -> None:
        spec = self.spec
        largest = self._largest(x, base)
        first = row_table(spec.columns) * 256

        def exponential(column: Expr) -> Expr:
            return exponentials[first + (largest - x[base + column].astype("int32"))]

        total: Any = B.alloc_buffer((1,), "int32", scope="local")
        B.buffer_store(total, B.int32(0), [0])
        with B.serial(0, spec.columns) as column:
            B.buffer_store(total, total[0] + exponential(column), [0])
        out_scale = B.float32(float(np.float32(spec.out_scale)))
        multiplier = B.Bind(B.float32(1.0) / (total[0].astype("float32") * out_scale))

        def one_by_one() -> None:
            with B.serial(0, spec.columns) as column:
                B.buffer_store(y, requantized(exponential(column), multiplier, spec.output, 1), [base + column])

        def by_table() -> None:
            results: Any = B.alloc_buffer((256,), "uint8", scope="local")
            with B.serial(0, 256 // self.lanes) as part:
                values = load(exponentials, first + part * self.lanes, self.lanes)
                value = requantized(values, splat(multiplier, self.lanes), spec.output, self.lanes)
                store(results, part * self.lanes, value, self.lanes)
            self._look_up(x, results, y, base, largest)

        where_at_least(spec.columns, _TABLE_FROM, by_table, one_by_one)

    def _largest(self, x: Buffer, base: Expr) -> Expr:
        """Emit the search of the row's largest value; return it as int32."""
        vectors, rest = divmod(self.spec.columns, self.lanes)
        found: Any = B.alloc_buffer((self.lanes,), "uint8", scope="local")
        scalar: Any = B.alloc_buffer((1,), "uint8", scope="local")
        B.buffer_store(scalar, B.uint8(0), [0])

        def by_vectors() -> None:
            store(found, 0, load(x, base, self.lanes), self.lanes)
            if is_open(vectors) or vectors > 1:
                with B.serial(1, vectors) as index:
                    store(found, 0, B.max(load(found, 0, self.lanes), load(x, base + index * self.lanes, self.lanes)), self.lanes)
            B.buffer_store(scalar, _reduced(load(found, 0, self.lanes), self.lanes), [0])

        where_left(vectors, by_vectors)
        if is_open(rest) or rest:
            with B.serial(0, rest) as index:
                B.buffer_store(scalar, B.max(scalar[0], x[base + vectors * self.lanes + index]), [0])
        return B.Bind(scalar[0].astype("int32"))

    def _look_up(self, x: Buffer, results: Buffer, y: Buffer, base: Expr, largest: Expr) -> None:
        vectors, rest = divmod(self.spec.columns, self.lanes) if self.isa == AVX512_VNNI else (0, self.spec.columns)
        if is_open(vectors) or vectors:
            table = Table(results)
            with B.serial(0, vectors) as index:
                at = base + index * self.lanes
                distance = splat(largest.astype("uint8"), self.lanes) - load(x, at, self.lanes)
                store(y, at, table.of(distance), self.lanes)
        if is_open(rest) or rest:
            with B.serial(0, rest) as index:
                at = base + vectors * self.lanes + index
                B.buffer_store(y, results[largest - x[at].astype("int32")], [at])


def _reduced(value: Expr, lanes: int) -> Expr:
    """Return the largest of all lanes."""
    identifier = B.llvm_lookup_intrinsic_id(f"llvm.vector.reduce.umax.v{lanes}i8")
    return B.call_llvm_pure_intrin(identifier, value, dtype="uint8")
