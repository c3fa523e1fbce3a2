"""Composite ops: reduction. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..numerics import FloatTaps, LinearTaps
from ..numerics.quantized.pool2d import PoolRounding
from .base import CompositeOp, Layout, QuantizedOutput, QuantizedTensor

Rounding = PoolRounding | Literal["float32"]
"""Of the kernels' averages of integers, or of one formed in float32."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pool2dOp(CompositeOp):
    """Average or max pooling, or the mean over height and width."""

    kind: Literal["avg", "max"]
    x: QuantizedTensor
    y: QuantizedOutput
    layout: Layout
    kernel: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    count_include_pad: bool
    out_height: int
    out_width: int
    rounding: Rounding

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": self.rounding}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReduceOp(CompositeOp):
    """A reduction of x over `axes`, counted in the source's layout; means of int16 may round in "fixed_point"."""

    kind: Literal["mean", "sum", "max", "min"]
    x: QuantizedTensor
    y: QuantizedOutput
    axes: tuple[int, ...]
    rounding: str

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": self.rounding}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ArgReduceOp(CompositeOp):
    """The place of the largest or least element of x along `axis`, or among all of them where it is None."""

    kind: Literal["argmax", "argmin"]
    x: QuantizedTensor
    axis: int | None

    def quantize_info(self) -> dict[str, Any]:
        """Return its input; the result is no quantized tensor."""
        return {"input": self.x.info()}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizeOp(CompositeOp):
    """Bilinear resizing on x's own integers, then the output's parameters; int16 rounds "half_away" and keeps its parameters."""

    x: QuantizedTensor
    y: QuantizedOutput
    layout: Layout
    rows: LinearTaps
    columns: LinearTaps
    rounding: Literal["half_up", "half_even", "half_away"]

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and the rounding."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": self.rounding}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatResizeOp(CompositeOp):
    """Bilinear resizing of real values in float32, as the source's framework computes it."""

    x: QuantizedTensor
    y: QuantizedOutput
    layout: Layout
    rows: FloatTaps
    columns: FloatTaps

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and how it is computed."""
        return {"input": self.x.info(), "output": self.y.info(), "rounding": "float32"}
