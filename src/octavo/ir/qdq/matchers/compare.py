"""Rules of comparisons of quantized tensors and of logic on boolean values: their results are bool."""

from __future__ import annotations

from typing import cast

from tvm.relax import Var

from ....numerics.quantized.compare import COMPARISONS, LOGIC, CompareRounding, Comparison, Logic
from ....target import OpSupport
from ....target.vocabulary import FIXED_POINT
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.elementwise import CompareOp, LogicalOp, Operand
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import operand_rounding
from ..tail import check_activation, unquantized
from ..values import constant_value, dequantized

COMPARE_OPS = tuple(COMPARISONS)

LOGICAL_OPS = tuple(f"logical_{kind}" for kind in LOGIC)


def match_compare(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim dequantize(a) op dequantize(b), one of them maybe a quantized constant; the result is bool, and ends it."""
    call = call_to(view.definition(core), *COMPARE_OPS)
    assert call is not None
    shape = static_shape(core)
    operands: list[Operand] = []
    members: dict[Var, None] = {}
    inputs: dict[Var, None] = {}
    for arg in call.args:
        side = dequantized(view, arg)
        if side is None:
            return unquantized(arg)
        constant, own = constant_value(view, side.source), static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if own is None or shape is None:
            return Rejection(reason=f"the shape of {name} is not static")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        members.update(dict.fromkeys(() if constant is None else constant.members))
        members.update(dict.fromkeys(() if side.var is None else (side.var,)))
        tensor = QuantizedTensor(name=name, shape=own, params=side.params)
        operands.append(Operand(tensor=tensor, values=None if constant is None else constant.values))
        if constant is None and isinstance(side.source, Var):
            inputs[side.source] = None
    if not inputs:
        return Rejection(reason="both operands are constants; fold them before loading")
    assert shape is not None, "the loop saw it"
    a, b = operands
    kind = cast(Comparison, op_name(call))
    rounding = _rounding(operand_rounding(view, call), a.tensor, b.tensor)
    op = CompareOp(kind=kind, a=a, b=b, rounding=rounding, name=core.name, shape=shape)
    return Region(
        core=core,
        output=core,
        members=(*members, core),
        inputs=tuple(inputs),
        op=op,
    )


def _rounding(asked: str, a: QuantizedTensor, b: QuantizedTensor) -> CompareRounding:
    if a.params == b.params and (a.kernel_dtype == "int16" or asked != FIXED_POINT):
        return "integers"
    if a.params.dtype == b.params.dtype == "int16" and asked == FIXED_POINT:
        return "integers"  # TFLite compares int16 as it is, whatever the scales
    return "fixed_point" if asked == FIXED_POINT else "float32"


def match_logical(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim logic of boolean values that are computed or fed."""
    del support
    call = call_to(view.definition(core), *LOGICAL_OPS)
    assert call is not None
    shapes, shape = [static_shape(arg) for arg in call.args], static_shape(core)
    operands = [arg for arg in call.args if isinstance(arg, Var) and dtype_of(arg) == "bool"]
    if len(operands) != len(call.args) or shape is None or None in shapes:
        return Rejection(reason=f"an operand of {core.name} is a constant, no boolean values, or of a shape that is not static")
    op = LogicalOp(
        kind=cast(Logic, op_name(call).removeprefix("logical_")),
        operands=tuple(operand.name for operand in operands),
        shapes=tuple(own for own in shapes if own is not None),
        name=core.name,
        shape=shape,
    )
    return Region(
        core=core,
        output=core,
        members=(core,),
        inputs=tuple(dict.fromkeys(operands)),
        op=op,
    )
