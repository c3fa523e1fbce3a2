"""What a product of two activations of 8 or 16 bits is asked for, in plain values that know no graph, and what it makes of its
sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm.script.ir_builder import tirx as B

from ......ir.composites.matrix_view import MatrixView
from ......ir.composites.outputs import FloatOutput, Output, SumOutput
from ......numerics.rounding.fixed_point import FixedPointMultiplier
from ......numerics.rounding.narrow_accumulator import NarrowAccumulator
from ..language.float_result import float_result
from ..language.rounding import requantized
from ..language.vectors import Expr, splat


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMatmulSpec:
    """a (..., rows, inner) @ b (..., inner, columns) of `dtype`; the batch axes broadcast.

    `multiplier` is float32 a_scale * b_scale / out_scale; a_scale * b_scale for a FloatOutput, and unread for a SumOutput.
    int16 has neither; its multiplier may be a fixed-point one, and its accumulator `narrow`. None of these has
    `pixels_per_scale`: parameters are constants here, or, `by_row`, those of each row of a, float32 [rows of all, 2], and of each
    column of b, float32 [matrices of b, 2, columns]; then zero points and multiplier are unread, and a FloatOutput is made.
    `parameters` say how these lie, [..., rows, 2] and [..., 2, columns], where operands do not as they are.
    """

    a: MatrixView
    b: MatrixView
    y: MatrixView
    a_zero_point: int
    b_zero_point: int
    multiplier: float | FixedPointMultiplier
    output: Output | FloatOutput | SumOutput
    dtype: Literal["uint8", "int16"] = "uint8"
    narrow: NarrowAccumulator | None = None
    threads: int = 1
    by_row: bool = False
    parameters: tuple[MatrixView, MatrixView] | None = None

    @property
    def rows(self) -> int:
        """Rows of a and of the result."""
        return self.a.shape[-2]

    @property
    def inner(self) -> int:
        """Products of a sum."""
        return self.a.shape[-1]

    @property
    def columns(self) -> int:
        """Columns of b and of the result."""
        return self.b.shape[-1]


def known_result(spec: BatchMatmulSpec, sums: Expr, lanes: int) -> Expr:
    """Return the results of int32 sums whose scales are constants: those of a kernel for `spec`, in vectors of so many lanes."""
    if isinstance(spec.output, SumOutput):
        return sums
    assert not isinstance(spec.multiplier, FixedPointMultiplier), "which int16 alone has"
    if isinstance(spec.output, Output):
        return requantized(sums, spec.multiplier, spec.output, lanes)
    multiplier, zero = (splat(B.float32(value), lanes) for value in (spec.multiplier, 0.0))
    return float_result(spec.output, sums, multiplier, zero, None, lanes)
