"""The float model that a quantized one stands for, variable by variable: simplified, its channels divided. It rounds nothing."""

from __future__ import annotations

from ..ir.graph import Model
from .equalization.scaling import scaled
from .plan.equalization import Equalization
from .simplify import simplify


def equalized_float(model: Model, equalization: Equalization) -> Model:
    """Return a float model as it was before it was quantized with these factors; what it computes is the model's own."""
    simple, _ = simplify(model)
    return scaled(simple, equalization.factors, exact=True) if equalization else simple
