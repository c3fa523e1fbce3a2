"""Compute functions in the kernels of the products that they read, where rounding what lies between costs most."""

from __future__ import annotations

from ..choices import Choices, float_without_loss
from ..planner import Planned
from .evidence import Evidence


def propose(planned: Planned, evidence: Evidence) -> Choices | None:
    """Return choices with which some products' results are not rounded before a function of them.

    Where an op would become float for it, what that reads stays rounded.
    """
    planner, named = evidence.planner, planned.named
    supports = {layer.output: planner.support(layer) for layer in planned.plan.layers if layer.output not in named}
    able = [name for name, support in supports.items() if support is not None and support.float_function]
    chosen = evidence.runs.fused_functions(evidence.exact, planned.quantized, able) if able else {}
    return float_without_loss(chosen, planned.choices.uncorrected, planned.plan, lambda each: planner.planned(each).plan)
