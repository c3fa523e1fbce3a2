"""What the kernels of 16-bit activations are asked to compute, and how their integers are scaled in TIR. They know no graph.

Activations are int16 as the source has them, without relabelling; weights are at most 9 bits, less their zero points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ....numerics.rounding.fixed_point import FixedPointMultiplier
from .spec import Conv2dSpec, Output
from .vectors import Expr, splat, vector_type

INT16 = Output(zero_point=0, qmin=-32768, qmax=32767)
"""A symmetric int16 result without a clamp of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16Conv2dSpec(Conv2dSpec):
    """A convolution of int16 activations to int16: zero points and clamp lie in [-32768; 32767]."""

    input_zero_point: int = 0
    output: Output = INT16


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16LookupSpec:
    """`x_dtype` to `y_dtype` over `size` values, one of them int16 or uint16: y = table[x - least x]."""

    size: int
    x_dtype: str
    y_dtype: str
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16PairwiseSpec:
    """Symmetric int16 a and b of shapes that broadcast; the result is clamped to the output's bounds."""

    kind: Literal["add", "sub", "mul"]
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_scale: float
    b_scale: float
    out_scale: float
    output: Output = INT16
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16FloatPairwiseSpec:
    """int16 a and b of shapes that broadcast, combined as real numbers in float32.

    "max" and "min" compare the integers themselves: a, b and the result share scale and zero point.
    """

    kind: Literal["add", "sub", "mul", "max", "min"]
    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_scale: float
    a_zero_point: int
    b_scale: float
    b_zero_point: int
    out_scale: float
    output: Output = INT16
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16MeanSpec:
    """The mean of symmetric int16 x [outer, count, inner] over its middle axis, to int16 [outer, inner]."""

    outer: int
    count: int
    inner: int
    in_scale: float
    out_scale: float
    output: Output = INT16
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Int16SoftmaxSpec:
    """int16 [rows, columns] to int16 of scale 1 / 32768; `beta` multiplies the input."""

    rows: int
    columns: int
    scale: float
    beta: float = 1.0
    output: Output = INT16
    threads: int = 1


def scaled(value: Expr, factor: FixedPointMultiplier, lanes: int) -> Expr:
    """Return an int64 vector times one factor for all lanes, as `FixedPointMultiplier.apply` defines it."""

    def number(constant: int) -> Expr:
        return splat(B.int64(constant), lanes)

    multiplier, first, second = (int(array) for array in (factor.factor, factor.first, factor.second))
    scaled_once = (value * number(multiplier) + number((1 << first) >> 1)) >> number(first)
    if second == 0:
        return scaled_once
    scaled_once = B.Bind(scaled_once)
    halved = scaled_once + number((1 << second) >> 1)
    if factor.is_away:
        halved = halved + (scaled_once >> number(63))
    return halved >> number(second)


def clamped_int16(value: Expr, output: Output, lanes: int) -> Expr:
    """Return an int64 vector plus the output's zero point as int16, within the output's bounds."""
    low, high = (splat(B.int64(bound - output.zero_point), lanes) for bound in (output.qmin, output.qmax))
    narrow = B.min(B.max(value, low), high).astype(vector_type("int32", lanes))
    return (narrow + splat(B.int32(output.zero_point), lanes)).astype(vector_type("int16", lanes))
