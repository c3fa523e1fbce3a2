"""Give tensors parameters that somebody names, in place of those that a plan has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from ...ir.identity import TensorId
from ...numerics import QuantParams
from ..choices import Choices
from ..planner import Planned
from ..request import Request
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class SetParams(Step):
    """Parameters of activations and weights, which are then rounded to nearest; no recipe asks for it.

    Parameters
    ----------
    tensor
        Whose they are: an activation, or the output of the layer whose weights these are.
    params
        None at all: what follows from those of a plan, biases, is made anew.
    """

    name: ClassVar = "parameters"
    tensor: TensorId
    params: Mapping[TensorId, QuantParams] = field(hash=False)

    @property
    def detail(self) -> str:
        """Of which tensor."""
        return self.tensor

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them."""
        asked = {str(name): Request(who="a remedy", tensor=each) for name, each in self.params.items()}
        found = planned.choices.with_more(Choices(requests=asked))
        values = {name: each for name, each in found.corrections.weight_values.items() if name not in self.params}
        return replace(found, corrections=replace(found.corrections, weight_values=values))
