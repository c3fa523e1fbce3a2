"""The range that parameters have, and how others like them follow from another range."""

from __future__ import annotations

import numpy as np

from ...numerics import QuantParams
from .estimator import QuantScheme

Range = tuple[float, float]


def width(low: float, high: float) -> float:
    """Return the width of the range that integers cover: 0 is always in it."""
    return max(high, 0.0) - min(low, 0.0)


def range_of(params: QuantParams) -> Range:
    """Return the least and the greatest number that per-tensor parameters have."""
    scale, zero_point = float(params.scale), int(params.zero_point)
    return (params.qmin - zero_point) * scale, (params.qmax - zero_point) * scale


def scheme_of(params: QuantParams) -> QuantScheme:
    """Return how parameters like these follow from a range."""
    symmetric = int(params.zero_point) == 0 and params.qmin < 0
    return QuantScheme(dtype=params.dtype, symmetric=symmetric, power_of_two=bool(np.frexp(params.scale)[0] == 0.5))
