"""Which constants of a module equalization left as they were, among those that the source file does not have."""

from __future__ import annotations

from collections.abc import Collection

from tvm.relax import Var

from ...graph import Model
from ...graph.dataflow import DataflowView, call_to, operand_vars
from ...graph.moving import MOVED_CONSTANTS
from ...identity import TensorId


def undivided_constants(model: Model, divided: Collection[TensorId]) -> set[TensorId]:
    """Return the parameters of steps within larger ops, recurrent ones say, that no step reads beside a divided tensor."""
    view = DataflowView(model.module["main"])
    found: set[TensorId] = set()
    for param in view.function.params:
        if TensorId(param.name) in model.tensors:
            continue
        users = view.users(param)
        while len(users) == 1 and call_to(view.definition(users[0]), *MOVED_CONSTANTS) is not None:
            users = view.users(users[0])
        read = {_before_rounding(view, var) for user in users for var in operand_vars(view.definition(user))}
        if read.isdisjoint(divided):
            found.add(TensorId(param.name))
    return found


def _before_rounding(view: DataflowView, var: Var) -> TensorId:
    """Return the tensor that a variable holds, dequantized or not."""
    value = view.definition(var)
    while call_to(value, "quantize", "dequantize") is not None:
        var = operand_vars(value)[0]
        value = view.definition(var)
    return TensorId(var.name)
