"""Rules of ops of two tensors, element by element: add, and the pairwise ops that it does not take; comparisons; choices.

Comparisons of quantized tensors and logic on boolean values have bool results. Choices are between two quantized tensors, by
boolean values that are known at run time only.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from tvm.relax import Var

from .....numerics import INTEGER_RANGE, quantize
from .....numerics.quantized.binary import reaches_beyond_int64
from .....numerics.quantized.compare import COMPARISONS, LOGIC, CompareRounding, Comparison, Logic
from .....target import OpSupport
from .....target.vocabulary import FIXED_POINT, HALF_EVEN_STORED, HALF_UP
from ....composites.base import WIDE, CompositeOp, QuantizedOutput, QuantizedTensor
from ....composites.elementwise import AddOp, Choice, CompareOp, Kind, LogicalOp, Operand, PairwiseOp, SelectOp, scales_of
from ....graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ....graph.rules import Region, Rejection
from ...cluster import real_of
from ...rounding import is_fixed_point, operand_rounding, result_rounding, unscalable
from ...tail import check_activation, follow_to_quantize, of_width, unquantized
from ...values import ConstantValue, Dequantized, constant_value, dequantized


def match_add(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(dequantize(a) + dequantize(b))); b may be a quantized constant or broadcast over leading axes."""
    call = call_to(view.definition(core), "add")
    assert call is not None
    sides = [dequantized(view, arg) for arg in call.args]
    for side, arg in zip(sides, call.args, strict=True):
        if side is None:
            return unquantized(arg)
    a, b = (side for side in sides if side is not None)
    if not isinstance(a.source, Var):
        a, b = b, a
    if not isinstance(a.source, Var):
        return Rejection(reason="both operands are constants; fold them before loading")
    a_shape, b_shape, y_shape = static_shape(a.source), static_shape(b.source), static_shape(core)
    if a_shape is None or b_shape is None or y_shape is None:
        return Rejection(reason=f"the shape of {core.name} or of an operand is not static")
    if a_shape != y_shape and isinstance(b.source, Var):
        (a, a_shape), (b, b_shape) = (b, b_shape), (a, a_shape)
    if a_shape != y_shape or not _is_trailing_part(b_shape, a_shape):
        return Rejection(reason=f"shapes {a_shape} and {b_shape}: one must have the result's shape, the other its trailing part")
    for side in (a, b):
        problem = check_activation(getattr(side.source, "name", "constant"), side.params, support)
        if problem is not None:
            return problem
        if side.params.dtype in WIDE:
            return Rejection(reason=f"{core.name} adds 16-bit integers, which another rule takes")
    tail = follow_to_quantize(view, core, of_width(support, a.params))
    if isinstance(tail, Rejection):
        return tail
    if tail.result.fixed_point is not None:
        return Rejection(reason=f"{core.name} adds in the integers of accelerators, which another rule does")
    constant = None if isinstance(b.source, Var) else constant_value(view, b.source)
    op = AddOp(
        a=tensor_of(a),
        b=tensor_of(b),
        b_values=None if constant is None else constant.values,
        y=tail.result,
        rounding=result_rounding(view, tail.members, (HALF_UP, HALF_EVEN_STORED)),
    )
    inputs = tuple(dict.fromkeys(side.source for side in (a, b) if isinstance(side.source, Var)))
    members = tuple(side.var for side in (a, b) if side.var is not None)
    return Region(
        core=core,
        output=tail.output,
        members=(*dict.fromkeys(members), core, *tail.members),
        inputs=inputs,
        op=op,
    )


def _is_trailing_part(part: tuple[int, ...], full: tuple[int, ...]) -> bool:
    """Return whether broadcasting `part` to `full` repeats it as it lies in memory."""
    while part and part[0] == 1:
        part = part[1:]
    return full[len(full) - len(part) :] == part


def tensor_of(side: Dequantized) -> QuantizedTensor:
    """Return a dequantized operand as a composite has it."""
    shape = static_shape(side.source)
    assert shape is not None
    return QuantizedTensor(name=getattr(side.source, "name", "constant"), shape=shape, params=side.params)


_KINDS: dict[str, Kind] = {"add": "add", "subtract": "sub", "multiply": "mul", "maximum": "max", "minimum": "min"}
_ROUNDINGS: dict[Kind, tuple[str, ...]] = {
    "add": (HALF_UP, HALF_EVEN_STORED),
    "sub": (HALF_UP, HALF_EVEN_STORED),
    "mul": (HALF_EVEN_STORED,),
    "max": (),
    "min": (),
}
"""What each knows besides half to even."""


