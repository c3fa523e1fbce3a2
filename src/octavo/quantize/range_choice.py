"""The choice among range estimators: each quantizes the model, and the best one is taken. It runs nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .plan import QuantizedModel
from .recipe import Recipe

Make = Callable[[Recipe, bool], QuantizedModel]
"""Quantizes by a recipe; the flag says whether single ranges are chosen by simulation, too."""

_CANDIDATES = (
    ("min_max", False),
    ("min_max", True),
    ("mean", False),
    ("mean", True),
    ("mse", False),
    ("percentile:99.99", False),
)
"""Estimators, and whether what they give is tuned. Of equally good ones the first is taken."""
_TUNED = "{}, tuned"


def with_best_ranges(recipe: Recipe, make: Make) -> QuantizedModel:
    """Return the model quantized with the ranges that leave the least error on the samples that the profile keeps.

    Its plan names the estimator that was taken, and its corrections the signal to noise ratio of each that was tried.
    """
    best: QuantizedModel | None = None
    tried: dict[str, float] = {}
    for name, tunes in _CANDIDATES:
        found = make(replace(recipe, range_estimator=name), tunes)
        sqnr_db = found.plan.corrections.sqnr_db
        tried[_TUNED.format(name) if tunes else name] = sqnr_db
        if best is None or sqnr_db > best.plan.corrections.sqnr_db:
            best = found
    assert best is not None, "there are candidates"
    return replace(best, plan=replace(best.plan, corrections=replace(best.plan.corrections, tried=tried)))
