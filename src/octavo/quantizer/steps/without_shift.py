"""Take a correction of a bias back that does harm."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class WithoutShift(Step):
    """A layer whose bias is the float one's; no recipe asks for it."""

    name: ClassVar = "without correction"
    layer: TensorId

    @property
    def detail(self) -> str:
        """Which."""
        return self.layer

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices without that correction."""
        known = planned.choices.corrections
        shifts = {name: each for name, each in known.bias_shifts.items() if name != self.layer}
        return replace(planned.choices, corrections=replace(known, bias_shifts=shifts))
