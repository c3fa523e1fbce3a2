"""Give as many activations 16 bits, and weights 8, as the recipe wants: those whose rounding costs most."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.identity import TensorId
from ...target.tensor_support import TensorSupport
from ..choices import Choices
from ..planner import Planned, Planner
from ..recipe import WEIGHT_BITS, Recipe
from ..request import Request
from ..weights import usual_width
from .step import Evidence, Step

_WIDE = TensorSupport(dtypes=("int16",))


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenSome(Step):
    """Some activations of 16 bits, by what other steps leave: unless that loses, for somebody wants them."""

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
        referee = evidence.runs.referee(planned.plan)
        effects = referee.effects(referee.rounding(planned.plan))
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


def plain_recipe(recipe: Recipe) -> Recipe | None:
    """Return a recipe by which a model shows which weights cost most; None where none are to keep 8 bits."""
    if not recipe.wide_weights or usual_width(recipe) == WEIGHT_BITS:
        return None
    return replace(recipe, wide_weights=0.0, wide_activations=0, weight_rounding="nearest", bias_correction=False, min_sqnr=None)


def weights_to_widen(plain: Planned, evidence: Evidence, share: float) -> Choices:
    """Return choices with weights that keep 8 bits, no more than a share of all; the model is by the `plain_recipe`."""
    plan = plain.plan
    try:
        referee = evidence.runs.referee(plan)
    except NotImplementedError:
        return Choices()
    sizes = {name: values.size for name, values in plan.weight_values.items() if name in plan.weights}
    weights = {layer.output: layer.weight for layer in plan.layers if layer.weight is not None}
    of_layers = referee.layer_effects(referee.rounding(plan), weights)
    effects = {weights[output]: effect for output, effect in of_layers.items()}
    room = share * sum(sizes.values())
    found: dict[TensorId, str] = {}
    for name in sorted(effects, key=lambda each: (-effects[each] / sizes[each], each)):
        if sizes[name] <= room and effects[name]:
            room -= sizes[name]
            alone = f"{-10 * math.log10(effects[name]):.1f} dB"
            found[name] = f"its {sizes[name]} weights keep 8 bits: with fewer, and nothing else rounded, the outputs have {alone}"
    return Choices(wide_weights=found)
