"""Placement: which ops run in integers on a target, and why the others do not."""

from .inputs import PlanInputs
from .layer import Declined, Layer, Placement, reads_rows
from .named_ops import NamedOps, NamedOverrides
from .placement import Placer
from .reasons import together

__all__ = [
    "Declined",
    "Layer",
    "NamedOps",
    "NamedOverrides",
    "Placement",
    "Placer",
    "PlanInputs",
    "reads_rows",
    "together",
]
