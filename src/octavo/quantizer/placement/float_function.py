"""Which functions of one tensor a product's kernel computes of its float sums, before it quantizes. It decides no placement.

What may be among them is what `ir.qdq.matchers.function_tail` finds in the graph that is written.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tvm.relax import Var

from ...ir.graph.constants import Constants
from ...ir.graph.dataflow import DataflowView, call_to, op_name
from ...ir.qdq.cluster import PRELU
from ...ir.qdq.matchers.elementwise.float_chain import CHAINED
from .elementwise import function_of_one, is_elementwise

_PRODUCTS = ("nn.conv2d", "matmul")
_SLOW = ("erf", "nn.gelu")
"""In a kernel's loop over sums these take longer than a table."""
_SCALED = ("nn.relu", "nn.leakyrelu", "nn.prelu", "clip", "multiply", "divide")
"""Functions of these alone let factors of channels pass."""


def is_float_function(view: DataflowView, source: Var, members: Collection[Var]) -> bool:
    """Return whether ops are such a function of a tensor, which they alone read."""
    if view.is_returned(source) or any(user not in members for user in view.users(source)):
        return False
    names = [op_name(view.definition(member)) for member in members]
    return all(name in CHAINED and name not in _SLOW for name in names)


def has_slopes_alone(view: DataflowView, constants: Constants, members: Collection[Var]) -> bool:
    """Return whether all that differs from channel to channel in a function are slopes of parametric relus."""
    calls: list[Any] = [view.definition(member) for member in members]
    others = (arg for call in calls for arg in call.args[: 1 if op_name(call) == PRELU else None])
    found = (constants.find(arg) for arg in others)
    return all(constant is None or constants.value(constant).size == 1 for constant in found)


def function_results(view: DataflowView, constants: Constants) -> dict[Var, Var]:
    """Return the results of all such functions through which no factors pass, each with what it is a function of."""
    found: dict[Var, Var] = {}
    taken: set[Var] = set()
    for binding in view.bindings:
        if binding.var in taken or not is_elementwise(binding.value):
            continue
        function = function_of_one(view, constants, binding.var, with_rows=False)
        if function is None:
            continue
        taken.update(function.members)
        bends = any(op_name(view.definition(member)) not in _SCALED for member in function.members)
        if bends and _is_product(view, function.source) and is_float_function(view, function.source, function.members):
            found[function.members[-1]] = function.source
    return found


def _is_product(view: DataflowView, var: Var) -> bool:
    """Return whether a variable is a product, or the sum of one with something else."""
    added = call_to(view.definition(var), "add")
    parts = [var] if added is None else [arg for arg in added.args if isinstance(arg, Var)]
    return any(call_to(view.definition(part), *_PRODUCTS) is not None for part in parts)
