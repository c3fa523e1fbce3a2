"""Which functions a product's kernel computes of its own float sums: those whose operand's rounding costs most for their time.

Else the sums are rounded to 8 bits before the function, a table, gives 8 bits of its own. Nothing becomes float here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from tvm.relax import Var

from ...compiler.explanation import model_cycles
from ...compiler.target_choice import ResolvedTarget
from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, static_shape
from ...ir.identity import TensorId
from ...ir.qdq.matchers.elementwise.float_chain import chain_from
from ...ir.qdq.matchers.elementwise.function_tail import SLOW
from ...numerics.arrays import Samples
from ...target import ELEMENTWISE
from ..plan.plan import QuantizationPlan, QuantizedModel
from .simulation import Simulation

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


def fused_functions(
    simple: Model, quantized: QuantizedModel, able: Collection[TensorId], *, samples: Samples, target: ResolvedTarget
) -> Mapping[TensorId, str]:
    """Return the products' results that are best not rounded before a function of them, each with the reason.

    Parameters
    ----------
    able
        Results of kernels that can compute a function. Where none of them is read by one alone nothing is simulated.
    """
    view = DataflowView(simple.module["main"])
    candidates = _candidates(view, quantized.plan, able)
    if not candidates:
        return {}
    try:
        simulation = Simulation(simple, quantized.plan, samples, target, is_centred=bool(quantized.plan.recipe.bias_correction))
    except NotImplementedError:  # nothing can be seen between its steps
        return {}
    params, known = quantized.plan.activations, set(simulation.activations)
    effects = {each.name: simulation.alone({each.name: params[each.name]}, few=True) for each in candidates if each.name in known}
    total = sum(min(effect, 1.0) for effect in effects.values())
    if total < _MIN_EFFECT:
        return {}
    room = _SHARE * model_cycles(view)
    found: dict[TensorId, str] = {}
    gain = {each.name: effects.get(each.name, 0.0) / each.cycles for each in candidates}
    for each in sorted(candidates, key=lambda each: (-gain[each.name], each.name)):
        if each.cycles <= room and effects.get(each.name, 0.0) >= _MIN_SHARE * total:
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
