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
"""Estimators, and whether what they give is tuned: first those that clip less; the first is the default."""
_TUNED = "{}, tuned"


def with_best_ranges(recipe: Recipe, make: Make) -> QuantizedModel:
    """Return the model quantized with the ranges that leave the least error on the samples that the profile keeps.

    Ranges and weights were fitted to these samples, and what is clipped costs others more: of those that are no more than one
    standard error from the best the first is taken (Breiman et al., Classification and Regression Trees, 1984, section 3.4.3).
    Its plan names the estimator, and its corrections the signal to noise ratio of each that was tried.
    """
    found = {
        _TUNED.format(name) if tunes else name: make(replace(recipe, range_estimator=name), tunes) for name, tunes in _CANDIDATES
    }
    measured = {name: each.plan.corrections.nearness for name, each in found.items()}
    best = max(measured.values(), key=lambda each: each.sqnr_db)
    chosen = found[next(name for name, each in measured.items() if not best.is_surely_nearer(each))]
    tried = {name: each.sqnr_db for name, each in measured.items()}
    return replace(chosen, plan=replace(chosen.plan, corrections=replace(chosen.plan.corrections, tried=tried)))
