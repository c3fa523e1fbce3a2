"""Compute functions in the kernels of the products that they read, where rounding what lies between costs most for their time.

Else the sums are rounded to 8 bits before the function, a table, gives 8 bits of its own. Nothing becomes float here.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tvm.relax import Var

from ...compiler.explanation import model_cycles
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ...ir.qdq.matchers.elementwise.float_chain import chain_from
from ...ir.qdq.matchers.elementwise.function_tail import SLOW
from ...target import ELEMENTWISE
from ..choices import Choices, float_without_loss
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import Recipe
from .evidence import Evidence
from .step import Step

_SHARE = 0.05
"""Of the model's modelled time: more than that no functions may take."""
_OPERATIONS = 64
"""On single elements in a cycle of two 512-bit units, less what the table's pass over them would take."""
_MIN_SHARE = 0.002
"""Of the error that all such roundings make one by one: what makes less is not worth its time."""
_MIN_EFFECT = 1e-4
"""Of the worst output's power: what all of them make together; outputs within 40 dB have little to gain."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A product's result that only a function reads, and the modelled cycles that the function takes in the product's kernel."""

    name: TensorId
    cycles: float


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
        chosen = _worth_their_time(planned.plan, able, evidence) if able else {}
        return float_without_loss(chosen, planned.choices.uncorrected, planned.plan, lambda each: planner.planned(each).plan)


def _worth_their_time(plan: QuantizationPlan, able: Collection[TensorId], evidence: Evidence) -> dict[TensorId, str]:
    """Return which of these products' results are best not rounded before a function of them, each with the reason."""
    view = DataflowView(evidence.exact.module["main"])
    candidates = _candidates(view, plan, able)
    referee = evidence.referee(plan) if candidates else None
    if referee is None:
        return {}
    effects = referee.effects(referee.rounding(plan), [each.name for each in candidates])
    total = sum(min(effect, 1.0) for effect in effects.values())
    if total < _MIN_EFFECT:
        return {}
    room = _SHARE * model_cycles(view)
    found: dict[TensorId, str] = {}
    for each in sorted(candidates, key=lambda each: (-effects[each.name] / each.cycles, each.name)):
        if each.cycles <= room and effects[each.name] >= _MIN_SHARE * total:
            room -= each.cycles
            found[each.name] = f"rounding it to 8 bits, and nothing else, leaves {-10 * math.log10(effects[each.name]):.1f} dB"
    return found


def _candidates(view: DataflowView, plan: QuantizationPlan, able: Collection[TensorId]) -> list[_Candidate]:
    variables = {binding.var.name: binding.var for binding in view.bindings}
    sources = (layer.inputs[0] for layer in plan.layers if layer.op == ELEMENTWISE and len(layer.inputs) == 1)
    rounded = {name: variables[name] for name in sources if name in able and name in plan.activations and name in variables}
    found: list[_Candidate] = []
    for name, var in rounded.items():
        chain = chain_from(view, var, max_inputs=1)
        if chain is not None and all(step.op != SLOW for step in chain.function.steps):
            found.append(_Candidate(name=name, cycles=_values(var) * chain.function.operations / _OPERATIONS))
    return found


def _values(var: Var) -> int:
    return prod(static_shape(var) or (0,))
