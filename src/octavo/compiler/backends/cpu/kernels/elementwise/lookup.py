"""Lookup: integers through a table with an entry for each, which is any function of one tensor. Oracle: `numerics.lookup`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from ......numerics.quant_params import INTEGER_RANGE
from ..language.arm.table import ArmTable
from ..language.isa import AVX2, AVX512_VNNI, AVX_VNNI, checked_isa, lanes_of
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, chunked, for_each_vector, load, prim_func, store, worthwhile
from ..language.x86.table import NibbleTable, Table


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupSpec:
    """`x_dtype` to `y_dtype`, of 8 or 16 bits, over `size` values: y = table[x - least x]."""

    size: int
    x_dtype: str = "uint8"
    y_dtype: str = "uint8"
    threads: int = 1


def lookup(spec: LookupSpec, *, table: npt.NDArray[np.integer], isa: str) -> Kernel:
    """Return the kernel; `table` has an entry for every integer of x's dtype."""
    low, high = INTEGER_RANGE[spec.x_dtype]
    assert table.shape == (high - low + 1,), "one entry for every integer"
    constants = (np.ascontiguousarray(table, spec.y_dtype),)
    arguments = [("x", spec.size, spec.x_dtype), ("table", table.size, spec.y_dtype), ("y", spec.size, spec.y_dtype)]
    if spec.x_dtype == spec.y_dtype == "uint8":
        return Kernel(name="lookup", isa=isa, func=prim_func(arguments, _of_bytes(spec, isa)), constants=constants)

    def emit(x: Buffer, entries: Buffer, y: Buffer) -> None:
        with chunked(spec.size, worthwhile(spec.threads, spec.size, spec.size)) as index:
            B.buffer_store(y, entries[x[index].astype("int32") - low], [index])

    return Kernel(name="lookup.int16", isa=isa, func=prim_func(arguments, emit), constants=constants)


def _of_bytes(spec: LookupSpec, isa: str) -> Callable[[Buffer, Buffer, Buffer], None]:
    """Return what emits a table of 256 bytes, which fits the registers of some ISAs."""
    width = lanes_of(isa)
    tables = {AVX512_VNNI: Table, AVX_VNNI: NibbleTable, AVX2: NibbleTable}
    table = ArmTable if checked_isa(isa).family == "arm" else tables.get(isa)

    def emit(x: Buffer, entries: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            if table is not None and lanes == width:
                store(y, start, table(entries).of(load(x, start, lanes)), lanes)
                return
            for lane in range(lanes):
                B.buffer_store(y, entries[x[start + lane].astype("int32")], [start + lane])

        for_each_vector(spec.size, width, spec.threads, one)

    return emit
