"""Sum and difference in float32 in TIR: the kernels' counterpart of `numerics.float_sum`, bit for bit."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics import FloatSumParameters
from ..language.rounding import rounded
from ..language.vectors import Expr, intrinsic, splat, vector_type


def float_sum(
    p: FloatSumParameters, out: Output, relabelling: int, a: Expr, b: Expr, lanes: int, *, dtype: str = "uint8"
) -> Expr:
    """Return clamp(rint(fma(a, a_ratio, fma(b, b_ratio, fixed))) + after) of int32 vectors of uint8 values, as `dtype`.

    `relabelling` is what was added to the source's integers, which `p` is about, to make a, b and the result uint8.
    """
    real_type = vector_type("float32", lanes)

    def number(value: float) -> Expr:
        return splat(B.float32(value), lanes)

    def real(value: Expr) -> Expr:
        stored = value - splat(B.int32(relabelling), lanes) if relabelling else value
        return stored.astype(real_type)

    # The intrinsic, not TVM's fma: that one may be two roundings where the processor has no such instruction.
    inner = intrinsic("llvm.fma", real_type, real(b), number(p.b_ratio), number(p.bias))
    value = intrinsic("llvm.fma", real_type, real(a), number(p.a_ratio), inner)
    return rounded(value, zero_point=p.zero_point + relabelling, qmin=out.qmin, qmax=out.qmax, dtype=dtype, lanes=lanes)
