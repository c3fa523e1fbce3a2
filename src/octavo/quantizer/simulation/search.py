"""What to change where a quantized model's outputs are too far off: ranges first, then what stays float. Chosen by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.identity import TensorId
from ...numerics.arrays import Samples
from ...runtime.heap import trim_heap
from ...target import ELEMENTWISE, ELEMENTWISE_PAIR
from ..choices import Choices, float_without_loss
from ..plan.plan import QuantizationPlan, QuantizedModel
from .ranges import RangeTuning
from .simulation import Effects, Simulation

Replan = Callable[[Choices], QuantizationPlan]
"""Returns the plan of the model with more choices."""

_MARGINS = (2.0, 4.0, 8.0)
"""The errors that are left add up to less than what is allowed by these factors: they are not quite independent."""
_MIN_GAIN_DB = 2.0
_MIN_SHARE = 0.002
"""Of the error that all activations make one by one: what makes less is rounded between a product and a function."""
_MAX_FLOAT = 0.5
"""Share of the activations that may stay float: with more it is no quantized model."""


def less_rounding(
    simple: Model,
    quantized: QuantizedModel,
    goal_db: float,
    replan: Replan,
    *,
    only_ranges: bool = False,
    samples: Samples,
    target: ResolvedTarget,
) -> Choices:
    """Return ranges, and activations that stay float, with which the worst output has a signal to noise ratio of `goal_db`.

    As few stay float as it takes; none where their rounding is not what costs it, or ranges alone are wanted: then those that
    bring it nearer, and none where it has `goal_db` as it is simulated.
    """
    try:
        is_centred = bool(quantized.plan.recipe.bias_correction)
        simulation = Simulation(simple, quantized.plan, samples, target, is_centred=is_centred)
    except NotImplementedError:  # nothing can be seen between its steps
        return Choices()
    search = _Search(simulation, quantized.plan, replan, 10 ** (-goal_db / 10), goal_db)
    found, size = search.ranges() if only_ranges else search.run(), simulation.state_bytes
    del search, simulation
    trim_heap(size)
    return found


def ranked_by_effect(simple: Model, quantized: QuantizedModel, *, samples: Samples, target: ResolvedTarget) -> list[TensorId]:
    """Return the activations of a quantized model, those first whose rounding alone costs the worst output most."""
    try:
        is_centred = bool(quantized.plan.recipe.bias_correction)
        simulation = Simulation(simple, quantized.plan, samples, target, is_centred=is_centred)
    except NotImplementedError:  # nothing can be seen between its steps
        return []
    effects, size = simulation.activation_effects(), simulation.state_bytes
    del simulation
    trim_heap(size)
    return sorted(effects, key=lambda name: (-effects[name], name))


@dataclass(slots=True)
class _Search:
    simulation: Simulation
    plan: QuantizationPlan
    replan: Replan
    goal: float
    goal_db: float
    effects: Effects = field(init=False)

    def ranges(self) -> Choices:
        """Return ranges alone."""
        noise = self._noise(self.plan)
        if noise <= self.goal:
            return Choices()
        effects = self.simulation.effects(together=noise)
        return Choices(ranges=RangeTuning(simulation=self.simulation, plan=self.plan, effects=effects).run()[0])

    def run(self) -> Choices:
        """Return ranges, and what stays float."""
        self.effects = self.simulation.effects()
        tuning = RangeTuning(simulation=self.simulation, plan=self.plan, effects=self.effects)
        tuned, plan = Choices(), self.plan
        if tuning.least <= self.goal:  # else something must stay float whatever ranges are, and it is what costs most
            ranges, self.effects = tuning.run()
            tuned = Choices(ranges=ranges)
            plan = self.replan(tuned) if tuned.ranges else self.plan
            if self._noise(plan) <= self.goal:
                return tuned
        tuned, plan = self._without_functions(tuned, plan)
        least = self._noise(plan)
        if least <= self.goal:
            return tuned
        found, noise = self._floats(tuned)
        return found if noise < least * 10 ** (-_MIN_GAIN_DB / 10) else tuned

    def _noise(self, plan: QuantizationPlan) -> float:
        layers = {layer.output for layer in plan.layers}
        return self.simulation.together(plan.activations, [name for name in self.simulation.weights if name in layers])

    def _without_functions(self, tuned: Choices, plan: QuantizationPlan) -> tuple[Choices, QuantizationPlan]:
        """Return what need not be rounded besides, and the plan: what lies between a product and a function of it.

        The product's kernel computes the function then, and no op becomes float: where one would, its operand stays rounded.
        """
        effects = self.effects.activations
        least = _MIN_SHARE * sum(min(effect, 1.0) for effect in effects.values())
        inputs = (
            layer.inputs[0] for layer in plan.layers if layer.op in (ELEMENTWISE, ELEMENTWISE_PAIR) and len(layer.inputs) == 1
        )
        chosen = {name: self._reason(effects[name]) for name in inputs if effects.get(name, 0.0) >= least}
        found = float_without_loss(chosen, tuned, plan, self.replan)
        return (tuned, plan) if found is None else (found, self.replan(found))

    # ------------------------------------------------------------------------------------------------------------- floats

    def _floats(self, tuned: Choices) -> tuple[Choices, float]:
        """Return what must stay float besides, and the noise that is left."""
        effects = self.effects.activations
        order = sorted(effects, key=lambda name: (-effects[name], name))
        of_weights = self.effects.weights
        best, least = tuned, math.inf
        tried: set[int] = set()
        for margin in _MARGINS:
            left = max(self.goal / margin, of_weights)
            count = next(count for count in range(len(order) + 1) if sum(effects[name] for name in order[count:]) <= left)
            count = min(count, max(1, int(_MAX_FLOAT * len(order))))
            if count in tried:
                continue
            tried.add(count)
            chosen = {name: self._reason(effects[name]) for name in order[:count]}
            found = tuned.with_more(Choices(float_tensors=chosen))
            noise = self._noise(self.replan(found))
            if noise < least:
                best, least = found, noise
            if noise <= self.goal:
                break
        return best, least

    def _reason(self, effect: float) -> str:
        alone = "makes of the outputs what is not finite" if math.isinf(effect) else f"leaves {-10 * math.log10(effect):.1f} dB"
        return f"rounding it to 8 bits, and nothing else, {alone}; {self.goal_db:g} dB were asked for"
