"""How a real value becomes an integer in TIR: the kernels' counterpart of `numerics.requantize`, bit for bit.

One text serves every ISA and every number of lanes. Nothing else in the kernels rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.affine import TieRounding
from ......numerics.floats.float_function import MAGIC, MAGIC_BITS
from ......numerics.quant_params import INTEGER_RANGE
from .vectors import Expr, intrinsic, splat, vector_type

MAGIC_REACH = 1 << 22
"""The bits of MAGIC + k are MAGIC_BITS + k for every integer |k| <= MAGIC_REACH."""


def rounded(
    value: Expr,
    *,
    zero_point: int,
    qmin: int,
    qmax: int,
    dtype: str,
    lanes: int,
    stored_even: bool = False,
    ties: TieRounding = "half_even",
) -> Expr:
    """Return clamp(rint(value) + zero_point, qmin, qmax) of a float32 vector; NaN becomes qmin.

    Ties go where `ties` says. With `stored_even` it is rint(value + zero_point): a tie becomes an even result, not an even
    distance from the zero point. An odd magic number, for an odd zero point, does that without rounding twice.

    The clamp stands between the product that `value` may be and the addition of the magic number, and must: LLVM would contract
    product and sum into a fused multiply-add, which skips the product's own rounding to float32. Clamping to integers before
    rounding or after is the same.
    """
    low = splat(B.float32(float(qmin - zero_point)), lanes)
    high = splat(B.float32(float(qmax - zero_point)), lanes)
    # Bound to a variable, for the select reads it twice. A comparison with NaN is false, and the select then takes the bound.
    value = B.Bind(value)
    value = B.Bind(B.Select(value > low, value, low))
    value = B.Bind(B.Select(value < high, value, high))
    parity = zero_point & 1 if stored_even else 0
    bits = B.reinterpret(vector_type("int32", lanes), value + splat(B.float32(MAGIC + parity), lanes))
    if ties != "half_even":
        bits = bits + _tie_correction(value, bits, ties, lanes)
    return (bits - splat(B.int32(MAGIC_BITS + parity - zero_point), lanes)).astype(vector_type(dtype, lanes))


def _tie_correction(value: Expr, bits: Expr, ties: TieRounding, lanes: int) -> Expr:
    """Return what a tie that went to the even neighbour, the integer of `bits`, is moved by to go elsewhere; else 0."""
    zero, one, none, half = (splat(each, lanes) for each in (B.int32(0), B.int32(1), B.float32(0), B.float32(0.5)))
    rest = B.Bind(value - float_difference(B.Bind(bits), splat(B.int32(MAGIC_BITS), lanes), lanes))  # exact
    if ties == "half_up":
        return B.Select(rest >= half, one, zero)
    up = B.Select(value > none, B.Select(rest >= half, one, zero), zero)
    return up - B.Select(value < none, B.Select(rest <= none - half, one, zero), zero)


def scaled(acc: Expr, multiplier: Expr, bias: Expr | None, lanes: int) -> Expr:
    """Return float32(acc) * multiplier, or that and `bias` in one fused multiply-add; `acc` is int32, or integers in float32."""
    dtype = vector_type("float32", lanes)
    real = acc.astype(dtype)
    # The intrinsic, not TVM's fma: that one may be two roundings where the processor has no such instruction.
    return real * multiplier if bias is None else intrinsic("llvm.fma", dtype, real, multiplier, bias)


def float_difference(a: Expr, b: Expr, lanes: int) -> Expr:
    """Return float32(i - j), exactly, of int32 vectors a = MAGIC_BITS + i and b = MAGIC_BITS + j, |i| and |j| <= MAGIC_REACH.

    It takes the place of the conversion to float32: where two sums end in one, the subtraction costs nothing.
    """
    dtype = vector_type("float32", lanes)
    return B.reinterpret(dtype, a) - B.reinterpret(dtype, b)


def less_magic(value: Expr, lanes: int) -> Expr:
    """Return float32(i), exactly, of a float32 vector MAGIC + i, |i| <= MAGIC_REACH."""
    return value - splat(B.float32(MAGIC), lanes)


def magic_sum(value: Expr, lanes: int) -> Expr:
    """Return MAGIC_BITS + rint(value) as int32, half to even, of a float32 vector within +-MAGIC_REACH; it may be a product."""
    return B.reinterpret(vector_type("int32", lanes), unfused(value, lanes) + splat(B.float32(MAGIC), lanes))


def unfused(product: Expr, lanes: int) -> Expr:
    """Return a float32 product that is rounded on its own: LLVM would contract it with the sum that reads it."""
    return intrinsic("llvm.arithmetic.fence", vector_type("float32", lanes), product)


def requantized(
    acc: Expr,
    multiplier: float | Expr,
    output: Output,
    lanes: int,
    *,
    bias: Expr | None = None,
    stored_even: bool = False,
    dtype: str = "uint8",
) -> Expr:
    """Return `dtype` clamp(rint(float32(acc) * multiplier) + zero_point) of a vector of integers.

    Parameters
    ----------
    acc
        int32 or int64 accumulators.
    multiplier
        A number, rounded to float32 here, or a float32 expression of as many lanes.
    output
        Zero point and clamp.
    lanes
        Of `acc`.
    bias
        float32, joins the product in one fused multiply-add before it is rounded.
    stored_even
        As `rounded` takes it.
    """
    if isinstance(multiplier, float):
        multiplier = splat(B.float32(float(np.float32(multiplier))), lanes)
    product = scaled(acc, multiplier, bias, lanes)
    bounds: Any = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
    return rounded(product, **bounds, dtype=dtype, lanes=lanes, stored_even=stored_even)


def clamped(value: Expr, output: Output, dtype: str, lanes: int) -> Expr:
    """Return integers of `dtype` within the output's bounds; a bound that all of them keep costs nothing."""
    low, high = INTEGER_RANGE[dtype]
    if output.qmin > low:
        value = B.max(value, splat(tirx.const(output.qmin, dtype), lanes))
    return B.min(value, splat(tirx.const(output.qmax, dtype), lanes)) if output.qmax < high else value


def requantized_input(value: Expr, multiplier: float, zero_point: int, output: Output, lanes: int) -> Expr:
    """Return a uint8 vector of one (scale, zero_point) as uint8 of `output`; the vector itself where they are the same."""
    if np.float32(multiplier) == 1 and zero_point == output.zero_point and (output.qmin, output.qmax) == (0, 255):
        return value
    centered = value.astype(vector_type("int32", lanes)) - splat(B.int32(zero_point), lanes)
    return requantized(centered, float(multiplier), output, lanes)


def integer_of(value: Expr, lanes: int) -> Expr:
    """Return rint(value) as int32, half to even, of a float32 vector within +-2**22 that is no bare product (see `rounded`)."""
    bits = B.reinterpret(vector_type("int32", lanes), value + splat(B.float32(MAGIC), lanes))
    return bits - splat(B.int32(MAGIC_BITS), lanes)


def run_time_rounded(value: Expr, zero_point: Expr, lanes: int, bounds: tuple[int, int]) -> Expr:
    """Return uint8 clamp(rint(value) + zero_point) of a float32 vector; the zero point is a float32 vector, too."""
    low, high = (splat(B.float32(bound), lanes) - zero_point for bound in bounds)
    value = B.Bind(value)
    value = B.Bind(B.Select(value > low, value, low))
    value = B.Bind(B.Select(value < high, value, high))
    return (integer_of(value, lanes) + zero_point.astype(vector_type("int32", lanes))).astype(vector_type("uint8", lanes))
