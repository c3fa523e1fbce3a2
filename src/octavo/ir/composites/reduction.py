"""Composite ops: reduction. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...numerics import FloatTaps, LinearTaps
from ...numerics.quantized.pool2d import PoolRounding
from .base import (
    NO_ARITHMETIC,
    Arithmetic,
    CompositeOp,
    Layout,
    QuantizedTensor,
    UnaryOp,
    change_of_parameters,
    integer_arithmetic,
)

Rounding = PoolRounding | Literal["float32"]
"""Of the kernels' averages of integers, or of one formed in float32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool2dOp(UnaryOp):
    """Average or max pooling, or the mean over height and width."""

    kind: Literal["avg", "max"]
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    out_height: int
    out_width: int
    rounding: Rounding

    def arithmetic(self) -> Arithmetic:
        """Return that of an average, formed of an exact sum or in float32; a maximum only takes the result's parameters."""
        if self.kind == "max":
            return change_of_parameters(self.x, y=self.y)
        asked = self.y.fixed_point
        if asked is not None and self.rounding in (asked, "half_away"):
            return integer_arithmetic(asked, 32)
        return Arithmetic("float_multiplier", self.rounding, None if self.rounding == "float32" else 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReduceOp(UnaryOp):
    """A reduction of x over `axes`, counted in the source's layout; means of int16 may round in "fixed_point".

    Means and sums round as their result asks in the integers of accelerators, where `rounding` says the same.
    """

    kind: Literal["mean", "sum", "max", "min"]
    axes: tuple[int, ...]
    rounding: str

    def arithmetic(self) -> Arithmetic:
        """Return that of an exact sum; an extreme only takes the result's parameters."""
        if self.kind in ("max", "min"):
            return change_of_parameters(self.x, y=self.y)
        if self.y.fixed_point is not None and self.rounding == self.y.fixed_point:
            return integer_arithmetic(self.y.fixed_point, 32)
        return Arithmetic("fixed_point" if self.rounding == "fixed_point" else "float_multiplier", self.rounding, 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ArgReduceOp(CompositeOp):
    """The place of the largest or least element of x along `axis`, or among all of them where it is None."""

    kind: Literal["argmax", "argmin"]
    x: QuantizedTensor
    axis: int | None

    def roles(self) -> dict[str, Any]:
        """Return its input; the result is no quantized tensor."""
        return {"input": self.x.info()}

    def arithmetic(self) -> Arithmetic:
        """Return none: integers are compared."""
        return NO_ARITHMETIC


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTaps:
    """The taps along an axis of which a size is open: found when the model runs, by the `mode` of its positions."""

    extent: int
    out_extent: int
    mode: str


def taps_along(taps: LinearTaps | FloatTaps | OpenTaps) -> int:
    """Return how many pixels the result has along an axis."""
    return taps.out_extent if isinstance(taps, OpenTaps) else len(taps.first)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizeOp(UnaryOp):
    """Bilinear resizing on x's own integers, then the output's parameters; int16 rounds "half_away" and keeps its parameters."""

    layout: Layout
    rows: LinearTaps | OpenTaps
    columns: LinearTaps | OpenTaps
    rounding: Literal["half_up", "half_even", "half_away"]

    def arithmetic(self) -> Arithmetic:
        """Return the shift of the weighted sum."""
        return Arithmetic("shift", self.rounding, 64 if self.y.kernel_dtype == "int16" else 32)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatResizeOp(UnaryOp):
    """Bilinear resizing of real values in float32, as the source's framework computes it; of bare integers it cuts off."""

    layout: Layout
    rows: FloatTaps | OpenTaps
    columns: FloatTaps | OpenTaps
    cuts_off: bool = False

    def arithmetic(self) -> Arithmetic:
        """Return that of real values."""
        return Arithmetic("float_multiplier", "float32")
