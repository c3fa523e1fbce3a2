"""Registers of 256 bits: a kernel written in vectors of 512 keeps its loops, and its instructions are cut in two.

LLVM splits loads, sums and shuffles of 512 bits by itself; it does not split an instruction that is called by name. Each of those
is written here as two of 256 bits, or for AVX2 as instructions that give the same integers. Nothing else of a kernel changes;
its tile should be one for 16 registers, see `tiles`. Convolutions and products with constants have kernels of their own for AVX2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call
from tvm.script.ir_builder import tirx as T

from ..isa import AVX2, AVX512_VNNI
from ..vectors import Expr, intrinsic, shuffled, splat, vector_type

_BITS = 256
_SIZES = (512, 256, 128)


def narrowed(func: tvm.tirx.PrimFunc, isa: str) -> tvm.tirx.PrimFunc:
    """Return a PrimFunc of the same results with the instructions of `isa` only; `func` itself for AVX-512."""
    if isa == AVX512_VNNI:
        return func
    by_id = {int(T.llvm_lookup_intrinsic_id(name)): rewrite for name, rewrite in _rewrites(isa).items()}

    def rewritten(call: Any) -> Any:
        rewrite = by_id.get(int(call.args[0])) if getattr(call.op, "name", None) == "tirx.call_llvm_pure_intrin" else None
        return call if rewrite is None else rewrite(*call.args[1:])

    made: Any = tvm_ffi.structural_map(func, ((Call, rewritten),))
    return made


def _rewrites(isa: str) -> dict[str, Callable[..., Expr]]:
    """Return what to write for each instruction that 256-bit registers lack, by its name in LLVM."""

    def in_halves(name: str, result: str) -> Callable[..., Expr]:
        return lambda *operands: _by_part(lambda *parts: intrinsic(name, result, *parts), operands)

    packs = {
        "llvm.x86.avx512.packssdw.512": in_halves("llvm.x86.avx2.packssdw", "int16x16"),
        "llvm.x86.avx512.packuswb.512": in_halves("llvm.x86.avx2.packuswb", "uint8x32"),
    }
    if isa == AVX2:
        dots = {f"llvm.x86.avx512.vpdpbusd.{size}": _dot_of_words for size in _SIZES}
        packs["llvm.x86.avx512.pmaddubs.w.512"] = in_halves("llvm.x86.avx2.pmadd.ub.sw", "int16x16")
        packs["llvm.x86.avx512.pmaddw.d.512"] = in_halves("llvm.x86.avx2.pmadd.wd", "int32x8")
        return packs | dots | {f"llvm.x86.avx512.vpdpwssd.{size}": _multiply_add for size in _SIZES}
    return packs | {
        f"llvm.x86.avx512.{name}.512": in_halves(f"llvm.x86.avx512.{name}.256", "int32x8") for name in ("vpdpbusd", "vpdpwssd")
    }


def _by_part(operation: Callable[..., Expr], operands: Sequence[Expr]) -> Expr:
    """Return `operation` of the operands cut into registers of 256 bits, side by side again; smaller operands stay whole."""
    first = _data_type(operands[0])
    parts = -(-first.lanes * first.bits // _BITS)
    if parts == 1:
        return operation(*operands)
    results = [operation(*(_part(operand, part, parts) for operand in operands)) for part in range(parts)]
    return shuffled(results, range(parts * _data_type(results[0]).lanes))


def _part(value: Expr, part: int, parts: int) -> Expr:
    size = _data_type(value).lanes // parts
    return shuffled([value], range(part * size, (part + 1) * size))


def _data_type(value: Expr) -> Any:
    return _data_type_of(str(value.ty.dtype))


@cache
def _data_type_of(dtype: str) -> Any:
    return tvm.DataType(dtype)


def _dot_of_words(acc: Expr, unsigned: Expr, signed: Expr) -> Expr:
    """Return vpdpbusd's sum, exactly: bytes 0 and 2 of each dword as two 16-bit words, then bytes 1 and 3, through vpmaddwd.

    Products of unsigned by signed bytes and a sum of two of them fit int32; vpmaddubsw, which takes bytes, saturates to int16.
    """
    words = 2 * _data_type(acc).lanes
    x, w = T.reinterpret(vector_type("uint16", words), unsigned), T.reinterpret(vector_type("int16", words), signed)
    eight, signed_eight = splat(T.uint16(8), words), splat(T.int16(8), words)
    even = T.reinterpret(vector_type("int16", words), x & splat(T.uint16(0xFF), words)), (w << signed_eight) >> signed_eight
    odd = T.reinterpret(vector_type("int16", words), x >> eight), w >> signed_eight
    return _multiply_add(_multiply_add(acc, *even), *odd)


def _multiply_add(acc: Expr, a: Expr, b: Expr) -> Expr:
    """Return acc[l] + a[2 l] * b[2 l] + a[2 l + 1] * b[2 l + 1] of int16 vectors (vpmaddwd and a sum, which wraps)."""

    def products(*pairs: Expr) -> Expr:
        words = _data_type(pairs[0]).lanes
        name = "llvm.x86.avx2.pmadd.wd" if words == _BITS // 16 else "llvm.x86.sse2.pmadd.wd"
        return intrinsic(name, vector_type("int32", words // 2), *pairs)

    return acc + _by_part(products, (a, b))
