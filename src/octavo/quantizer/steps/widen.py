"""Give activations 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...ir.identity import TensorId
from ..choices import Choices
from ..planner import Planned, Planner
from .evidence import Evidence


def propose(planned: Planned, planner: Planner, names: Mapping[TensorId, str]) -> Choices | None:
    """Return choices with 16 bits for those of some activations that their targets take, with who asks; None for none."""
    return _with_wide(planned.choices, {name: names[name] for name in _able(planned, planner, names)})


def propose_worst(planned: Planned, evidence: Evidence, count: int) -> Choices | None:
    """Return choices with 16 bits for as many activations, those first whose rounding to 8 bits costs the outputs most."""
    referee = evidence.referee(planned.plan)
    if referee is None:
        return None
    effects = referee.effects(referee.rounding(planned.plan))
    ranked = sorted(effects, key=lambda name: (-effects[name], name))
    chosen = _able(planned, evidence.planner, ranked)[:count]
    return _with_wide(planned.choices, dict.fromkeys(chosen, "wide_activations of the recipe"))


def _able(planned: Planned, planner: Planner, names: Iterable[TensorId]) -> list[TensorId]:
    """Return the activations of which nobody says anything, and which their targets take in 16 bits."""
    supports = [(layer, planner.support(layer)) for layer in planned.plan.layers]
    narrow = {
        name
        for layer, support in supports
        if support is None or "int16" not in support.activations
        for name in (layer.output, *layer.inputs)
    }
    asked = planned.choices.asked
    return [name for name in names if name not in narrow and name not in asked]


def _with_wide(choices: Choices, names: Mapping[TensorId, str]) -> Choices | None:
    return replace(choices, wide_activations={**choices.wide_activations, **names}) if names else None
