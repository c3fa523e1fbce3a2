"""The instructions of ARM's bfloat16 as TIR expressions, each with its scalar meaning (`numerics.floats.half`).

TVM writes bfloat16 vectors as vectors of 16-bit integers, which LLVM's intrinsics refuse. So this is a function of LLVM's own
language that kernels bring along (`bring_along`); it takes and gives integers, and is inlined.
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from .......ir.graph.kernel_attributes import LLVM_ATTR
from ..vectors import Expr

_MATRIX = "octavo_bfloat16_matrix"

_FUNCTIONS = f"""
declare <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float>, <8 x bfloat>, <8 x bfloat>)

define linkonce_odr <4 x float> @{_MATRIX}(<4 x float> %acc, <2 x i64> %a, <2 x i64> %b) alwaysinline {{
  %x = bitcast <2 x i64> %a to <8 x bfloat>
  %y = bitcast <2 x i64> %b to <8 x bfloat>
  %sum = call <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float> %acc, <8 x bfloat> %x, <8 x bfloat> %y)
  ret <4 x float> %sum
}}
"""


def bring_along(func: Any) -> Any:
    """Return a PrimFunc that brings the function along which the expressions of this module call."""
    return func.with_attr(LLVM_ATTR, _FUNCTIONS)


def multiply_matrix(acc: Expr, pixels: Expr, channels: Expr) -> Expr:
    """Return acc[2 i + j] + sum(pixels[4 i + k] * channels[4 j + k] for k in 0..3), i and j in 0..1, of int64x2: bfmmla."""
    return T.call_pure_extern("float32x4", _MATRIX, acc, pixels, channels)
