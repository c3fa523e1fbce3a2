"""Quantize what products read per row when run: a static range must hold for all rows, and each row's own is narrower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..choices import Choices
from ..placement import reads_rows
from ..planner import Planned
from ..recipe import Recipe
from .evidence import Evidence
from .step import Step

_REASON = "each row has the scale of its own values"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerRow(Step):
    """Inputs of dense layers whose scale and zero point are found when the model runs, row by row.

    Parameters
    ----------
    products
        Whether products of two activations are among them: the rows of one, and the columns of the other.
    """

    name: ClassVar = "per row"
    min_gain_db: ClassVar = 1.0  # it costs time when run, and ops behind such a layer their integers
    products: bool = False

    @property
    def detail(self) -> str:
        """What it takes besides dense layers."""
        return "products of activations, too" if self.products else ""

    @classmethod
    def of(cls, recipe: Recipe) -> list[PerRow]:
        """Return both, unless nothing is to be corrected."""
        return [cls(products=each) for each in (False, True)] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with all products per row that can be, but those of which somebody says something.

        None with `products` where there are none: dense layers alone are what the other step proposes.
        """
        named = planned.named
        found = [
            layer
            for layer in planned.plan.layers
            if not layer.reads_reals
            and (layer.weight is not None or self.products)
            and reads_rows(evidence.planner.support(layer))
            and named.isdisjoint((*layer.inputs, layer.output))
        ]
        if not found or (self.products and all(layer.weight is not None for layer in found)):
            return None
        per_row = dict.fromkeys((layer.output for layer in found), _REASON)
        return planned.choices.with_more(Choices(per_row=per_row)).uncorrected
