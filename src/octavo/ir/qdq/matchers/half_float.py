"""What of a downcast module runs in which kernels: casts, and the float ops with constant weights, which are rounded too.

See downcast.py for the form of such a module. 16 bits are held as uint16. Where the machine multiplies bfloat16, a composite
goes from 16 bits to 16 bits; elsewhere kernels of float32 stand between casts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from tvm.ir import Call
from tvm.relax import Var

from ....numerics.floats.half import HALF_DTYPES, MAX_FINITE, HalfDtype, round_half
from ....target.precision import Precision
from ...composites.base import CompositeOp
from ...composites.float_ops import Bfloat16Op, FloatConv2dOp, FloatMatmulOp, FloatWeightedOp
from ...graph.dataflow import DataflowView, call_to, dtype_of
from ...graph.rules import Region, Rejection, Rule
from .conv.float_conv2d import match_float_conv2d, match_float_matmul
from .pool2d import match_half_pool2d


def half_rules(precision: Precision) -> tuple[Rule, ...]:
    """Return the rules of the ops with constant weights."""

    def bound(
        match: Callable[[DataflowView, Var], Region[FloatWeightedOp] | Rejection],
    ) -> Callable[[DataflowView, Var], Region[CompositeOp] | Rejection]:
        def matched(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
            found = match(view, core)
            if isinstance(found, Rejection):
                return found
            region = _in_bfloat16(view, found) if precision.has_products else None
            return region or _with_half_weights(found, precision.dtype)

        return matched

    return (
        Rule(composite="octavo.half_conv2d", ops=("nn.conv2d",), match=bound(partial(match_float_conv2d, takes_function=False))),
        Rule(composite="octavo.half_matmul", ops=("matmul",), match=bound(partial(match_float_matmul, takes_function=False))),
        Rule(composite="octavo.half_pool2d", ops=("nn.max_pool2d", "nn.avg_pool2d"), match=match_half_pool2d),
    )


def is_widening(view: DataflowView, var: Var) -> bool:
    """Return whether a value is a 16-bit one as float32: it costs nothing inside a composite."""
    call = call_to(view.definition(var), "astype")
    return call is not None and dtype_of(var) == "float32" and dtype_of(call.args[0]) in HALF_DTYPES


def _in_bfloat16(view: DataflowView, found: Region[FloatWeightedOp]) -> Region[Bfloat16Op] | None:
    """Return a float region with the casts around it; None where its input is not in 16 bits, or no kernel is written for it."""
    op = found.op
    by_name = {var.name: var for var in found.inputs}
    x = by_name[op.x]
    if not isinstance(op, FloatConv2dOp | FloatMatmulOp) or not is_widening(view, x):
        return None
    addend = None if op.addend is None else by_name[op.addend]
    widened = [var for var in (x, addend) if var is not None and is_widening(view, var)]
    halves = {var: _source(view, var) for var in widened}
    user = view.only_user(found.output)
    narrows = user is not None and call_to(view.definition(user), "astype") is not None and dtype_of(user) == "bfloat16"
    read = tuple(dict.fromkeys(halves.get(var, var) for var in (x, addend) if var is not None))
    return Region(
        core=found.core,
        output=user if narrows and user is not None else found.output,
        members=(*widened, *found.members, *((user,) if narrows and user is not None else ())),
        inputs=read,
        op=Bfloat16Op(
            op=op.op,
            float_op=op,
            x=halves[x].name,
            addend=None if addend is None else halves.get(addend, addend).name,
            addend_dtype="uint16" if addend in halves else "float32",
            output_dtype="uint16" if narrows else "float32",
        ),
        attrs=found.attrs,
        recomputes=found.recomputes,
    )


def _source(view: DataflowView, widened: Var) -> Var:
    value = view.definition(widened)
    assert isinstance(value, Call)
    assert isinstance(value.args[0], Var), "a constant is no tensor to keep in 16 bits"
    return value.args[0]


def _with_half_weights(found: Region[FloatWeightedOp] | Rejection, dtype: HalfDtype) -> Region[FloatWeightedOp] | Rejection:
    if isinstance(found, Rejection) or weight_obstacle(found.op, dtype):
        return found
    op = found.op
    return replace(found, op=replace(op, weight=round_half(op.weight, dtype)))


def weight_obstacle(op: object, dtype: HalfDtype) -> str:
    """Return why the weights of an op stay float32, "" where they don't, or where it has none."""
    if not isinstance(op, FloatWeightedOp):
        return ""
    largest = float(np.abs(op.weight).max(initial=0.0))
    if not largest > MAX_FINITE[dtype]:
        return ""
    return f"its weights reach {largest:g}, beyond {dtype}'s largest number {MAX_FINITE[dtype]:g}: they stay float32"
