"""Compute functions in the kernels of the products that they read, where rounding what lies between costs most."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ..choices import Choices, float_without_loss
from ..planner import Planned
from ..recipe import Recipe
from .evidence import Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseFunctions:
    """Products' results that are not rounded before a function of them."""

    name: ClassVar = "fuse functions"
    below_db: float = inf

    @property
    def detail(self) -> str:
        """Nothing more."""
        return ""

    @classmethod
    def of(cls, recipe: Recipe) -> list[FuseFunctions]:
        """Return it, unless bare rounding is wanted."""
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; where an op would become float for it, what that reads stays rounded."""
        planner, named = evidence.planner, planned.named
        supports = {layer.output: planner.support(layer) for layer in planned.plan.layers if layer.output not in named}
        able = [name for name, support in supports.items() if support is not None and support.float_function]
        chosen = evidence.runs.fused_functions(evidence.exact, planned.quantized, able) if able else {}
        return float_without_loss(chosen, planned.choices.uncorrected, planned.plan, lambda each: planner.planned(each).plan)
