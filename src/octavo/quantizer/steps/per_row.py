"""Quantize what dense layers read per row when run: a static range must hold for all rows, and each row's own is narrower."""

from __future__ import annotations

from ..choices import Choices
from ..placement import reads_rows
from ..planner import Planned
from .evidence import Evidence

_REASON = "each row has the scale of its own values"


def propose(planned: Planned, evidence: Evidence) -> Choices | None:
    """Return choices with all dense layers per row that can be, but those of which somebody says something; None for no more."""
    named = planned.named
    found = {
        layer.output: _REASON
        for layer in planned.plan.layers
        if not layer.per_row
        and layer.weight is not None
        and reads_rows(evidence.planner.support(layer))
        and named.isdisjoint((*layer.inputs, layer.output))
    }
    return Choices(per_row=found).with_more(planned.choices).uncorrected if found else None
