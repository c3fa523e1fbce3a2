"""Composite ops: int16. Plain facts of what one composite computes; nothing is matched and nothing emitted here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import CompositeOp


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Int16Op(CompositeOp):
    """An op whose facts the 8-bit rule found."""

    base: Any

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return self.base.quantize_info()


class Int16PairwiseOp(Int16Op):
    """a op b + clamp."""

    __slots__ = ()


class Int16FloatPairwiseOp(Int16Op):
    """a op b + clamp of real numbers in float32; the greater or the lesser of integers."""

    __slots__ = ()

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role, and how it is computed."""
        return {**self.base.quantize_info(), **({} if self.base.kind in ("max", "min") else {"rounding": "float32"})}


class Int16PoolOp(Int16Op):
    """Average or max pooling."""

    __slots__ = ()


class Int16MeanOp(Int16Op):
    """The mean over axes that lie next to each other in memory, or are brought there."""

    __slots__ = ()


class Int16RealMeanOp(Int16MeanOp):
    """The mean, half to even, of tensors with any zero point: one window over each column of the elements side by side."""

    __slots__ = ()


class Int16SoftmaxOp(Int16Op):
    """softmax(beta * x) along an axis."""

    __slots__ = ()


class Int16ExactSoftmaxOp(Int16Op):
    """softmax(beta * x) along an axis, to any scale: the probabilities themselves, rounded once."""

    __slots__ = ()


class Int16ConcatOp(Int16Op):
    """Concatenation; tensors of another scale or zero point than the result's go through a table first."""

    __slots__ = ()
