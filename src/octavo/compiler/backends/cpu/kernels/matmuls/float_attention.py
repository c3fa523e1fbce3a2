"""Attention in float32: scores, softmax and the product with the values for some rows at a time; no scores are written.

Plain vectors, one text for every ISA. Every value is that of the kernels of its steps: `float_batch_matmul`, `float_softmax`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.matrix_view import MatrixView
from ..language.float_function import ElementMath
from ..language.kernel import Kernel
from ..language.vectors import Expr, prim_func
from ..norms.float_softmax import SoftmaxAddend
from .attention_loops import AttentionLoops, ScoreRows
from .batch_product import LANES, Tile
from .float_batch_matmul import FloatBatchMatmulSpec, FloatProduct
from .score_block import RealBlock, ScoreBlock

FLOAT_ATTENTION = "float.attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatAttentionSpec:
    """softmax(q (..., rows, width) @ k (..., width, columns)) @ v (..., columns, features), the scores with their addend.

    `scores` and `weighted` are the two products; what lies between them is no tensor, so its views say shapes alone.
    """

    scores: FloatBatchMatmulSpec
    weighted: FloatBatchMatmulSpec
    addend: SoftmaxAddend | None = None
    threads: int = 1

    @property
    def views(self) -> tuple[MatrixView, MatrixView, MatrixView, MatrixView]:
        """How q, k, v and the result lie."""
        return self.scores.a, self.scores.b, self.weighted.b, self.weighted.y

    @property
    def parameters(self) -> tuple[MatrixView, ...]:
        """None."""
        return ()


def float_attention(spec: FloatAttentionSpec, *, addend: npt.NDArray[np.float32] | None = None, isa: str) -> Kernel:
    """Return the kernel of q, k and v; the addend is the next argument, or the constant `addend`."""
    q, k, v, y = spec.views
    arguments = [(name, view.size, "float32") for name, view in (("q", q), ("k", k), ("v", v))]
    if spec.addend is not None:
        arguments.append(("addend", math.prod(spec.addend.own), "float32"))
    arguments.append(("y", y.size, "float32"))
    constants = () if addend is None else (addend.reshape(-1),)
    func = prim_func(arguments, _FloatAttention(spec, isa).emit)
    return Kernel(name=FLOAT_ATTENTION, isa=isa, func=func, constants=constants)


class _FloatScores(ScoreRows, FloatProduct):
    """Scores in float32."""

    def _score(self, result: Expr, before: Expr | None, vector: int, valid: Expr) -> Expr:
        """Return a vector of results with their addend; the factor's product is rounded on its own."""
        return super()._score(ElementMath(LANES).fenced(result), before, vector, valid)


class _FloatAttention(AttentionLoops):
    """Emits the kernel."""

    def __init__(self, spec: FloatAttentionSpec, isa: str) -> None:
        super().__init__(spec, isa)
        self._spec = spec

    def block_of(self, rows: int, columns: int, valid: Expr | None) -> RealBlock:
        """Return what becomes a softmax for so many rows."""
        return RealBlock(rows, columns, valid)

    def products(self, block: ScoreBlock, views: Sequence[MatrixView], tile: Tile) -> tuple[ScoreRows, FloatProduct]:
        """Return what emits the two products of a block."""
        del block
        spec, (q, k, scores, shares, v, y) = self._spec, views
        first = _FloatScores(q, k, scores, factor=spec.scores.factor, threads=spec.threads, tile=tile)
        return first, FloatProduct(shares, v, y, factor=spec.weighted.factor, threads=spec.threads, tile=tile)
