"""NEON vector expressions: each function names an instruction, says its scalar meaning and returns a TIR expression.

It builds expressions only, no loops and no stores. Registers have 128 bits: 4 int32, 8 int16 or 16 bytes.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ..vectors import Expr, intrinsic, shuffled

QUAD = 4  # int32 lanes of a register
BYTES = 16
PAIR_BYTES = 8  # of each of two pixels in a register of a matrix product


def concatenated(parts: list[Expr], lanes: int) -> Expr:
    """Return vectors of `lanes` each side by side."""
    return parts[0] if len(parts) == 1 else shuffled(parts, list(range(len(parts) * lanes)))


def flipped(value: Expr) -> Expr:
    """Return bytes x - 128 as int8 of 16 bytes x of uint8 (eor)."""
    return T.reinterpret("int8x16", value ^ T.broadcast(T.uint8(128), BYTES))


def repeated_dword(value: Expr, lane: int, dtype: str) -> Expr:
    """Return dword `lane` of 16 bytes in every lane; a dot product takes it as its element, at no cost."""
    dwords = T.reinterpret("int32x4", value)
    return T.reinterpret(f"{dtype}x16", shuffled([dwords], [lane] * QUAD))


def sdot(acc: Expr, a: Expr, b: Expr) -> Expr:
    """Return acc[l] + sum(int32(a[4 l + i]) * int32(b[4 l + i]) for i in 0..3) of int8 vectors: sdot, wraps."""
    return intrinsic("llvm.aarch64.neon.sdot.v4i32.v16i8", "int32x4", acc, a, b)


def usdot(acc: Expr, unsigned: Expr, signed: Expr) -> Expr:
    """Return the same of uint8 by int8: usdot, or sudot where `unsigned` is an element, wraps."""
    return intrinsic("llvm.aarch64.neon.usdot.v4i32.v16i8", "int32x4", acc, unsigned, signed)


def usmmla(acc: Expr, unsigned: Expr, signed: Expr) -> Expr:
    """Return acc[2 i + j] + sum(unsigned[8 i + k] * signed[8 j + k] for k in 0..7), i and j in 0..1: usmmla, wraps."""
    return intrinsic("llvm.aarch64.neon.usmmla.v4i32.v16i8", "int32x4", acc, unsigned, signed)


def smull(a: Expr, b: Expr) -> Expr:
    """Return int16(a[l]) * int16(b[l]) of 8 int8 each: smull, exact."""
    return intrinsic("llvm.aarch64.neon.smull.v8i16", "int16x8", a, b)


def add_pairs(acc: Expr, words: Expr) -> Expr:
    """Return acc[l] + words[2 l] + words[2 l + 1] of int16: sadalp, wraps."""
    return acc + intrinsic("llvm.aarch64.neon.saddlp.v4i32.v8i16", "int32x4", words)


def smull_words(a: Expr, b: Expr) -> Expr:
    """Return int32(a[l]) * int32(b[l]) of 4 int16 each: smull, exact."""
    return intrinsic("llvm.aarch64.neon.smull.v4i32", "int32x4", a, b)


def add_words(acc: Expr, words: Expr, number: int) -> Expr:
    """Return acc[l] + words[4 number + l], 4 of 8 int16: saddw, wraps."""
    return acc + T.Cast("int32x4", quarter(words, number))


def quarter(words: Expr, number: int) -> Expr:
    """Return 4 of 8 or 16 words."""
    return shuffled([words], list(range(QUAD * number, QUAD * number + QUAD)))


def half(value: Expr, number: int) -> Expr:
    """Return 8 of 16 bytes."""
    return shuffled([value], list(range(8 * number, 8 * number + 8)))


def sums_of_four(vectors: list[Expr]) -> Expr:
    """Return the sum of the lanes of each of four int32 vectors: three addp."""

    def pairs(a: Expr, b: Expr) -> Expr:
        return intrinsic("llvm.aarch64.neon.addp.v4i32", "int32x4", a, b)

    return pairs(pairs(vectors[0], vectors[1]), pairs(vectors[2], vectors[3]))


def round_half_even(value: Expr) -> Expr:
    """Return rint(float32) as int32, half to even, saturated: fcvtns."""
    return intrinsic("llvm.aarch64.neon.fcvtns.v4i32.v4f32", "int32x4", value)


def narrow_int16(value: Expr) -> Expr:
    """Return 4 int32 saturated to int16: sqxtn."""
    return intrinsic("llvm.aarch64.neon.sqxtn.v4i16", "int16x4", value)


def low_words(vectors: list[Expr]) -> Expr:
    """Return the low 16 bits of the lanes of two int32x4 as int16x8: uzp1."""
    return shuffled([T.reinterpret("int16x8", vector) for vector in vectors], list(range(0, 16, 2)))


def narrow_uint8(value: Expr) -> Expr:
    """Return 8 int16 saturated to uint8: sqxtun."""
    return intrinsic("llvm.aarch64.neon.sqxtun.v8i8", "uint8x8", value)


def add_saturate_int16(value: Expr, addend: int) -> Expr:
    """Return 8 int16 + addend, saturated: sqadd."""
    return intrinsic("llvm.sadd.sat.v8i16", "int16x8", value, T.broadcast(T.int16(addend), 8))
