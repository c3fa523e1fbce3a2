"""Composite ops: attention, of products whose operands are quantized when run. A back end makes it of what partition found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .base import Arithmetic, CompositeOp, FloatResult
from .float_ops import FloatSoftmaxOp
from .matrix_view import MatrixView
from .weighted import DynamicTensor, RowBatchMatmulOp


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AttentionOperand:
    """A float32 tensor that is quantized first, how its matrices lie, and how the parameters of their rows or columns do."""

    tensor: DynamicTensor
    view: MatrixView
    parameters: MatrixView


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RowAttentionOp(CompositeOp):
    """softmax(q @ k + addend) @ v, each step as the ops that it is made of say; `y_shape` is that of the result in memory."""

    q: AttentionOperand
    k: AttentionOperand
    v: AttentionOperand
    scores: RowBatchMatmulOp
    softmax: FloatSoftmaxOp
    weighted: RowBatchMatmulOp
    y: FloatResult
    y_view: MatrixView
    y_shape: tuple[int, ...]

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
