"""Oracles of comparisons of quantized tensors, and of choices by their results. No TVM here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..rounding.fixed_point import FixedPointMultiplier, fixed_point_multiplier

Comparison = Literal["equal", "not_equal", "greater", "greater_equal", "less", "less_equal"]
Logic = Literal["and", "or", "not"]
CompareRounding = Literal["integers", "float32", "fixed_point"]
"""What is compared.

"integers"     the integers themselves: of one scale and zero point, or int16 as TFLite compares it, whatever the scales.
"float32"      the float32 numbers that they stand for.
"fixed_point"  these in whole steps of 1 / 256, as TFLite compares 8-bit tensors: what lies closer is equal.
"""

COMPARE_FRACTION_BITS = 8
"""Binary digits of the numbers that "fixed_point" compares."""

COMPARISONS: Mapping[Comparison, Callable[..., Any]] = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
}

LOGIC: Mapping[Logic, Callable[..., Any]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
"""Functions of boolean values; "logical_" before their names makes Relax's."""


def compare_multiplier(scale: float) -> FixedPointMultiplier:
    """Return the factor from integers, shifted to the left by `COMPARE_FRACTION_BITS`, to what "fixed_point" compares."""
    return fixed_point_multiplier(float(np.float32(scale)), "twice_away")


def compare(
    kind: Comparison,
    a: npt.NDArray[np.integer],
    b: npt.NDArray[np.integer],
    *,
    a_scale: float,
    a_zero_point: int,
    b_scale: float,
    b_zero_point: int,
    rounding: CompareRounding,
) -> npt.NDArray[np.bool_]:
    """Return the booleans `a kind b` for integers of 8 or 16 bits whose shapes broadcast."""

    def compared(x: npt.NDArray[np.integer], scale: float, zero_point: int) -> npt.NDArray[Any]:
        if rounding == "integers":
            return x
        distance = x.astype(np.int64) - zero_point
        if rounding == "float32":
            return distance.astype(np.float32) * np.float32(scale)
        return compare_multiplier(scale).apply(distance << COMPARE_FRACTION_BITS)

    return COMPARISONS[kind](compared(a, a_scale, a_zero_point), compared(b, b_scale, b_zero_point))
