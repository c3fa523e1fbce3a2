"""What a softmax of integers is asked for: plain values that know no graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ......ir.composites.outputs import Output


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftmaxSpec:
    """[rows, columns] of `dtype` to themselves; `scale` is the input's times a factor beta.

    `rounding` "fixed_point", of int16 alone, is to a scale of 1 / 32768, whatever `out_scale` says; it takes `beta` for itself.
    """

    rows: int
    columns: int
    scale: float
    beta: float = 1.0
    out_scale: float
    output: Output
    dtype: Literal["uint8", "int16"] = "uint8"
    rounding: Literal["half_even", "fixed_point"] = "half_even"
    threads: int = 1
