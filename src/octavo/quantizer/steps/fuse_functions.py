"""Compute functions in the kernels of the products that they read, where rounding what lies between costs most for their time.

Else the sums are rounded to 8 bits before the function, a table, gives 8 bits of its own. Nothing becomes float here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from ...compiler.explanation import model_cycles
from ...ir.graph.dataflow import DataflowView
from ...ir.identity import TensorId
from ..choices import Choices, float_without_loss
from ..planner import Planned
from ..price import function_cycles
from ..recipe import Recipe
from ..referee.score import said_alone
from .step import Evidence, Step

_SHARE = 0.05
"""Of the model's modelled time: more than that no functions may take."""
_MIN_SHARE = 0.002
"""Of the error that all such roundings make one by one: what makes less is not worth its time."""
_MIN_EFFECT = 1e-4
"""Of the worst output's power: what all of them make together; outputs within 40 dB have little to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FuseFunctions(Step):
    """Products' results that are not rounded before a function of them."""

    name: ClassVar = "fuse functions"

    @classmethod
    def of(cls, recipe: Recipe) -> list[FuseFunctions]:
        """Return it, unless bare rounding is wanted."""
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        """Return choices with them; where an op would become float for it, what that reads stays rounded."""
        planner, named = evidence.planner, planned.named
        supports = {layer.output: planner.support(layer) for layer in planned.plan.layers if layer.output not in named}
        able = [name for name, support in supports.items() if support is not None and support.float_function]
        chosen = _worth_their_time(planned, able, evidence) if able else {}
        return float_without_loss(chosen, planned.choices.uncorrected, planned.plan, lambda each: planner.planned(each).plan)


def _worth_their_time(planned: Planned, able: Collection[TensorId], evidence: Evidence) -> dict[TensorId, str]:
    """Return which of these products' results are best not rounded before a function of them, each with the reason."""
    plan, floats = planned.plan, evidence.planner.form(planned.choices.equalization)
    view = DataflowView(floats.exact.module["main"])
    cycles = function_cycles(view, plan.layers, [name for name in able if name in plan.activations])
    referee = evidence.runs.referee(plan) if cycles else None
    if referee is None:
        return {}
    effects = referee.effects(referee.rounding(plan), list(cycles))
    total = sum(min(effect, 1.0) for effect in effects.values())
    if total < _MIN_EFFECT:
        return {}
    room = _SHARE * model_cycles(view)
    found: dict[TensorId, str] = {}
    for name in sorted(cycles, key=lambda name: (-effects[name] / cycles[name], name)):
        if cycles[name] <= room and effects[name] >= _MIN_SHARE * total:
            room -= cycles[name]
            found[name] = said_alone(effects[name])
    return found
