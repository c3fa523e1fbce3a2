"""A table of 256 bytes in registers, and as many bytes as a vector has looked up in it at once. Expressions only.

That of AVX-512 is written for the feature avx512vbmi (vpermi2b: one of 128 bytes), which came years after VNNI; for a CPU
without, `without_vbmi` writes it in avx512bw, whose vpermi2w picks one of 64 words, so a word of two entries is picked first and
the byte within it after.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call
from tvm.script.ir_builder import tirx as B

from .......runtime.llvm_host import has_features
from ..vectors import Buffer, Expr, intrinsic, load, shuffled, splat

_ROW = 16
"""Entries that vpshufb picks from."""

_ROWS = 8
"""Rows of the entries that a signed byte counts from 0."""

_BYTES = "uint8x64"
_WORDS = "uint16x32"
_PICK_BYTE = "llvm.x86.avx512.vpermi2var.qi.512"
_PICK_WORD = "llvm.x86.avx512.vpermi2var.hi.512"


class Table:
    """The 256 entries in four registers; LLVM keeps them there across the loop that the lookups stand in."""

    def __init__(self, entries: Buffer) -> None:
        self._parts = [B.Bind(load(entries, 64 * part, 64)) for part in range(4)]

    def of(self, index: Expr) -> Expr:
        """Return the entries of a uint8x64 vector of indices."""
        index = B.Bind(index)
        # Of each index vpermi2b reads the lowest seven bits; the eighth is the sign.
        low, high = (intrinsic(_PICK_BYTE, _BYTES, self._parts[part], index, self._parts[part + 1]) for part in (0, 2))
        return B.Select(B.reinterpret("int8x64", index) < splat(B.int8(0), 64), high, low)


class NibbleTable:
    """The 256 entries as sixteen rows of sixteen, for AVX2, whose vpshufb picks from one row, and gives 0 for a negative index.

    Each row holds what makes it of the row before (exclusive or), the first and the ninth their own. An index is less by sixteen
    from row to row, as a signed number that stays negative: the rows up to its own are picked from and joined. Indices of the
    upper half are negative in the rows of the lower half, and the other way round.
    """

    def __init__(self, entries: Buffer) -> None:
        rows = [B.Bind(load(entries, _ROW * row, _ROW)) for row in range(2 * _ROWS)]
        changes = [row if i % _ROWS == 0 else row ^ rows[i - 1] for i, row in enumerate(rows)]
        self._changes = [B.Bind(shuffled([change] * 2, range(2 * _ROW))) for change in changes]

    def of(self, index: Expr) -> Expr:
        """Return the entries of a uint8x32 vector of indices."""
        lanes = 2 * _ROW
        at = B.Bind(B.reinterpret(f"int8x{lanes}", index))
        found: Expr = None
        for half in (0, _ROWS):
            left = at if half == 0 else B.Bind(at ^ splat(B.int8(-128), lanes))
            for row in range(half, half + _ROWS):
                picked = intrinsic("llvm.x86.avx2.pshuf.b", f"uint8x{lanes}", self._changes[row], left)
                found = picked if found is None else B.Bind(found ^ picked)
                left = B.Bind(intrinsic("llvm.ssub.sat", f"int8x{lanes}", left, splat(B.int8(_ROW), lanes)))
        return found


def without_vbmi(func: tvm.tirx.PrimFunc, target: tvm.target.Target) -> tvm.tirx.PrimFunc:
    """Return a kernel of the same results in the instructions of `target`: itself where that has all that tables need."""
    if not has_features(("avx512bw",), target) or has_features(("avx512vbmi",), target):
        return func
    pick_byte = int(B.llvm_lookup_intrinsic_id(_PICK_BYTE))

    def rewritten(call: Any) -> Any:
        is_pick = getattr(call.op, "name", None) == "tirx.call_llvm_pure_intrin" and int(call.args[0]) == pick_byte
        return _picked_as_words(*call.args[1:]) if is_pick else call

    made: Any = tvm_ffi.structural_map(func, ((Call, rewritten),))
    return made


def _picked_as_words(low_entries: Expr, index: Expr, high_entries: Expr) -> Expr:
    """Return vpermi2b of bytes; of a word's bits vpermi2w reads the lowest six."""
    words, first, second = (B.reinterpret(_WORDS, operand) for operand in (index, low_entries, high_entries))
    one, eight = splat(B.uint16(1), 32), splat(B.uint16(8), 32)
    low = intrinsic(_PICK_WORD, _WORDS, first, words >> one, second) >> ((words & one) * eight)
    # The byte of an odd index is in the upper half of its word already.
    high = intrinsic(_PICK_WORD, _WORDS, first, words >> splat(B.uint16(9), 32), second) << (((~words >> eight) & one) * eight)
    return B.reinterpret(_BYTES, (low & splat(B.uint16(0xFF), 32)) | (high & splat(B.uint16(0xFF00), 32)))
