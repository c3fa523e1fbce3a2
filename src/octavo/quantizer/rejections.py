"""Which placed layers their targets do not take after all, and why: they go to the next target, or stay float; and which float
ops run in integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tvm.relax import Var

from ..ir.graph.rules import Claims
from ..ir.identity import TensorId
from .constraints import TensorConstraints
from .placement import Declined, Layer, Placement, together
from .plan import FloatOp
from .weights.weight_params import WeightParameters


@dataclass(kw_only=True, slots=True)
class Rejections:
    """What is known after some placements.

    Parameters
    ----------
    last
        Name of the last target: what it does not take stays float.
    declined
        By an op's variable why targets before the last do not take it.
    rejected
        By its result why a layer stays float.
    placement
        The last one; None where more is rejected since.
    is_changed
        Whether there are ops to be placed anew, for another target.
    """

    last: str
    declined: Declined = field(default_factory=dict[Var, dict[str, str]])
    rejected: dict[Var, str] = field(default_factory=dict[Var, str])
    placement: Placement | None = None
    is_changed: bool = False

    def beside(self, weights: WeightParameters, constraints: TensorConstraints) -> Callable[[Layer], str | None]:
        """Return what says why a layer stays float beside those that were kept before; where it says None it keeps the layer."""

        def refuse(layer: Layer) -> str | None:
            if layer.output in self.rejected:
                return self.rejected[layer.output]
            joined = constraints.joined(layer)
            reason = joined if isinstance(joined, str) else weights.refuse(layer)
            if isinstance(joined, str) or reason is not None:
                return self._note(layer, reason or "")
            constraints.add(joined)
            return None

        return refuse

    def take_changes(self) -> bool:
        """Return whether there are ops to be placed anew since this was asked last."""
        is_changed, self.is_changed = self.is_changed, False
        return is_changed

    def reject(self, placement: Placement, reasons: Mapping[Var, str]) -> bool:
        """Note which layers of a placement cannot be, by their results; return whether there are any."""
        for layer in placement.layers:
            if layer.output in reasons:
                reason = self._note(layer, reasons[layer.output])
                if layer.taker == self.last:
                    self.rejected[layer.output] = reason
        self.is_changed = False
        if reasons:
            self.placement = None
        return bool(reasons)

    def _note(self, layer: Layer, reason: str) -> str:
        if layer.taker == self.last:
            return together({**self.declined.get(layer.core, {}), layer.taker: reason})
        self.declined.setdefault(layer.core, {})[layer.taker] = reason
        self.is_changed = True
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


def split_enclosed(float_ops: Iterable[FloatOp], claims: Claims | None) -> tuple[tuple[FloatOp, ...], tuple[TensorId, ...]]:
    """Return the ops that stay float, and the results of those that run in integers because all around them is quantized."""
    taken = set[str]() if claims is None else _taken(claims)
    ops = tuple(float_ops)
    enclosed = tuple(op.tensor for op in ops if op.tensor in taken)
    return tuple(op for op in ops if op.tensor not in taken), enclosed


def _taken(claims: Claims) -> set[str]:
    return {var.name for region in claims.regions.values() for var in region.members}
