"""Rule of rows divided by their Euclidean norm, x / max(sqrt(sum(x * x)), epsilon), over the last axis in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ....numerics import L2_MAX_COLUMNS
from ....target import OpSupport
from ....target.vocabulary import FIXED_POINT
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.normalization import L2NormalizeOp
from ...graph.dataflow import DataflowView, call_to, static_shape
from ...graph.rules import Region, Rejection
from ..cluster import same_tensor
from ..rounding import result_rounding
from ..tail import check_activation, follow_to_quantize
from ..values import Dequantized, dequantized, numpy_constant


def match_l2_normalize(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(x / norm(x)) of a dequantized x; `core` is the division."""
    call: Any = view.definition(core)
    x = dequantized(view, call.args[0])
    found = _norm(view, call.args[1])
    if x is None or found is None or not same_tensor(x, found.x) or not isinstance(x.source, Var):
        return Rejection(reason=f"{core.name} divides by no norm of what it divides")
    shape = static_shape(x.source)
    if shape is None or found.axes is None or len(found.axes) != 1:
        return Rejection(reason=f"its norm is over axes {found.axes} of {shape}; the kernel takes one axis of a static shape")
    axis = found.axes[0] % len(shape)
    if not found.keepdims or not (is_last(shape, axis) or (len(shape) == 4 and axis == 1)):
        return Rejection(reason=f"its axis {axis} of {len(shape)} is neither the last nor the channels of an image")
    if shape[axis] > L2_MAX_COLUMNS or 0 in shape:
        return Rejection(reason=f"its rows hold {shape[axis]} values; the kernel takes 1 to {L2_MAX_COLUMNS}")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    if found.least > float(x.params.scale):
        return Rejection(reason=f"norms below {found.least} count as that, which is more than a step of {x.source.name}")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    y = tail.result.tensor.params
    plain = float(y.scale) == 1 / 128 and int(y.zero_point) == (128 if y.dtype == "uint8" else 0) and y.dtype == x.params.dtype
    op = L2NormalizeOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=tail.result,
        axis=axis,
        rounding="fixed_point" if plain and result_rounding(view, tail.members) == FIXED_POINT else "half_even",
    )
    members = dict.fromkeys(var for var in (x.var, *found.members, core, *tail.members) if var is not None)
    ordered = tuple(binding.var for binding in view.bindings if binding.var in members)
    return Region(core=core, output=tail.output, members=ordered, inputs=(x.source,), op=op)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Norm:
    """sqrt(sum(x * x)) over `axes`, at least `least`."""

    x: Dequantized
    axes: list[int] | None
    keepdims: bool
    least: float
    members: tuple[Var | None, ...]


def _norm(view: DataflowView, expr: Expr) -> _Norm | None:
    """Read a norm backwards from its last op; None for anything else."""
    members: list[Var | None] = []

    def step(operand: Expr, *names: str) -> Any | None:
        members.append(view.binding_of(operand))
        return call_to(view.definition(operand), *names)

    least, inner = 0.0, expr
    bounded = call_to(view.definition(expr), "maximum")
    if bounded is not None:
        members.append(view.binding_of(expr))
        bounds = [numpy_constant(view.definition(arg)) for arg in bounded.args]
        place = next((i for i, bound in enumerate(bounds) if bound is not None and bound.size == 1), None)
        if place is None:
            return None
        members.append(view.binding_of(bounded.args[place]))
        least, inner = float(np.max(np.asarray(bounds[place]))), bounded.args[1 - place]
    root = step(inner, "sqrt")
    total = None if root is None else step(root.args[0], "sum")
    square = None if total is None else step(total.args[0], "multiply", "square")
    if total is None or square is None:
        return None
    operands = [dequantized(view, arg) for arg in square.args]
    if operands[0] is None or any(other is None or not same_tensor(operands[0], other) for other in operands):
        return None
    axes = None if total.attrs.axis is None else [int(axis) for axis in total.attrs.axis]
    members += [operand.var for operand in operands if operand is not None]
    return _Norm(x=operands[0], axes=axes, keepdims=bool(total.attrs.keepdims), least=least, members=tuple(members))


def is_last(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether an axis is the last one in memory: those behind it have one element."""
    return math.prod(shape[axis + 1 :]) == 1
