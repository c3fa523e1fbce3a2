"""Means in float32 in TIR: the kernels' counterpart of `numerics.float_mean`, bit for bit.

The sum of integers is cheaper, and almost everywhere the same: only beside ties does the order of float32 roundings decide.
"""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics import FloatMeanParameters
from ......runtime.size import is_open
from ..language.rounding import rounded, unfused
from ..language.vectors import Buffer, Expr, intrinsic, load, splat, store, vector_type

MARGIN_TERMS = 1 << 16
"""Values whose mean's margin is known, and up to which it grows with their number alone."""


def is_near_tie(mean: Expr, parameters: FloatMeanParameters, output: Output, terms: int, lanes: int) -> Expr:
    """Return whether any of a vector of float32 means, in steps, is so close to a tie that float32 sums may round otherwise."""
    low, high = (splat(B.float32(float(bound - output.zero_point)), lanes) for bound in (output.qmin, output.qmax))
    clamped = B.Bind(B.min(B.max(mean, low), high))
    dtype = vector_type("float32", lanes)
    distance = intrinsic("llvm.fabs", dtype, clamped - intrinsic("llvm.rint", dtype, clamped))
    if lanes > 1:
        largest = B.llvm_lookup_intrinsic_id(f"llvm.vector.reduce.fmax.v{lanes}f32")
        distance = B.call_llvm_pure_intrin(largest, distance, dtype="float32")
    return distance > _margin(parameters, terms)


def _margin(parameters: FloatMeanParameters, terms: int) -> Expr:
    """Return the distance from an integer beyond which a mean may be that near; of an open number of terms, a bit less."""
    if not is_open(terms):
        return B.float32(0.5 - parameters.margin(terms))
    first, most = parameters.margin(0), B.int32(MARGIN_TERMS)
    each = (parameters.margin(MARGIN_TERMS) - first) / MARGIN_TERMS * 1.001
    count = B.Bind(B.int32(0) + terms)
    return B.Select(count <= most, B.float32(0.5 - first * 1.001) - B.cast(count, "float32") * B.float32(each), B.float32(-1))


def accumulated(total: Buffer, integers: Expr, parameters: FloatMeanParameters, lanes: int) -> None:
    """Emit the addition of the real values of uint8 `integers` to the float32 buffer `total`."""
    dtype = vector_type("float32", lanes)
    centered = integers.astype(vector_type("int32", lanes)) - splat(B.int32(parameters.input_zero_point), lanes)
    product = centered.astype(dtype) * splat(B.float32(parameters.in_scale), lanes)
    store(total, 0, load(total, 0, lanes) + unfused(product, lanes), lanes)


def float_mean(total: Expr, parameters: FloatMeanParameters, count: Expr, output: Output, lanes: int) -> Expr:
    """Return a float32 sum of real values as the uint8 mean of `count` (float32, one number)."""
    p = parameters
    steps = total / splat(count, lanes) / splat(B.float32(p.out_scale), lanes)
    stored = steps + splat(B.float32(float(p.zero_point - p.relabelling)), lanes)
    return rounded(stored, zero_point=p.relabelling, qmin=output.qmin, qmax=output.qmax, dtype="uint8", lanes=lanes)
