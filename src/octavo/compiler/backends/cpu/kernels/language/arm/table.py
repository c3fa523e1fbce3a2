"""A table of 256 bytes in sixteen registers, and 16 bytes looked up in it at once (tbl, tbx). Expressions only."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ..vectors import Buffer, Expr, intrinsic, load
from . import vector as v

ENTRIES = 64  # of one instruction: four registers


class ArmTable:
    """The 256 entries; LLVM keeps them in registers across the loop that the lookups stand in."""

    def __init__(self, entries: Buffer) -> None:
        self._parts = [
            [T.Bind(load(entries, first + at, v.BYTES)) for at in range(0, ENTRIES, v.BYTES)] for first in range(0, 256, ENTRIES)
        ]

    def of(self, index: Expr) -> Expr:
        """Return the entries of a uint8x16 vector of indices: those of each quarter where they lie in it."""
        index = T.Bind(index)
        found = intrinsic("llvm.aarch64.neon.tbl4.v16i8", "uint8x16", *self._parts[0], index)
        for number, part in enumerate(self._parts[1:], 1):
            within = index - T.broadcast(T.uint8(number * ENTRIES), v.BYTES)
            found = intrinsic("llvm.aarch64.neon.tbx4.v16i8", "uint8x16", found, *part, within)
        return found
