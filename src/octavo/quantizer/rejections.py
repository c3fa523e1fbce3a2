"""Which placed layers their targets do not take after all, and why: they go to the next target, or stay float; and which float
ops run in integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tvm.relax import Var

from ..ir.graph.rules import Claims
from ..ir.identity import TensorId
from .constraints import TensorConstraints
from .placement import Declined, Layer, Placement, together
from .plan import FloatOp
from .weights import WeightParameters


@dataclass(kw_only=True, slots=True)
class Rejections:
    """What is known after some placements."""

    last: str
    """Name of the last target: what it does not take stays float."""
    declined: Declined = field(default_factory=dict[Var, dict[str, str]])
    """By an op's variable why targets before the last do not take it."""
    rejected: dict[Var, str] = field(default_factory=dict[Var, str])
    """By its result why a layer stays float."""
    placement: Placement | None = None
    """The last one; None where more is rejected since."""

    def refuse(self, layer: Layer, constraints: TensorConstraints, weights: WeightParameters) -> str | None:
        """Return why a layer stays float beside those that were kept before; None where it is kept."""
        if layer.output in self.rejected:
            return self.rejected[layer.output]
        reason = constraints.add(layer, weights.refuse)
        return None if reason is None else self._note(layer, reason)

    @property
    def count(self) -> int:
        """How many ops are declined: those are to be placed anew, for another target."""
        return sum(map(len, self.declined.values()))

    def reject(self, placement: Placement, reasons: Mapping[Var, str]) -> bool:
        """Note which layers of a placement cannot be, by their results; return whether there are any."""
        for layer in placement.layers:
            if layer.output in reasons:
                reason = self._note(layer, reasons[layer.output])
                if layer.taker == self.last:
                    self.rejected[layer.output] = reason
        if reasons:
            self.placement = None
        return bool(reasons)

    def _note(self, layer: Layer, reason: str) -> str:
        if layer.taker == self.last:
            return together({**self.declined.get(layer.core, {}), layer.taker: reason})
        self.declined.setdefault(layer.core, {})[layer.taker] = reason
        return reason


def rejected_layers(placement: Placement, claims: Claims) -> dict[Var, str]:
    """Return the outputs of the layers that no integer op takes, each with the reason of the rule that came closest."""
    taken = _taken(claims)
    reasons = claims.rejections
    return {
        layer.output: next((reasons[var.name].reason for var in layer.members if var.name in reasons), "no rule takes it")
        for layer in placement.layers
        # Rules see normalizations rewritten, so the core's own variable may be gone; only the output is sure to be there.
        if layer.output.name not in taken
    }


def split_enclosed(float_ops: Iterable[FloatOp], claims: Claims) -> tuple[tuple[FloatOp, ...], tuple[TensorId, ...]]:
    """Return the ops that stay float, and the results of those that run in integers because all around them is quantized."""
    taken, ops = _taken(claims), tuple(float_ops)
    enclosed = tuple(op.tensor for op in ops if op.tensor in taken)
    return tuple(op for op in ops if op.tensor not in taken), enclosed


def _taken(claims: Claims) -> set[str]:
    return {var.name for region in claims.regions.values() for var in region.members}
