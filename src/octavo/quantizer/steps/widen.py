"""Give as many activations 16 bits as the recipe wants: those whose rounding still costs most behind what other steps did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from ...ir.identity import TensorId
from ...target.tensor_support import TensorSupport
from ..choices import Choices
from ..planner import Planned, Planner
from ..recipe import Recipe
from ..request import Request
from .evidence import Evidence
from .step import Step

_WIDE = TensorSupport(dtypes=("int16",))


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenSome(Step):
    """Some activations of 16 bits: unless that loses, for somebody wants them."""

    name: ClassVar = "widen some"
    is_presumed: ClassVar = True
    count: int

    @property
    def detail(self) -> str:
        """How many are wanted."""
        return f"{self.count} activations of 16 bits"

    @classmethod
    def of(cls, recipe: Recipe) -> list[WidenSome]:
        """Return it where a recipe wants any."""
        return [cls(count=recipe.wide_activations)] if recipe.wide_activations else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with 16 bits for as many, but None where an op would be float for them."""
        referee = evidence.referee(planned.plan)
        if referee is None:
            return None
        effects = evidence.effects(referee, planned.plan)
        ranked = sorted(effects, key=lambda name: (-effects[name], name))
        chosen = _able(planned, evidence.planner, ranked)[: self.count]
        wide = Request(who="wide_activations of the recipe", tensor=_WIDE)
        found = planned.choices.uncorrected.with_more(Choices(requests=dict.fromkeys(chosen, wide)))
        is_fewer = len(evidence.planner.planned(found).plan.layers) < len(planned.plan.layers)
        return None if is_fewer or not chosen else found


def _able(planned: Planned, planner: Planner, names: Iterable[TensorId]) -> list[TensorId]:
    """Return the activations of which nobody says anything, and which their targets take in 16 bits."""
    supports = [(layer, planner.support(layer)) for layer in planned.plan.layers]
    narrow = {
        name
        for layer, support in supports
        if support is None or "int16" not in support.activations
        for name in (layer.output, *layer.inputs)
    }
    return [name for name in names if name not in narrow and name not in planned.choices.requests]
