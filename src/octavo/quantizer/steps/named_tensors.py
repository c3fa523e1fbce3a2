"""Steps for single tensors that somebody names; no recipe asks for any: other parameters, 16 bits, none, no correction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..choices import Choices
from ..plan import QuantizationPlan
from ..planner import Planned
from ..ranges import QuantScheme, range_of
from ..request import Request
from .step import Evidence, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfTensor(Step):
    tensor: TensorId

    @property
    def detail(self) -> str:
        """Of which tensor."""
        return self.tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class SetParams(_OfTensor):
    """Parameters of activations and weights, which are then rounded to nearest; none at all: biases are made anew of the plan's.

    The tensor whose they are is an activation, or the output of the layer whose weights these are.
    """

    name: ClassVar = "parameters"
    params: Mapping[TensorId, QuantParams] = field(hash=False)

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them."""
        found = _with_params(planned.choices, self.params)
        values = {name: each for name, each in found.corrections.weight_values.items() if name not in self.params}
        return replace(found, corrections=replace(found.corrections, weight_values=values))


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenTensor(_OfTensor):
    """An activation, with its range, and those that must have its width."""

    name: ClassVar = "widen"

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; None where an op around one takes no 16 bits, or it has them."""
        plan = planned.plan
        names = _with_neighbours(plan, plan.sharing(self.tensor))
        around = [layer for layer in plan.layers if not names.isdisjoint((layer.output, *layer.inputs))]
        supports = [evidence.planner.support(layer) for layer in around]
        able = all(support is not None and "int16" in support.activations for support in supports)
        if not able or any(plan.activations[name].dtype == "int16" for name in plan.sharing(self.tensor)):
            return None
        return _with_params(planned.choices, {name: _wide(plan.activations[name]) for name in sorted(names)})


def _with_params(choices: Choices, params: Mapping[TensorId, QuantParams]) -> Choices:
    asked = {str(name): Request(who="a remedy", tensor=each) for name, each in params.items()}
    return choices.with_more(Choices(requests=asked))


def _wide(params: QuantParams) -> QuantParams:
    scheme = QuantScheme(dtype="int16", symmetric=True, power_of_two=QuantScheme.of(params).power_of_two)
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


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTensors(Step):
    """These activations, for reasons that make no two of them differ."""

    name: ClassVar = "float tensors"
    names: tuple[TensorId, ...]
    reasons: tuple[str, ...] = field(compare=False)

    @property
    def detail(self) -> str:
        """Which."""
        return ", ".join(self.names)

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them float."""
        floats = dict(zip(self.names, self.reasons, strict=True))
        return planned.choices.with_floats(floats, planned.plan).uncorrected


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutShift(_OfTensor):
    """A layer, by its output, whose bias is the float one's."""

    name: ClassVar = "without correction"

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices without that correction."""
        known = planned.choices.corrections
        shifts = {name: each for name, each in known.bias_shifts.items() if name != self.tensor}
        return replace(planned.choices, corrections=replace(known, bias_shifts=shifts))
