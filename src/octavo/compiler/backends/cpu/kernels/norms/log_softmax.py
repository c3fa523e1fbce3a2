"""Logarithm of a softmax of uint8 rows, in integers alone. Oracle: `numerics.log_softmax`."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as B

from ......numerics import log_softmax_parameters
from ......numerics.quantized.log_softmax import FACTOR_BITS, LOG_FRACTION_BITS, LOG_INDEX_BITS, LOG_REST_BITS
from ......numerics.quantized.softmax import SOFTMAX_MAX_COLUMNS
from ......runtime.shapes import limits
from ......runtime.size import is_open
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, kept, prim_func, worthwhile
from .softmax import exponentials_of, row_table
from .spec import SoftmaxSpec

_OPERATIONS = 4
"""Elementary operations that a value costs, for the choice of threads."""


def log_softmax(spec: SoftmaxSpec, *, isa: str) -> Kernel:
    """Return the kernel; one text serves every ISA."""
    size = spec.rows * spec.columns
    # Of a row's parameters its length decides the table of exponentials alone, and with that what the first counts as.
    p = log_softmax_parameters(spec.scale, spec.out_scale, 1 if is_open(spec.columns) else spec.columns)
    table = exponentials_of(spec)

    def emit(x: Buffer, exponentials: Buffer, logarithms: Buffer, y: Buffer) -> None:
        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            base = row * spec.columns
            longer = row_table(spec.columns)
            first = longer * 256
            found: Any = B.alloc_buffer((1,), "int32", scope="local")
            B.buffer_store(found, B.int32(0), [0])
            with B.serial(0, spec.columns) as column:
                B.buffer_store(found, B.max(found[0], x[base + column].astype("int32")), [0])
            largest = kept(found[0], "int32")
            total: Any = B.alloc_buffer((1,), "int32", scope="local")
            B.buffer_store(total, B.int32(0), [0])
            with B.serial(0, spec.columns) as column:
                B.buffer_store(total, total[0] + exponentials[first + (largest - x[base + column].astype("int32"))], [0])
            log2 = _log2(total[0], logarithms) - (p.log_of_one - longer * (1 << LOG_FRACTION_BITS))
            rounding = kept(B.int64(1 << (FACTOR_BITS - 1)) - log2.astype("int64") * B.int64(p.log_factor), "int64")
            with B.serial(0, spec.columns) as column:
                distance = (largest - x[base + column].astype("int32")).astype("int64")
                steps = (rounding - distance * B.int64(p.distance_factor)) >> B.int64(FACTOR_BITS)
                out = spec.output
                value = B.min(B.max(steps + B.int64(out.zero_point), B.int64(out.qmin)), B.int64(out.qmax))
                B.buffer_store(y, value.astype("uint8"), [base + column])

    tables = (table, p.logarithms)
    arguments = [("x", size, "uint8"), ("exponentials", table.size, "int32"), ("logarithms", p.logarithms.size, "int32")]
    func = prim_func([*arguments, ("y", size, "uint8")], emit)
    most = limits((spec.columns, SOFTMAX_MAX_COLUMNS))
    return Kernel(name="log_softmax", isa=isa, func=func, constants=tables, limits=most)


def _log2(total: Expr, logarithms: Buffer) -> Expr:
    """Return log2 of a positive int32 in units of 2**-LOG_FRACTION_BITS: its highest bit moves to bit 30 first."""
    places: Expr = B.int32(30)
    for bits in (16, 8, 4, 2, 1):
        small = total < B.int32(1 << (31 - bits))
        places = kept(B.Select(small, places - B.int32(bits), places), "int32")
        total = kept(B.Select(small, total << B.int32(bits), total), "int32")
    fraction = kept(total - B.int32(1 << 30), "int32")
    index = kept(fraction >> B.int32(30 - LOG_INDEX_BITS), "int32")
    rest = (fraction >> B.int32(30 - LOG_INDEX_BITS - LOG_REST_BITS)) & B.int32((1 << LOG_REST_BITS) - 1)
    low = kept(logarithms[index], "int32")
    between = ((logarithms[index + 1] - low) * rest) >> B.int32(LOG_REST_BITS)
    return kept((places << B.int32(LOG_FRACTION_BITS)) + low + between, "int32")
