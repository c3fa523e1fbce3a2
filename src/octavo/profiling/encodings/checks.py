"""Ranges by tensor, as readers of other tools' files check them."""

from __future__ import annotations

import math

from ...runtime.json_values import Malformed

Ranges = dict[str, tuple[float, float]]
"""(least, greatest) of each tensor, by its name in the source; float32 numbers."""


def a_range(low: float, high: float, where: str) -> tuple[float, float]:
    """Return both ends if they are in order; Malformed."""
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise Malformed(f"{where}: {low:g} to {high:g} is no range")
    return low, high
