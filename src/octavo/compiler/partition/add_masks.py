"""Write masks that choose between scores and a number below all of them as sums, which kernels of softmax and attention take.

Before::

    m = R.where(hidden, R.const(-inf), s)          # hidden: (rows, columns), s: (1, heads, rows, columns)
    p = R.nn.softmax(m)

After: the addend is as large as the mask, not as the scores ::

    m = R.add(s, R.where(hidden, R.const(-inf), R.const(0)))
    p = R.nn.softmax(m)

Exact for finite scores up to 1e22, beside which float32 numbers as low as these lie too far apart to differ. Requires nothing.
Ensures that m keeps its variable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    Renewed,
    call_to,
    dtype_of,
    static_shape,
    view_of_main,
    with_values,
)
from ...ir.identity import NameSupply
from ...ir.qdq.values import constant_value, numpy_constant, real_values
from ...ir.untyped import relax

_LOWEST = -1e30
"""Neighbours of this float32 are 7.6e22 away."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Mask:
    """Scores, the condition, the number, and whether it stands where the condition holds."""

    scores: Var
    condition: Expr
    number: float
    hides: bool


def add_masks(module: tvm.IRModule) -> tvm.IRModule:
    """Write a mask that chooses between scores and a number below all of them as a sum, which kernels of attention take."""
    view = view_of_main(module)
    names = NameSupply(view.variables)
    found = {binding.var: mask for binding in view.bindings if (mask := _mask(view, binding.var)) is not None}
    return with_values(module, view, {var: partial(_sum, var, mask, names) for var, mask in found.items()})


def _mask(view: DataflowView, var: Var) -> _Mask | None:
    call = call_to(view.definition(var), "where")
    user = view.only_user(var) if call is not None else None
    if call is None or user is None or call_to(view.definition(user), "nn.softmax") is None or dtype_of(var) != "float32":
        return None
    condition, *sides = call.args
    numbers = [constant_value(view, side) for side in sides]
    shape, own = static_shape(var), static_shape(condition)
    for scores, number, hides in ((sides[1], numbers[0], True), (sides[0], numbers[1], False)):
        if number is None or number.values.size != 1 or not isinstance(scores, Var):
            continue
        value = float(np.asarray(real_values(number)).reshape(()))
        # A kernel reads an addend of as many columns.
        if value <= _LOWEST and shape and own and static_shape(scores) == shape and own[-1] == shape[-1]:
            return _Mask(scores=scores, condition=condition, number=value, hides=hides)
    return None


def _sum(var: Var, mask: _Mask, names: NameSupply, writer: BodyWriter, renewed: Renewed) -> Any:
    sides = (mask.number, 0.0) if mask.hides else (0.0, mask.number)
    known = numpy_constant(mask.condition)
    if known is not None:
        return relax.op.add(renewed(mask.scores), relax.const(np.where(known, *sides).astype(np.float32)))
    numbers = [relax.const(side, "float32") for side in sides]
    addend = writer.emit(names.fresh(f"{var.name}_addend"), relax.op.where(renewed(mask.condition), *numbers))
    return relax.op.add(renewed(mask.scores), addend)
