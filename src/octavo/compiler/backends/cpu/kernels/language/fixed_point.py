"""Fixed-point multipliers in TIR, on int64: the kernels' counterpart of `numerics.rounding.fixed_point`, bit for bit."""

from __future__ import annotations

from tvm.script.ir_builder import tirx as B

from ......ir.composites.outputs import Output
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator
from .vectors import Expr, splat, vector_type

_WIDEST = 64


def fixed_point_scaled(value: Expr, factor: FixedPointMultiplier, lanes: int) -> Expr:
    """Return an int64 vector times one factor for all lanes, as `FixedPointMultiplier.apply` defines it."""

    def number(constant: int) -> Expr:
        return splat(B.int64(constant), lanes)

    multiplier, first, second = (int(array) for array in (factor.factor, factor.first, factor.second))
    scaled_once = (value * number(multiplier) + number((1 << first) >> 1)) >> number(first)
    if second == 0:
        return scaled_once
    scaled_once = B.Bind(scaled_once)
    halved = scaled_once + number((1 << second) >> 1)
    if factor.ties == "half_away":
        halved = halved + (scaled_once >> number(63))
    elif factor.ties == "half_even":
        halved = halved - number(1) + B.bitwise_and(scaled_once >> number(second), number(1))
    return halved >> number(second)


def accumulated(sums: Expr, narrow: NarrowAccumulator | None, lanes: int) -> Expr:
    """Return what an accumulator holds of an int64 vector of sums."""
    if narrow is None or narrow.bits == _WIDEST:
        return sums
    if narrow.overflow == "saturates":
        low, high = (splat(B.int64(bound), lanes) for bound in narrow.bounds)
        return B.min(B.max(sums, low), high)
    rest = splat(B.int64(_WIDEST - narrow.bits), lanes)
    return (sums << rest) >> rest


def clamped_integer(value: Expr, output: Output, lanes: int, dtype: str = "int16") -> Expr:
    """Return an int64 vector plus the output's zero point as `dtype`, within the output's bounds."""
    low, high = (splat(B.int64(bound - output.zero_point), lanes) for bound in (output.qmin, output.qmax))
    narrow = B.min(B.max(value, low), high).astype(vector_type("int32", lanes))
    return (narrow + splat(B.int32(output.zero_point), lanes)).astype(vector_type(dtype, lanes))
