"""Rule of recurrences over steps, in float32.

Before::

    y = R.octavo.recurrence((x, weights, hidden), R.str("LSTM sigmoid tanh tanh with=hidden"))

After: one composite "octavo.float_recurrence" from x and hidden to y.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatRecurrenceOp
from ...graph.dataflow import DataflowView, dtype_of, static_shape
from ...graph.recurrence import read_recurrence
from ...graph.rules import Region, Rejection
from ..values import constant_value, real_values
from .conv.float_tail import constants_behind


def match_float_recurrence(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim a recurrence of float32 whose weights are constants."""
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

    weights, bias, peepholes = constant("weights"), constant("bias"), constant("peepholes")
    absent = [name for name, value in (("bias", bias), ("peepholes", peepholes)) if name in operands and value is None]
    if weights is None or absent:
        return Rejection(reason=f"{(absent or ['weights'])[0]} of {core.name} is no constant")
    hidden, cell = state("hidden"), state("cell")
    op = FloatRecurrenceOp(
        op="recurrence",
        x=x.name,
        weights=weights,
        bias=bias,
        hidden=hidden,
        cell=cell,
        peepholes=peepholes,
        kind=what.kind,
        activations=what.activations,
        backwards=what.backwards,
        resets_products=what.resets_products,
        states=what.states,
        clip=what.clip,
        output_shape=shape,
    )
    entering: list[Expr] = [
        x,
        *(operands[name] for name, value in (("hidden", hidden), ("cell", cell)) if isinstance(value, str)),
    ]
    inputs = tuple(dict.fromkeys(each for each in entering if isinstance(each, Var)))
    return Region(core=core, output=core, members=(*constants_behind(view, call), core), inputs=inputs, op=op)