def match_pairwise(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(dequantize(a) op dequantize(b))); one of them may be a quantized constant.

    int16 is computed in fixed point where the source asks for it, else in float32 with any zero point; an extreme of integers.
    """
    call = call_to(view.definition(core), *_KINDS)
    assert call is not None
    sides: list[Dequantized] = []
    operands: list[Operand] = []
    members: dict[Var, None] = {}
    for arg in call.args:
        side = dequantized(view, arg)
        if side is None:
            return unquantized(arg)
        constant = constant_value(view, side.source)
        shape = static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if shape is None:
            return Rejection(reason=f"the shape of {name} is not static")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        support = of_width(support, side.params)
        sides.append(side)
        members.update(
            dict.fromkeys((*(() if constant is None else constant.members), *(() if side.var is None else (side.var,))))
        )
        operands.append(_operand(name, shape, side, constant))
    if all(operand.values is not None for operand in operands):
        return Rejection(reason="both operands are constants; fold them before loading")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    kind = _KINDS[op_name(call)]
    if kind in ("max", "min") and any(side.params != tail.result.tensor.params for side in sides):
        return Rejection(reason="its operands and its result differ in scale, zero point or dtype")
    rounding = result_rounding(view, tail.members, _ROUNDINGS[kind])
    in_integers = None if kind in ("max", "min") else _in_integers(kind, operands, tail.result)
    if in_integers is not None:
        rounding = in_integers
    elif tail.result.kernel_dtype == "int16" and kind not in ("max", "min"):
        rounding = "fixed_point" if is_fixed_point(result_rounding(view, tail.members)) else "float32"
        tensors = (operands[0].tensor, operands[1].tensor, tail.result.tensor)
        other = next((tensor for tensor in tensors if rounding == "fixed_point" and tensor.zero_point != 0), None)
        if other is not None:
            return Rejection(reason=f"the zero point of {other.name} is {other.zero_point}; the 16-bit kernel takes 0")
    op = PairwiseOp(kind=kind, a=operands[0], b=operands[1], y=tail.result, rounding=rounding)
    pairs = zip(sides, operands, strict=True)
    variables = [side.source for side, operand in pairs if operand.values is None and isinstance(side.source, Var)]
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(dict.fromkeys(variables)),
        op=op,
    )


def _in_integers(kind: Kind, operands: list[Operand], y: QuantizedOutput) -> str | None:
    """Return how the op is rounded as accelerators do; None where it isn't, or its multipliers do not fit."""
    tensors = (operands[0].tensor, operands[1].tensor, y.tensor)
    rounding = y.fixed_point
    if rounding is None or unscalable(rounding, {tensor.name: tensor.params.scale for tensor in tensors}) is not None:
        return None
    points = [(INTEGER_RANGE[each.params.dtype], int(each.params.zero_point)) for each in tensors[:2]]
    reach = [max(high - zero_point, zero_point - low) for (low, high), zero_point in points]
    beyond = reaches_beyond_int64(kind, scales_of(*tensors), (reach[0], reach[1]), rounding, y.kernel_dtype)
    return None if beyond else rounding


def _operand(name: str, shape: tuple[int, ...], side: Dequantized, constant: ConstantValue | None) -> Operand:
    values = None if constant is None else constant.values
    return Operand(tensor=QuantizedTensor(name=name, shape=shape, params=side.params), values=values)


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


def match_select(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(where(condition, dequantize(a), dequantize(b)))); a and b may be constants."""
    call = call_to(view.definition(core), "where")
    assert call is not None
    condition, *args = call.args
    condition_shape, given = static_shape(condition), constant_value(view, condition)
    if not (isinstance(condition, Var) or given is not None) or dtype_of(condition) != "bool" or condition_shape is None:
        return Rejection(reason="its condition is of no boolean values and static shape")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    y, members = tail.result, dict[Var, None]()
    sides: list[Choice] = []
    inputs: dict[Var, None] = {condition: None} if given is None else {}
    for arg in args:
        constant = constant_value(view, arg)
        if constant is not None:
            integers = np.clip(quantize(real_of(constant).astype(np.float32), y.tensor.params), y.qmin, y.qmax)
            tensor = QuantizedTensor(name=constant.name or "constant", shape=integers.shape, params=y.tensor.params)
            members.update(dict.fromkeys(constant.members))
            sides.append(Choice(tensor=tensor, values=integers))
            continue
        x = dequantized(view, arg)
        shape = None if x is None else static_shape(x.source)
        if x is None or not isinstance(x.source, Var) or shape is None:
            return unquantized(arg)
        problem = check_activation(x.source.name, x.params, support)
        if problem is not None:
            return problem
        members.update(dict.fromkeys(() if x.var is None else (x.var,)))
        inputs[x.source] = None
        sides.append(Choice(tensor=QuantizedTensor(name=x.source.name, shape=shape, params=x.params), values=None))
    if given is not None and not inputs:
        return Rejection(reason="it chooses between constants")
    op = SelectOp(
        condition=getattr(condition, "name", "constant"),
        condition_shape=condition_shape,
        condition_values=None if given is None else given.values.astype(np.uint8),
        a=sides[0],
        b=sides[1],
        y=y,
    )
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=tuple(inputs),
        op=op,
    )
