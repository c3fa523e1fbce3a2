"""Which activations the outputs feel most for what keeping them float costs: before any of it is tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ...compiler.explanation import FLOAT_BYTES, Explanation, memory_cycles
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ..plan.plan import QuantizationPlan
from ..referee import Referee
from ..referee.score import said_alone
from ..steps import FloatTensors


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Activations, those first whose staying float brings most for what it costs.

    Parameters
    ----------
    gains
        What each brings: power of the error at the worst output, as a share of its power.
    """

    gains: Mapping[TensorId, float]

    def __len__(self) -> int:
        """Return of how many it is."""
        return len(self.gains)

    def first(self, count: int) -> FloatTensors:
        """Return the step that leaves the first ones float."""
        return self.step(tuple(self.gains)[:count])

    def step(self, names: tuple[TensorId, ...]) -> FloatTensors:
        """Return the step that leaves some of them float, with the reasons."""
        reasons = tuple(f"the search keeps it float: {said_alone(self.gains[name])}" for name in names)
        return FloatTensors(names=names, reasons=reasons)

    def count_for(self, share: float) -> int:
        """Return how many must stay float for this share of the error to be left; 1 at least, and not all."""
        gains = [min(gain, 1.0) for gain in self.gains.values()]
        left, total = sum(gains), sum(gains)
        for count, gain in enumerate(gains, 1):
            left -= gain
            if left <= share * total:
                return max(1, min(count, len(gains) - 1))
        return max(1, len(gains) - 1)


def order_of(referee: Referee, plan: QuantizationPlan, exact: Model, explanation: Explanation) -> Order:
    """Return the activations of a plan by what they bring for what they cost.

    Parameters
    ----------
    exact
        The float model whose variables the plan's tensors are.
    explanation
        Of the plan's model.
    """
    rounding = referee.rounding(plan)
    gains = referee.effects(rounding)
    of_weights = referee.layer_effects(rounding, [layer.output for layer in plan.layers if layer.weight is not None])
    costs = dict.fromkeys(gains, 0.0)
    view = DataflowView(exact.module["main"])
    sizes = {binding.var.name: prod(static_shape(binding.var) or ()) for binding in view.bindings}
    for layer in plan.layers:
        made = [op for op in explanation.ops if layer.output in (op.tensor, op.core) and op.integer]
        more = sum(op.cycles(is_integer=False) - op.cycles(is_integer=True) for op in made[:1])
        for name in dict.fromkeys(layer.inputs):
            if name in gains:
                gains[name] += of_weights.get(layer.output, 0.0)
                costs[name] += more
    for name in costs:
        costs[name] += memory_cycles(sizes.get(str(name), 0) * (FLOAT_BYTES - 1))
    ordered = sorted(gains, key=lambda name: (-gains[name] / max(costs[name], 1.0), str(name)))
    return Order(gains={name: gains[name] for name in ordered})
