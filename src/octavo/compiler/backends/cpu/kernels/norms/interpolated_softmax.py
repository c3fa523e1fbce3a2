"""Softmax of int16 rows by two interpolated tables. Oracle: `numerics.quantized.softmax.softmax_int16`."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.softmax import INT16_SOFTMAX_MAX_COLUMNS, int16_softmax_parameters
from ......runtime.shapes import limits
from ..language.fixed_point import fixed_point_scaled
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, prim_func, worthwhile
from .spec import SoftmaxSpec

_OPERATIONS = 32
"""Elementary operations that a value costs, for the choice of threads."""


def interpolated_softmax(spec: SoftmaxSpec, *, isa: str) -> Kernel:
    """Return the kernel of the softmax of each row, clamped to the output's bounds."""
    parameters = int16_softmax_parameters(spec.scale, spec.beta)
    size = spec.rows * spec.columns

    def emit(x: Buffer, exponentials: Buffer, reciprocals: Buffer, y: Buffer) -> None:
        def exponential(column: Expr, base: Expr, largest: Expr) -> Expr:
            distance = (x[base + column].astype("int32") - largest).astype("int64")
            index = fixed_point_scaled(distance, parameters.factor, 1) + B.int64(32767)
            return _interpolated(exponentials, B.max(index, B.int64(-32768)).astype("int32"))

        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            base = B.Bind(row * spec.columns)
            scratch: Any = B.alloc_buffer((2,), "int32", scope="local")
            B.buffer_store(scratch, B.int32(-32768), [0])
            with B.serial(0, spec.columns) as column:
                B.buffer_store(scratch, B.max(scratch[0], x[base + column].astype("int32")), [0])
            largest = B.Bind(scratch[0])
            B.buffer_store(scratch, B.int32(0), [1])
            with B.serial(0, spec.columns) as column:
                # The result's memory holds the exponentials meanwhile: they are int16, too.
                B.buffer_store(y, exponential(column, base, largest).astype("int16"), [base + column])
                B.buffer_store(scratch, scratch[1] + y[base + column].astype("int32"), [1])
            total = B.Bind(scratch[1])
            bits = B.Bind(B.int32(31) - _leading_zeros(total))
            normal = ((total.astype("int64") << (B.int32(30) - bits).astype("int64")) + B.int64(1 << 13)) >> B.int64(14)
            index = B.min(normal - B.int64((1 << 15) + (1 << 16)), B.int64(32767))
            reciprocal = B.Bind(_interpolated(reciprocals, index.astype("int32")))
            half = B.Bind((B.int32(1) << bits) >> B.int32(1))
            with B.serial(0, spec.columns) as column:
                value = (y[base + column].astype("int32") * reciprocal + half) >> bits
                value = B.min(B.max(value, B.int32(max(spec.output.qmin, 0))), B.int32(spec.output.qmax))
                B.buffer_store(y, value.astype("int16"), [base + column])

    tables = parameters.exponentials, parameters.reciprocals
    arguments = [("x", size, "int16"), ("exponentials", 513, "int16"), ("reciprocals", 513, "int16"), ("y", size, "int16")]
    most = limits((spec.columns, INT16_SOFTMAX_MAX_COLUMNS))
    return Kernel(name="softmax.int16", isa=isa, func=prim_func(arguments, emit), constants=tables, limits=most)


def _leading_zeros(value: Expr) -> Expr:
    return B.call_llvm_pure_intrin(B.llvm_lookup_intrinsic_id("llvm.ctlz.i32"), value, B.bool(False), dtype="int32")


def _interpolated(table: Buffer, index: Expr) -> Expr:
    """Return the table at an int32 index in [-32768; 32767], as int32."""
    index = B.Bind(index)
    at = B.Bind(B.int32(256) + (index >> B.int32(7)))
    here = B.Bind(table[at].astype("int32"))
    slope = table[at + 1].astype("int32") - here
    return here + ((slope * (index & B.int32(127)) + B.int32(64)) >> B.int32(7))
