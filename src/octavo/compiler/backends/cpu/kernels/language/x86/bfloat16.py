"""The instructions of AVX-512 BF16 as TIR expressions, each with its scalar meaning (`numerics.floats.half`).

TVM writes bfloat16 vectors as vectors of 16-bit integers, which LLVM's intrinsics refuse. So these are functions of LLVM's own
language that kernels bring along (`bring_along`); they take and give integers, and are inlined.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from .......ir.graph.kernel_attributes import LLVM_ATTR
from ..vectors import Expr
from .vector import LANES

_DOT, _ROUND = "octavo_bfloat16_dot", "octavo_bfloat16_round"

_FUNCTIONS = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)

define linkonce_odr <16 x float> @{_DOT}(<16 x float> %acc, <16 x i32> %a, <16 x i32> %b) alwaysinline {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %sum = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %acc, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %sum
}}

define linkonce_odr <16 x i16> @{_ROUND}(<16 x float> %x) alwaysinline {{
  %y = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %bits = bitcast <16 x bfloat> %y to <16 x i16>
  ret <16 x i16> %bits
}}
"""


def bring_along(func: Any) -> Any:
    """Return a PrimFunc that brings the functions along which the expressions of this module call."""
    return func.with_attr(LLVM_ATTR, _FUNCTIONS)


def dot_pairs(acc: Expr, a: Expr, b: Expr) -> Expr:
    """Return acc[l] + a[2 l + 1] * b[2 l + 1], rounded, + a[2 l] * b[2 l], rounded; pairs are int32x16 (vdpbf16ps)."""
    return T.call_pure_extern("float32x16", _DOT, acc, a, b)


def rounded(value: Expr) -> Expr:
    """Return the bits of 16 float32 rounded half to even, uint16x16 (vcvtneps2bf16)."""
    return T.call_pure_extern("uint16x16", _ROUND, value)


def widened(bits: Expr, lanes: int = LANES) -> Expr:
    """Return the float32 numbers of uint16 bits (vpmovzxwd, vpslld)."""
    words = bits.astype(f"uint32x{lanes}" if lanes > 1 else "uint32")
    sixteen = T.broadcast(T.uint32(16), lanes) if lanes > 1 else T.uint32(16)
    return T.reinterpret(f"float32x{lanes}" if lanes > 1 else "float32", words << sixteen)
