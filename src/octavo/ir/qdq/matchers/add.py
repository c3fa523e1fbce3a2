"""Rule of add."""

from __future__ import annotations

from tvm.relax import Var

from ....target import OpSupport
from ....target.vocabulary import HALF_EVEN_STORED, HALF_UP
from ...composites.base import WIDE, CompositeOp, QuantizedTensor
from ...composites.elementwise import AddOp
from ...graph.dataflow import DataflowView, call_to, static_shape
from ...graph.rules import Region, Rejection
from ..rounding import result_rounding
from ..tail import check_activation, follow_to_quantize, of_width, unquantized
from ..values import Dequantized, constant_value, dequantized


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
