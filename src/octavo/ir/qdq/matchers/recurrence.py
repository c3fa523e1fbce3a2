"""Rules of recurrences over steps, by weights of float32 or int8.

Before::

    y = R.octavo.recurrence((x, weights, hidden), R.str("LSTM sigmoid tanh tanh with=hidden"))

After: one composite "octavo.float_recurrence" from x and hidden to y; where the weights are dequantized, and the text says
"rounded=1", an "octavo.recurrence".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ....numerics import PerAxis, QuantParams
from ....target import OpSupport
from ...composites.base import CompositeOp
from ...composites.float_ops import FloatRecurrenceOp
from ...composites.weighted import RecurrenceOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.recurrence import Recurrence, read_recurrence
from ...graph.rules import Region, Rejection
from ..values import ConstantValue, constant_value, real_values
from .conv.float_tail import constants_behind


def match_float_recurrence(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a recurrence of float32 whose weights are constants."""
    found = _found(view, core)
    if isinstance(found, Rejection):
        return found
    if found.what.rounded:
        return Rejection(reason=f"{core.name} rounds what meets its weights at each step, and no target takes it in integers")
    op = FloatRecurrenceOp(op="recurrence", weights=real_values(found.weights).astype(np.float32), **found.fields)
    return found.region(op)


def match_recurrence(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim a recurrence by constant int8 weights that rounds what meets them."""
    del support
    found = _found(view, core)
    if isinstance(found, Rejection):
        return found
    if not found.what.rounded:
        return Rejection(reason=f"{core.name} multiplies by its weights in float32", matched=False)
    weights = found.weights
    if weights.scale is None or weights.zero_point is None or weights.values.dtype != np.int8:
        return Rejection(reason=f"the weights of {core.name} are no int8; dequantize constants ahead of it")
    scale = weights.scale[:1]
    if not (weights.scale == scale).all() or weights.zero_point.any():
        return Rejection(reason=f"the weights of {core.name} have zero points, or scales that differ within a column")
    params = QuantParams(
        dtype="int8", scale=scale[0].copy(), zero_point=np.zeros(scale.shape[1], np.int32), granularity=PerAxis(1)
    )
    op = RecurrenceOp(
        weight_name=weights.name, weights=np.ascontiguousarray(weights.values), params=params, output=core.name, **found.fields
    )
    return found.region(op)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Found:
    """A recurrence as its composites have it: their `fields`, but for the weights."""

    view: DataflowView
    core: Var
    what: Recurrence
    weights: ConstantValue
    fields: dict[str, Any]
    entering: list[Expr]

    def region(self, op: CompositeOp) -> Region[CompositeOp]:
        """Return what becomes one composite."""
        inputs = tuple(dict.fromkeys(each for each in self.entering if isinstance(each, Var)))
        members = (*constants_behind(self.view, self.view.definition(self.core)), self.core)
        return Region(core=self.core, output=self.core, members=members, inputs=inputs, op=op)


def _found(view: DataflowView, core: Var) -> _Found | Rejection:
    call: Any = view.definition(core)
    what, operands = read_recurrence(call)
    shape, x = static_shape(core), operands["x"]
    if not isinstance(x, Var) or shape is None or dtype_of(core) != "float32" or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is no recurrence over a float32 activation of known rank")

    def constant(name: str) -> npt.NDArray[np.float32] | None:
        expr = operands.get(name)
        found = None if expr is None else constant_value(view, expr)
        return None if found is None else np.ascontiguousarray(real_values(found), np.float32)

    def state(name: str) -> str | npt.NDArray[np.float32] | None:
        values, expr = constant(name), operands.get(name)
        if values is not None:
            return values if values.any() else None
        return expr.name if isinstance(expr, Var) else None

    weights, bias, peepholes = constant_value(view, operands["weights"]), constant("bias"), constant("peepholes")
    absent = [name for name, value in (("bias", bias), ("peepholes", peepholes)) if name in operands and value is None]
    if weights is None or absent:
        return Rejection(reason=f"{(absent or ['weights'])[0]} of {core.name} is no constant")
    states = {name: state(name) for name in ("hidden", "cell")}
    fields = {"x": x.name, "bias": bias, "peepholes": peepholes, "output_shape": shape, **states}
    fields |= {name: getattr(what, name) for name in ("kind", "activations", "backwards", "resets_products", "states", "clip")}
    entering = [x, *(operands[name] for name, value in states.items() if isinstance(value, str))]
    return _Found(view=view, core=core, what=what, weights=weights, fields=fields, entering=entering)
