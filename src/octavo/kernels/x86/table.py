"""A table of 256 bytes in four AVX-512 registers, and 64 bytes looked up in it at once. Expressions only.

Needs the feature avx512bw: vpermi2w picks one of 64 words, so a word of two entries is picked first and the byte within it after.
(vpermi2b would be shorter, but AVX-512 VBMI came years after VNNI.)
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ..vectors import Buffer, Expr, intrinsic, load, splat

_WORDS = "uint16x32"


class Table:
    """The 256 entries as 128 words; LLVM keeps them in registers across the loop that the lookups stand in."""

    def __init__(self, entries: Buffer) -> None:
        self._parts = [B.Bind(B.reinterpret(_WORDS, load(entries, 64 * part, 64))) for part in range(4)]

    def of(self, index: Expr) -> Expr:
        """Return the entries of a uint8x64 vector of indices."""
        words = B.Bind(B.reinterpret(_WORDS, index))
        one, eight = splat(B.uint16(1), 32), splat(B.uint16(8), 32)
        low = self._word(words >> one, words & splat(B.uint16(0x80), 32))
        low = low >> ((words & one) * eight)
        high = self._word(words >> splat(B.uint16(9), 32), words & splat(B.uint16(0x8000), 32))
        # The byte of an odd index is in the upper half of its word already.
        high = high << (((~words >> eight) & one) * eight)
        merged = (low & splat(B.uint16(0xFF), 32)) | (high & splat(B.uint16(0xFF00), 32))
        return B.reinterpret("uint8x64", merged)

    def _word(self, index: Expr, is_upper: Expr) -> Expr:
        """Return the words at `index`, of whose bits vpermi2w reads the lowest six; `is_upper` is not 0 from word 64 on."""
        picked = [
            intrinsic("llvm.x86.avx512.vpermi2var.hi.512", _WORDS, self._parts[2 * half], index, self._parts[2 * half + 1])
            for half in range(2)
        ]
        return B.Bind(B.Select(is_upper == splat(B.uint16(0), 32), picked[0], picked[1]))
