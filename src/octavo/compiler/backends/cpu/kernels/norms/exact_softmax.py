"""Softmax of 16-bit rows to any scale: a table of exponentials. Oracle: `numerics.quantized.softmax.exact_softmax_int16`."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as B

from ......numerics.quantized.softmax import EXACT_SOFTMAX_MAX_COLUMNS, SOFTMAX_MAX_COLUMNS, exact_softmax_table
from ......runtime.shapes import limits, surpasses
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, prim_func, worthwhile
from .spec import SoftmaxSpec

_OPERATIONS = 16
"""Elementary operations that a value costs, for the choice of threads."""

_MOST = 131072.0
"""Steps that are more than any 16-bit result holds."""

_MAGIC, _MAGIC_BITS = 6755399441055744.0, 0x4338000000000000
"""1.5 * 2**52 and its bits: adding it rounds a float64 to an integer, half to even, which the low bits then hold."""


def exact_softmax(spec: SoftmaxSpec, *, isa: str) -> Kernel:
    """Return the kernel of the softmax of each row, clamped to the output's bounds."""
    assert not surpasses(spec.columns, EXACT_SOFTMAX_MAX_COLUMNS), "the rule sees to it"
    table = exact_softmax_table(spec.scale)
    size, out = spec.rows * spec.columns, spec.output

    def emit(x: Buffer, exponentials: Buffer, y: Buffer) -> None:
        def exponential(at: Expr, largest: Expr) -> Expr:
            distance = B.Bind(largest - x[at].astype("int32"))
            entry = exponentials[B.min(distance, B.int32(table.size - 1))]
            return B.Select(distance < B.int32(table.size), entry, B.int64(0))

        with chunked(spec.rows, worthwhile(spec.threads, size * _OPERATIONS, spec.rows)) as row:
            base = B.Bind(row * spec.columns)
            found: Any = B.alloc_buffer((1,), "int32", scope="local")
            total: Any = B.alloc_buffer((1,), "int64", scope="local")
            B.buffer_store(found, B.int32(-32768), [0])
            with B.serial(0, spec.columns) as column:
                B.buffer_store(found, B.max(found[0], x[base + column].astype("int32")), [0])
            largest = B.Bind(found[0])
            B.buffer_store(total, B.int64(0), [0])
            with B.serial(0, spec.columns) as column:
                B.buffer_store(total, total[0] + exponential(base + column, largest), [0])
            sum_ = total[0].astype("float64") * B.float64(float(np.float32(spec.out_scale)))
            factor = B.Bind(B.float64(1.0) / sum_)
            with B.serial(0, spec.columns) as column:
                steps = B.min(exponential(base + column, largest).astype("float64") * factor, B.float64(_MOST))
                full = B.reinterpret("int64", steps + B.float64(_MAGIC)) - B.int64(_MAGIC_BITS)
                value = full.astype("int32") + B.int32(out.zero_point)
                value = B.min(B.max(value, B.int32(out.qmin)), B.int32(out.qmax))
                B.buffer_store(y, value.astype("int16"), [base + column])

    arguments = [("x", size, "int16"), ("exponentials", table.size, "int64"), ("y", size, "int16")]
    func = prim_func(arguments, emit)
    most = limits((spec.columns, SOFTMAX_MAX_COLUMNS))
    return Kernel(name="softmax.int16.exact", isa=isa, func=func, constants=(table,), limits=most)
