"""Placement: which ops run in integers on a target, and why the others do not."""

from .inputs import AppliedPlan, PlanInputs
from .layer import Declined, Layer, Placement, reads_rows, reads_samples
from .placement import Placer
from .reasons import together

__all__ = [
    "AppliedPlan",
    "Declined",
    "Layer",
    "Placement",
    "Placer",
    "PlanInputs",
    "reads_rows",
    "reads_samples",
    "together",
]
