"""Give an activation 16 bits where all around it take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..choices import Choices
from ..constraints import Request
from ..plan import QuantizationPlan
from ..planner import Planned
from ..ranges import QuantScheme
from ..ranges.of_params import range_of, scheme_of
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenTensor(Step):
    """An activation, with its range, and those that must have its width; no recipe asks for it."""

    name: ClassVar = "widen"
    tensor: TensorId

    @property
    def detail(self) -> str:
        """Which."""
        return self.tensor

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; None where an op around one takes no 16 bits, or it has them."""
        plan = planned.plan
        names = _with_neighbours(plan, plan.sharing(self.tensor))
        around = [layer for layer in plan.layers if not names.isdisjoint((layer.output, *layer.inputs))]
        supports = [evidence.planner.support(layer) for layer in around]
        able = all(support is not None and "int16" in support.activations for support in supports)
        if not able or any(plan.activations[name].dtype == "int16" for name in plan.sharing(self.tensor)):
            return None
        asked = {str(name): Request(who="a remedy", tensor=_wide(plan.activations[name])) for name in sorted(names)}
        return planned.choices.with_more(Choices(requests=asked))


def _wide(params: QuantParams) -> QuantParams:
    """Return parameters of 16 bits for the same range."""
    scheme = QuantScheme(dtype="int16", symmetric=True, power_of_two=scheme_of(params).power_of_two)
    return scheme.params(*range_of(params))


def _with_neighbours(plan: QuantizationPlan, names: tuple[TensorId, ...]) -> set[TensorId]:
    """Return activations with those that have their width: what ops but products with weights read and make beside them."""
    found, count = set(names), 0
    while count < len(found):
        count = len(found)
        for layer in plan.layers:
            around = (layer.output, *layer.inputs)
            if layer.weight is None and not found.isdisjoint(around):
                found.update(name for name in around if name in plan.activations)
    return found
