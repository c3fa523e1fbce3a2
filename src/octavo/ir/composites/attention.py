"""Composite ops: products of operands that are quantized when run and lie otherwise, and attention, which is two products.

A back end makes them of what partition found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import Arithmetic, CompositeOp, FloatOp, FloatResult
from .float_ops import FloatBatchMatmulOp, FloatSoftmaxOp
from .matrix_view import MatrixView
from .weighted import BatchMatmulOp, DynamicTensor, RowBatchMatmulOp


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LyingOperand:
    """A float32 tensor that is quantized first, how its matrices lie, and how the parameters of their rows or columns do."""

    tensor: DynamicTensor
    view: MatrixView
    parameters: MatrixView


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LyingProductOp(CompositeOp):
    """A product of rows and columns that are quantized when run, of operands that lie otherwise; `product` says what it was."""

    a: LyingOperand
    b: LyingOperand
    product: RowBatchMatmulOp
    y: FloatResult
    y_view: MatrixView

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        return self.product.macs

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input0": self.a.tensor.info(), "input1": self.b.tensor.info(), "output": self.y.roles()["output"]}

    def arithmetic(self) -> Arithmetic:
        """Return that of the product."""
        return self.product.arithmetic()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowAttentionOp(CompositeOp):
    """softmax(q @ k + addend) @ v, each step as the ops that it is made of say."""

    q: LyingOperand
    k: LyingOperand
    v: LyingOperand
    scores: RowBatchMatmulOp
    softmax: FloatSoftmaxOp
    weighted: RowBatchMatmulOp
    y: FloatResult
    y_view: MatrixView

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference, of both products."""
        return self.scores.macs + self.weighted.macs

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        inputs = {f"input{number}": each.tensor.info() for number, each in enumerate((self.q, self.k, self.v))}
        return {**inputs, "output": self.y.roles()["output"]}

    def arithmetic(self) -> Arithmetic:
        """Return that of the second product."""
        return self.weighted.arithmetic()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionOp(CompositeOp):
    """softmax(q @ k + addend) @ v of tensors with constant parameters, each step as the ops that it is made of say."""

    scores: BatchMatmulOp
    softmax: FloatSoftmaxOp
    weighted: BatchMatmulOp

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference, of both products."""
        return self.scores.macs + self.weighted.macs

    def roles(self) -> dict[str, Any]:
        """Return its tensors by role."""
        operands = (self.scores.a, self.scores.b, self.weighted.b)
        inputs = {f"input{number}": each.tensor.info() for number, each in enumerate(operands)}
        return {**inputs, "output": self.weighted.y.roles()["output"]}

    def arithmetic(self) -> Arithmetic:
        """Return that of the second product."""
        return self.weighted.arithmetic()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatAttentionOp(FloatOp):
    """softmax(q @ k + addend) @ v in float32, each step as the ops that it is made of say."""

    scores: FloatBatchMatmulOp
    softmax: FloatSoftmaxOp
    weighted: FloatBatchMatmulOp

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference, of both products."""
        return self.scores.macs + self.weighted.macs
