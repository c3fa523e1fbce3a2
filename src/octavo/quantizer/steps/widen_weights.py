"""Which weights keep 8 bits where others have fewer: those that cost the outputs most for their number."""

from __future__ import annotations

import math
from dataclasses import replace

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from ..recipe import WEIGHT_BITS, Recipe
from ..weights import usual_width
from .evidence import Evidence


def plain_recipe(recipe: Recipe) -> Recipe | None:
    """Return a recipe by which a model shows which weights cost most; None where none are to keep 8 bits."""
    if not recipe.wide_weights or usual_width(recipe) == WEIGHT_BITS:
        return None
    return replace(recipe, wide_weights=0.0, wide_activations=0, weight_rounding="nearest", bias_correction=False, min_sqnr=None)


def propose(plain: Planned, evidence: Evidence, share: float) -> Choices:
    """Return choices with weights that keep 8 bits, no more than a share of all.

    Parameters
    ----------
    plain
        By the recipe's `plain_recipe`.
    """
    plan, referee = plain.plan, evidence.referee(plain.plan)
    if referee is None:
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
