"""Lookup of two uint8 tensors, or of one and a row for each element, in a table of rows. Oracle: `numerics.pair_lookup`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ..language.broadcast import Axis, broadcast_shape, for_each_pair
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, prim_func

_UNROLLED = 16
"""Elements in a row of branch-free code: their loads do not wait for each other."""

_ROW = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class PairLookupSpec:
    """uint8 of shapes that broadcast: y = table[b, a], or table[first[b_at], a] where each element of b states its row."""

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    threads: int = 1


def pair_lookup(
    spec: PairLookupSpec,
    *,
    table: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.integer] | None = None,
    isa: str,
) -> Kernel:
    """Return the kernel; one text serves every ISA.

    Parameters
    ----------
    table
        (rows, 256); 256 rows where b is an activation.
    rows
        The row of each element of `b_shape`; None where b is an activation, whose values are the rows.
    """
    assert table.ndim == 2
    assert table.shape[1] == _ROW
    assert rows is not None or table.shape[0] == _ROW, "one row for every byte"
    a_size, b_size = math.prod(spec.a_shape), math.prod(spec.b_shape)
    size = math.prod(broadcast_shape(spec.a_shape, spec.b_shape))

    def emit(a: Buffer, b: Buffer, entries: Buffer, y: Buffer) -> None:
        def base(at: Expr) -> Expr:
            # A constant holds where its row starts, an activation which row it is.
            return b[at] if rows is not None else b[at].astype("int32") * _ROW

        def one(a_at: Expr, b_at: Expr, y_at: Expr, lanes: int, inner: Axis) -> None:
            shared = None if inner.has_b else B.Bind(base(b_at))
            fixed = None if inner.has_a else B.Bind(a[a_at].astype("int32"))
            for lane in range(lanes):
                row = base(b_at + lane) if shared is None else shared
                column = a[a_at + lane].astype("int32") if fixed is None else fixed
                B.buffer_store(y, entries[row + column], [y_at + lane])

        for_each_pair(spec.a_shape, spec.b_shape, _UNROLLED, spec.threads, one)

    flat = np.ascontiguousarray(table).reshape(-1)
    b_dtype = "uint8" if rows is None else "int32"
    arguments = [("a", a_size, "uint8"), ("b", b_size, b_dtype), ("table", flat.size, "uint8"), ("y", size, "uint8")]
    starts = () if rows is None else (np.ascontiguousarray(rows, np.int32).reshape(-1) * np.int32(_ROW),)
    return Kernel(name="pair_lookup", isa=isa, func=prim_func(arguments, emit), constants=(*starts, flat))
