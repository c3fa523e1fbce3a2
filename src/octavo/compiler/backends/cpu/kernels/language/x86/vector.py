"""AVX-512 vector expressions: each function names an instruction, says its scalar meaning and returns a TIR expression.

It builds expressions only, no loops and no stores. Needs the features avx512f, avx512bw, avx512vl and avx512vnni.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as T

from ..lane_order import LANES
from ..vectors import Expr, intrinsic, load


def splat_bytes(x: Expr, index: Expr, lanes: int = LANES) -> Expr:
    """Return x[index : index + 4] repeated in every int32 lane, as uint8 (vpbroadcastd)."""
    return splat_dword(T.reinterpret("int32", load(x, index, 4)), lanes)


def splat_dword(dword: Expr, lanes: int = LANES) -> Expr:
    """Return the four bytes of an int32 repeated in every int32 lane, as uint8."""
    return T.reinterpret(f"uint8x{4 * lanes}", T.broadcast(dword, lanes))


def dot(acc: Expr, unsigned: Expr, signed: Expr, lanes: int = LANES) -> Expr:
    """Return acc[l] + sum(int32(unsigned[4 l + b]) * int32(signed[4 l + b]) for b in 0..3): vpdpbusd, exact, wraps."""
    return intrinsic(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", f"int32x{lanes}", acc, unsigned, signed)


def multiply_pairs(a: Expr, b: Expr, lanes: int) -> Expr:
    """Return sum(int32(a[2 l + p]) * int32(b[2 l + p]) for p in 0..1) of int16 vectors: vpmaddwd, exact but for four -2**15."""
    name = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}[lanes]
    return intrinsic(name, f"int32x{lanes}", a, b)


def dot_int16(acc: Expr, a: Expr, b: Expr, lanes: int = LANES) -> Expr:
    """Return acc[l] + sum(int32(a[2 l + p]) * int32(b[2 l + p]) for p in 0..1) of int16 vectors: vpdpwssd, exact, wraps."""
    return intrinsic(f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", f"int32x{lanes}", acc, a, b)


def horizontal_sum(value: Expr, lanes: int) -> Expr:
    """Return the int32 sum of all lanes."""
    return intrinsic(f"llvm.vector.reduce.add.v{lanes}i32", "int32", value)


def round_half_even(value: Expr, lanes: int) -> Expr:
    """Return rint(float32) as int32: vcvtps2dq, half to even; the caller keeps |value| below 2**31."""
    return intrinsic(f"llvm.lrint.v{lanes}i32.v{lanes}f32", f"int32x{lanes}", value)


def _pack_intrinsic(operation: str, lanes: int) -> str:
    bits = lanes * 32
    return {512: f"llvm.x86.avx512.{operation}.512", 256: f"llvm.x86.avx2.{operation}", 128: f"llvm.x86.sse2.{operation}.128"}[
        bits
    ]


def pack_int16(low: Expr, high: Expr, lanes: int) -> Expr:
    """Return both int32 vectors saturated to int16, alternating by 128-bit block: low's four, high's four (vpackssdw)."""
    return intrinsic(_pack_intrinsic("packssdw", lanes), f"int16x{2 * lanes}", low, high)


def pack_uint8(low: Expr, high: Expr, lanes: int) -> Expr:
    """Return both int16 vectors saturated to uint8, alternating by 128-bit block: low's eight, high's eight (vpackuswb)."""
    return intrinsic(_pack_intrinsic("packuswb", lanes), f"uint8x{4 * lanes}", low, high)


def add_saturate_int16(value: Expr, addend: int, lanes: int) -> Expr:
    """Return value + addend saturated to int16 (vpaddsw)."""
    return intrinsic(f"llvm.sadd.sat.v{lanes}i16", f"int16x{lanes}", value, T.broadcast(T.int16(addend), lanes))
