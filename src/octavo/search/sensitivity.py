"""Which activations the outputs feel most for what keeping them float costs: by simulation, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from ..graph import Model
from ..graph.dataflow import DataflowView, static_shape
from ..identity import TensorId
from ..pipeline import explain
from ..quantize import QuantizationPlan, QuantizedModel, equalized_float
from ..simulation import Simulation
from ..simulation.ranges import RangeTuning
from ..target_choice import resolve_target
from .cost import cycles_of

Samples = Sequence[Sequence[npt.NDArray[Any]]]
_WORTH = 0.9
"""An estimator must leave less than this share of the error to be taken in place of the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """What simulation tells before anything is measured.

    Parameters
    ----------
    estimator
        The range estimator with which the outputs are off least; None for the recipe's.
    ranges
        With which they are off less still.
    order
        The activations, those first whose staying float brings most for what it costs.
    gains
        What each brings: power of the error at the worst output, as a share of its power.
    """

    estimator: str | None
    ranges: Mapping[TensorId, tuple[float, float]]
    order: tuple[TensorId, ...]
    gains: Mapping[TensorId, float]

    @property
    def reasons(self) -> dict[TensorId, str]:
        """Why each is to stay float."""
        return {name: f"the search keeps it float: {_described(gain)}" for name, gain in self.gains.items()}

    def count_for(self, share: float) -> int:
        """Return how many must stay float for this share of the error to be left; 1 at least, and not all."""
        gains = [min(self.gains[name], 1.0) for name in self.order]
        left, total = sum(gains), sum(gains)
        for count, gain in enumerate(gains, 1):
            left -= gain
            if left <= share * total:
                return max(1, min(count, len(gains) - 1))
        return max(1, len(gains) - 1)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "estimator": self.estimator,
            "ranges": {str(name): list(ends) for name, ends in self.ranges.items()},
            "gains": {str(name): self.gains[name] if math.isfinite(self.gains[name]) else None for name in self.order},
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> Sensitivity:
        """Return what `to_json` made plain."""
        gains = {TensorId(name): math.inf if gain is None else float(gain) for name, gain in value["gains"].items()}
        ranges = {TensorId(name): (float(low), float(high)) for name, (low, high) in value["ranges"].items()}
        return Sensitivity(estimator=value["estimator"], ranges=ranges, order=tuple(gains), gains=gains)


def sensitivity_of(
    model: Model, quantized: QuantizedModel, others: Mapping[str, QuantizationPlan], samples: Samples
) -> Sensitivity:
    """Return what the outputs of a model feel.

    Parameters
    ----------
    quantized
        The model by its recipe.
    others
        Plans by other range estimators: what they make of activations is tried with the weights of `quantized`.
    samples
        As the profile keeps them: the first few of them are looked at.
    """
    simple = equalized_float(model, quantized.plan.equalization)
    try:
        simulation = Simulation(simple, quantized.plan, samples, resolve_target(None))
    except NotImplementedError:  # nothing can be seen between its steps
        return Sensitivity(estimator=None, ranges={}, order=(), gains={})
    noises = {name: simulation.together(plan.activations, simulation.weights) for name, plan in others.items()}
    own = simulation.together(quantized.plan.activations, simulation.weights)
    best = min(noises, key=lambda name: noises[name], default=None)
    estimator = best if best is not None and noises[best] < _WORTH * own else None
    plan = quantized.plan if estimator is None else others[estimator]
    effects = simulation.effects(plan.activations)
    ranges, effects = RangeTuning(simulation=simulation, plan=plan, effects=effects).run()
    gains, of_weights = dict(effects.activations), simulation.weight_effects()
    costs = dict.fromkeys(gains, 0.0)
    cycles = cycles_of(explain(quantized))
    view = DataflowView(simple.module["main"])
    sizes = {binding.var.name: prod(static_shape(binding.var) or ()) for binding in view.bindings}
    for layer in plan.layers:
        weights = of_weights.get(layer.output, 0.0)
        for name in dict.fromkeys(layer.inputs):
            if name in gains:
                gains[name] += weights
                costs[name] += cycles.more_in_float(str(layer.output))
    for name in costs:
        costs[name] += cycles.moved(sizes.get(str(name), 0))
    order = sorted(gains, key=lambda name: (-gains[name] / max(costs[name], 1.0), str(name)))
    return Sensitivity(estimator=estimator, ranges=ranges, order=tuple(order), gains=gains)


def _described(gain: float) -> str:
    return (
        "rounding it ruins the outputs"
        if not gain < 1
        else f"rounding it alone leaves {-10 * math.log10(max(gain, 1e-30)):.1f} dB"
    )
