"""What several elementwise kernels are asked to compute: plain values that know no graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ......ir.composites.outputs import Output
from ......numerics import FloatSumParameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One of two operands whose shapes broadcast, in the integers that kernels hold it in."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int16"] = "uint8"
    scale: float
    zero_point: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AddSpec:
    """uint8 a + uint8 b over `size` values of a; b has `b_size` values, repeated (size % b_size == 0).

    With `float_sum` the sum is formed in float32 and rounds half to even; its constants are about the source's integers, to which
    `relabelling` was added. Without, in integers from the scales, rounding half up.
    """

    size: int
    b_size: int
    a_scale: float
    a_zero_point: int
    b_scale: float
    b_zero_point: int
    out_scale: float
    output: Output
    float_sum: FloatSumParameters | None = None
    relabelling: int = 0
    threads: int = 1
