"""Sums of 4-bit weights times bytes of activations in registers, for each ISA: int32 by column, exact.

A vector of weights has 4 neighbouring inputs of each of 16 columns, uint8 in [0; 15]; the activations are 4 int8, the same for
all columns. ISAs without dot products of bytes add products in 16 bits first, of `WORDS` vectors at most: 8 * 2 * 15 * 128.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tvm.script.ir_builder import tirx as B

from ..language.arm.vector import BYTES, concatenated, sdot
from ..language.isa import ARM_DOTPROD, ARM_I8MM, AVX2, AVX512_VNNI, AVX_VNNI
from ..language.vectors import Expr, intrinsic, load, shuffled, splat, store
from ..language.x86.vector import dot, multiply_pairs

LANES = 16
WORDS = 8
"""Vectors of weights between `begin` and `finish`, at most."""


@dataclass(slots=True)
class BlockDots:
    """`count` sums of 16 columns each, in registers.

    Parameters
    ----------
    isa
        Whose instructions add.
    count
        Of the sums.
    """

    isa: str
    count: int
    _sums: Any = field(init=False)
    _narrow: Any = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Allocate the sums."""
        self._sums = B.alloc_buffer((self.count * LANES,), "int32", scope="local")
        if self._words:
            self._narrow = B.alloc_buffer((self.count * self._words,), "int16", scope="local")

    @property
    def _words(self) -> int:
        """16-bit sums of 16 columns; 0 where products are added in 32 bits."""
        if self.isa in (AVX512_VNNI, AVX_VNNI, ARM_DOTPROD, ARM_I8MM):
            return 0
        return 32 if self.isa == AVX2 else 64

    def start(self, number: int, value: Expr) -> None:
        """Emit the start of a sum from int32x16."""
        store(self._sums, number * LANES, value, LANES)

    def sum_of(self, number: int) -> Expr:
        """Return a sum, int32x16."""
        return load(self._sums, number * LANES, LANES)

    def begin(self, number: int) -> None:
        """Emit what must come before products that `finish` brings into a sum."""
        if self._words:
            store(self._narrow, number * self._words, splat(B.int16(0), self._words), self._words)

    def add(self, number: int, weights: Expr, activations: Expr) -> None:
        """Emit the addition of uint8x64 weights times int8x64 activations."""
        if not self._words:
            acc = self.sum_of(number)
            is_x86 = self.isa in (AVX512_VNNI, AVX_VNNI)
            self.start(number, dot(acc, weights, activations) if is_x86 else _sdots(acc, weights, activations))
            return
        words = self._words
        if self.isa == AVX2:
            products = intrinsic("llvm.x86.avx512.pmaddubs.w.512", f"int16x{words}", weights, activations)
        else:
            products = weights.astype(f"int16x{words}") * activations.astype(f"int16x{words}")
        at = number * words
        store(self._narrow, at, load(self._narrow, at, words) + products, words)

    def finish(self, number: int) -> None:
        """Emit what brings a sum up to date."""
        words = self._words
        if not words:
            return
        narrow = B.Bind(load(self._narrow, number * words, words))
        if self.isa == AVX2:
            self.start(number, self.sum_of(number) + multiply_pairs(narrow, splat(B.int16(1), words), LANES))
            return
        acc = self.sum_of(number)
        for place in range(4):
            acc = acc + shuffled([narrow], list(range(place, words, 4))).astype(f"int32x{LANES}")
        self.start(number, acc)


def _sdots(acc: Expr, weights: Expr, activations: Expr) -> Expr:
    """Return sdot by registers of 16 bytes: weights of 4 bits are int8 as well."""
    parts: list[Expr] = []
    four = B.Bind(shuffled([activations], list(range(BYTES))))
    for quarter in range(4):
        sums = shuffled([acc], list(range(4 * quarter, 4 * quarter + 4)))
        lanes = list(range(BYTES * quarter, BYTES * quarter + BYTES))
        parts.append(sdot(sums, B.reinterpret("int8x16", shuffled([weights], lanes)), four))
    return concatenated(parts, 4)
