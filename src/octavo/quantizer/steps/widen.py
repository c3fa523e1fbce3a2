"""Give activations 16 bits."""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.identity import TensorId
from ...target.tensor_support import TensorSupport
from ..choices import Choices
from ..planner import Planned, Planner
from ..request import Request
from .evidence import Evidence


def propose(planned: Planned, evidence: Evidence, count: int) -> Choices | None:
    """Return choices with 16 bits for as many activations, those first whose rounding to 8 bits costs the outputs most."""
    referee = evidence.referee(planned.plan)
    if referee is None:
        return None
    effects = referee.effects(referee.rounding(planned.plan))
    ranked = sorted(effects, key=lambda name: (-effects[name], name))
    chosen = _able(planned, evidence.planner, ranked)[:count]
    wide = Request(who="wide_activations of the recipe", tensor=TensorSupport(dtypes=("int16",)))
    return planned.choices.with_more(Choices(requests=dict.fromkeys(chosen, wide))) if chosen else None


def _able(planned: Planned, planner: Planner, names: Iterable[TensorId]) -> list[TensorId]:
    """Return the activations of which nobody says anything, and which their targets take in 16 bits."""
    supports = [(layer, planner.support(layer)) for layer in planned.plan.layers]
    narrow = {
        name
        for layer, support in supports
        if support is None or "int16" not in support.activations
        for name in (layer.output, *layer.inputs)
    }
    return [name for name in names if name not in narrow and name not in planned.choices.requests]
