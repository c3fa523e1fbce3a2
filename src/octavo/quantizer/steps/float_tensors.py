"""Leave activations float that somebody names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned
from .evidence import Evidence
from .step import Step


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatTensors(Step):
    """These activations, for reasons that make no two of them differ; no recipe asks for it."""

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
        return planned.choices.with_more(Choices(float_tensors=floats)).uncorrected
