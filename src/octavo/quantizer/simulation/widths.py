"""Which weights keep 8 bits where others have fewer: by simulation, those that cost the outputs most for their number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...numerics.arrays import Samples
from ..equalized_float import equalized_float
from ..plan.plan import QuantizationPlan
from ..recipe import WEIGHT_BITS, Recipe
from ..remedies import Remedies
from ..weights.widths import usual_width
from .simulation import Simulation


def plain_recipe(recipe: Recipe) -> Recipe | None:
    """Return a recipe by which a model shows which weights cost most; None where none are to keep 8 bits."""
    if not recipe.wide_weights or usual_width(recipe) == WEIGHT_BITS:
        return None
    return replace(recipe, wide_weights=0.0, wide_activations=0, weight_rounding="nearest", bias_correction=False, min_sqnr=None)


def wide_weights(model: Model, plan: QuantizationPlan, recipe: Recipe, *, samples: Samples, target: ResolvedTarget) -> Remedies:
    """Return the weights that keep 8 bits, no more than the recipe's share of all; none where nothing can be simulated.

    Parameters
    ----------
    plan
        By the recipe's `plain_recipe`.
    """
    try:
        simulation = Simulation(equalized_float(model, plan.equalization), plan, samples, target)
    except NotImplementedError:
        return Remedies()
    sizes = {name: values.size for name, values in plan.weight_values.items() if name in plan.weights}
    effects = {
        layer.weight: simulation.alone({}, [layer.output], few=True)
        for layer in plan.layers
        if layer.weight is not None and layer.output in simulation.weights
    }
    room = recipe.wide_weights * sum(sizes.values())
    found: dict[Any, str] = {}
    for name in sorted(effects, key=lambda each: (-effects[each] / sizes[each], each)):
        if sizes[name] <= room and effects[name]:
            room -= sizes[name]
            alone = f"{-10 * math.log10(effects[name]):.1f} dB"
            found[name] = f"its {sizes[name]} weights keep 8 bits: with fewer, and nothing else rounded, the outputs have {alone}"
    return Remedies(wide_weights=found)
