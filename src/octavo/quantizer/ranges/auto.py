"""A choice among the other estimators, which only running the model can make: `quantize` makes it (quantize_graph.py)."""

from __future__ import annotations

from .min_max import MinMax


class Auto(MinMax):
    """Tries several, and takes the one whose outputs come nearest on samples that the profile keeps, or min_max without such."""
