"""Which activations the outputs feel most for what keeping them float costs: before any candidate is measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from ...compiler.target_choice import resolve_target
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ...numerics import QuantParams
from ...numerics.arrays import Samples
from ...quantizer.compile import explain
from ..equalized_float import equalized_float
from ..plan.equalization import Equalization
from ..plan.plan import QuantizationPlan, QuantizedModel
from ..ranges.of_params import scheme_of
from ..referee import Referee, RoundedProgram
from ..steps import tune_ranges
from .bench import cycles_of
from .budget import Budget, Expected

_WORTH = 0.9
"""An estimator must leave less than this share of the error to be taken in place of the recipe's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sensitivity:
    """What the effects of single roundings tell before any candidate is measured.

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


_NOTHING = Sensitivity(estimator=None, ranges={}, order=(), gains={})
_UNSEEN = "which activations the outputs feel was not measured"
_TRIES, _TRIES_ON_ALL = 12, 3
"""Ranges of a tensor that tuning tries, on few samples and on all: each runs half of the model on average."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityStage:
    """Finds what the outputs of a model feel, or as much of it as there is time for: least for the order of the activations.

    Parameters
    ----------
    samples
        As the profile keeps them: the first few of them are looked at.
    expected, after
        What steps take, and what must be left in the end: time to try what is found.
    check
        Called between steps: it may raise.
    plan_by
        Quantizes the model by another range estimator: what that makes of activations is tried with the same weights.
    """

    model: Model
    samples: Samples
    budget: Budget
    expected: Expected
    after: float
    check: Callable[[], None]
    plan_by: Callable[[str], QuantizationPlan]

    def run(self, quantized: QuantizedModel, estimators: Sequence[str]) -> Sensitivity:
        """Return what the outputs of a quantized model feel, with the ranges of the best of these estimators and the recipe's."""
        after = self.after
        # To build the referee's program takes about as long as to compile the float model.
        if not self.budget.allows(after + self.expected.measuring, _UNSEEN):
            return _NOTHING
        simple = equalized_float(self.model, quantized.plan.equalization)
        first = replace(quantized.plan, equalization=Equalization())  # of the model whose channels are divided
        try:
            referee = Referee(RoundedProgram(simple, [first], resolve_target(None)), self.samples)
        except NotImplementedError:  # nothing can be seen between its steps
            return _NOTHING
        self.check()
        begun = self.budget.clock()
        rounding = referee.rounding(first)
        own = referee.score_of(rounding, few=True).error
        once = self.budget.clock() - begun
        weights = {layer.output for layer in quantized.plan.layers if layer.weight is not None}
        # Single ones: half of the model on average. Then all together.
        each = (len(rounding.activations) + len(weights) + 4) * once / 2
        if not self.budget.allows(after + each, _UNSEEN):
            return _NOTHING
        plans = self._plans(estimators, after + each, once)
        # What other estimators make of activations is tried with the same weights.
        roundings = {name: rounding.with_params(_alike(plan, first)) for name, plan in plans.items()}
        scores = referee.scores_of(list(roundings.values()), few=True)
        noises = {name: score.error for name, score in zip(roundings, scores, strict=True)}
        best = min(noises, key=lambda name: noises[name], default=None)
        estimator = best if best is not None and noises[best] < _WORTH * own else None
        plan = first
        if estimator is not None:
            plan, rounding = replace(plan, activations=plan.activations | _alike(plans[estimator], plan)), roundings[estimator]
        self.check()
        effects = referee.effects(rounding)
        self.check()
        tries = _TRIES + _TRIES_ON_ALL * len(self.samples) / len(referee.few)
        seconds = len(tune_ranges.costly(plan, effects)) * once * (1 + tries / 2)
        ranges: Mapping[TensorId, tuple[float, float]] = {}
        if self.budget.allows(after + seconds, "ranges were not tuned"):
            ranges = tune_ranges.better_ranges(plan, referee, effects)
            tuned = {name: scheme_of(plan.activations[name]).params(*ends) for name, ends in ranges.items() if name in effects}
            effects |= referee.effects(rounding.with_params(tuned), tuned)
        gains = _gains(referee.layer_effects(rounding, weights), simple, quantized, effects)
        return Sensitivity(estimator=estimator, ranges=ranges, order=tuple(gains), gains=gains)

    def _plans(self, names: Sequence[str], after: float, once: float) -> dict[str, QuantizationPlan]:
        found: dict[str, QuantizationPlan] = {}
        for name in names:
            if self.budget.allows(after + self.expected.quantizing + once, f"the range estimator {name} was not tried"):
                found[name] = self.plan_by(name)
                self.check()
        return found


def _alike(plan: QuantizationPlan, other: QuantizationPlan) -> dict[TensorId, QuantParams]:
    """Return the parameters that a plan has of the activations of another one."""
    return {name: params for name, params in plan.activations.items() if name in other.activations}


def _gains(
    of_weights: Mapping[TensorId, float], simple: Model, quantized: QuantizedModel, effects: Mapping[TensorId, float]
) -> dict[TensorId, float]:
    """Return what it brings to keep activations float, those first that bring most for what they cost."""
    gains = dict(effects)
    costs = dict.fromkeys(gains, 0.0)
    cycles = cycles_of(explain(quantized))
    view = DataflowView(simple.module["main"])
    sizes = {binding.var.name: prod(static_shape(binding.var) or ()) for binding in view.bindings}
    for layer in quantized.plan.layers:
        weights = of_weights.get(layer.output, 0.0)
        for name in dict.fromkeys(layer.inputs):
            if name in gains:
                gains[name] += weights
                costs[name] += cycles.more_in_float(str(layer.output))
    for name in costs:
        costs[name] += cycles.extra_float_traffic(sizes.get(str(name), 0))
    order = sorted(gains, key=lambda name: (-gains[name] / max(costs[name], 1.0), str(name)))
    return {name: gains[name] for name in order}


def _described(gain: float) -> str:
    return (
        "rounding it ruins the outputs"
        if not gain < 1
        else f"rounding it alone leaves {-10 * math.log10(max(gain, 1e-30)):.1f} dB"
    )
