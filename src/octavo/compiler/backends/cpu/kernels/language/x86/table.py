"""A table of 256 bytes in four AVX-512 registers, and 64 bytes looked up in it at once. Expressions only.

It is written for the feature avx512vbmi (vpermi2b: one of 128 bytes), which came years after VNNI; `without_vbmi` writes it in
avx512bw, whose vpermi2w picks one of 64 words, so a word of two entries is picked first and the byte within it after.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call
from tvm.script.ir_builder import tirx as B

from .......runtime.llvm_host import has_features
from ..vectors import Buffer, Expr, intrinsic, load, splat

_BYTES = "uint8x64"
_WORDS = "uint16x32"
_PICK_BYTE = "llvm.x86.avx512.vpermi2var.qi.512"
_PICK_WORD = "llvm.x86.avx512.vpermi2var.hi.512"


class Table:
    """The 256 entries; LLVM keeps them in registers across the loop that the lookups stand in."""

    def __init__(self, entries: Buffer) -> None:
        self._parts = [B.Bind(load(entries, 64 * part, 64)) for part in range(4)]

    def of(self, index: Expr) -> Expr:
        """Return the entries of a uint8x64 vector of indices."""
        index = B.Bind(index)
        # Of each index vpermi2b reads the lowest seven bits; the eighth is the sign.
        low, high = (intrinsic(_PICK_BYTE, _BYTES, self._parts[part], index, self._parts[part + 1]) for part in (0, 2))
        return B.Select(B.reinterpret("int8x64", index) < splat(B.int8(0), 64), high, low)


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
