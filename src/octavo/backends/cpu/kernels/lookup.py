"""Lookup: uint8 through a table of 256 bytes, which is any function of one 8-bit tensor. Oracle: `numerics.lookup`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as B

from .isa import AVX512_VNNI, lanes_of
from .spec import Kernel
from .vectors import Buffer, Expr, for_each_vector, load, prim_func, store
from .x86.table import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupSpec:
    """uint8 to uint8 over `size` values: y = table[x]."""

    size: int
    threads: int = 1


def lookup(spec: LookupSpec, *, table: npt.NDArray[np.uint8], isa: str) -> Kernel:
    """Return the kernel of y = table[x]; `table` has 256 entries."""
    assert table.shape == (256,), "one entry for every byte"
    width = lanes_of(isa)

    def emit(x: Buffer, entries: Buffer, y: Buffer) -> None:
        def one(start: Expr, lanes: int) -> None:
            if isa == AVX512_VNNI and lanes == width:
                store(y, start, Table(entries).of(load(x, start, lanes)), lanes)
                return
            for lane in range(lanes):
                B.buffer_store(y, entries[x[start + lane].astype("int32")], [start + lane])

        for_each_vector(spec.size, width, spec.threads, one)

    arguments = [("x", spec.size, "uint8"), ("table", 256, "uint8"), ("y", spec.size, "uint8")]
    return Kernel(name="lookup", isa=isa, func=prim_func(arguments, emit), constants=(np.ascontiguousarray(table),))
