"""Compute functions in the kernels of the products that they read, where rounding what lies between costs most for their time.

Else the sums are rounded to 8 bits before the function, a table, gives 8 bits of its own. Nothing becomes float here.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from ...compiler.explanation import model_cycles
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ...ir.qdq.matchers.elementwise.float_chain import chain_from
from ...ir.qdq.matchers.elementwise.function_tail import SLOW
from ...runtime.shapes import typical
from ...target import ELEMENTWISE
from ..choices import Choices, float_without_loss
from ..plan import QuantizationPlan
from ..planner import Planned
from ..recipe import Recipe
from ..referee.score import said_alone
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
    cycles = _cycles(view, plan, able)
    referee = evidence.referee(plan) if cycles else None
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


def _cycles(view: DataflowView, plan: QuantizationPlan, able: Collection[TensorId]) -> dict[TensorId, float]:
    """Return what of these products' results a function alone reads, and the cycles that it takes in the product's kernel."""
    variables = {binding.var.name: binding.var for binding in view.bindings}
    found: dict[TensorId, float] = {}
    for layer in plan.layers:
        name = layer.inputs[0]
        is_one = layer.op == ELEMENTWISE and len(layer.inputs) == 1
        if not is_one or name not in able or name not in plan.activations or name not in variables:
            continue
        chain = chain_from(view, variables[name], max_inputs=1)
        if chain is not None and all(step.op != SLOW for step in chain.function.steps):
            values = typical(prod(static_shape(variables[name]) or (0,)))
            found[name] = values * chain.function.operations / _OPERATIONS
    return found
