"""Means and sums of integers: what `device/average.cuh` is told."""

from __future__ import annotations

import numpy as np

from ......ir.composites.base import QuantizedOutput, QuantizedTensor, ratio
from ...kernel import Number

ROUNDINGS = {"half_even": 0, "half_even_stored": 1, "half_away": 2}
"""The enumeration `AverageRounding` of the header."""


def average_parameters(x: QuantizedTensor, y: QuantizedOutput, rounding: str, count: int) -> dict[str, Number]:
    """Return the members of a structure for results that are so rounded: all of `count` integers, or each of its own where 0.

    A sum counts as the mean of one.
    """
    multiplier = ratio(x.params, y.tensor.params)
    return {
        "rounding": ROUNDINGS[rounding],
        "has_one_count": count > 0,
        "factor": float(np.float32(multiplier) / np.float32(max(count, 1))),
        "multiplier": multiplier,
        "x_zero_point": int(x.params.zero_point),
        "zero_point": int(y.tensor.params.zero_point),
        "qmin": y.qmin,
        "qmax": y.qmax,
    }
