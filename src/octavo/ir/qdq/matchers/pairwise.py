"""Rule of the ops of two tensors: multiply, subtract, the additions whose shapes `add` does not take, maximum and minimum."""

from __future__ import annotations

from tvm.relax import Var

from ....numerics import INTEGER_RANGE
from ....numerics.quantized.binary import reaches_beyond_int64
from ....target import OpSupport
from ....target.vocabulary import HALF_EVEN_STORED, HALF_UP
from ...composites.base import CompositeOp, QuantizedOutput, QuantizedTensor
from ...composites.elementwise import Kind, Operand, PairwiseOp, scales_of
from ...graph.dataflow import DataflowView, call_to, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import is_fixed_point, result_rounding, unscalable
from ..tail import check_activation, follow_to_quantize, of_width, unquantized
from ..values import ConstantValue, Dequantized, constant_value, dequantized

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
