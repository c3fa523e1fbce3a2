"""Rules of normalizations of quantized tensors: softmax and its logarithm, layer and group norm, division by a Euclidean norm.

Rows that a softmax finds apart are brought together, by our layout or a transposition. Layer normalization, and
x / max(sqrt(sum(x * x)), epsilon), are over the last axis in memory. Instance normalization is a form of group normalization.
Factors and addends are constants.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ....numerics import GROUP_NORM_MAX_VALUES, L2_MAX_COLUMNS, LAYER_NORM_MAX_COLUMNS, LOG_SOFTMAX_MIN_SCALE, SOFTMAX_MAX_COLUMNS
from ....runtime.shapes import surpasses
from ....target import OpSupport
from ....target.vocabulary import FIXED_POINT, INTEGER_INVERSE_SCALE
from ...composites.base import CompositeOp, QuantizedTensor
from ...composites.normalization import GroupNormOp, L2NormalizeOp, LayerNormOp, SoftmaxOp
from ...graph.dataflow import DataflowView, call_to, static_shape
from ...graph.rules import Region, Rejection
from ..cluster import same_tensor
from ..rounding import is_fixed_point, result_rounding
from ..tail import check_activation, follow_to_quantize, of_width
from ..values import ConstantValue, Dequantized, constant_value, dequantized, numpy_constant, real_values
from .conv.float_tail import constants_behind
from .float_norms import group_norm_of_constants


def match_softmax(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(softmax(dequantize(x))), or quantize(log_softmax(...)), or of a positive constant times dequantize(x)."""
    call = call_to(view.definition(core), "nn.softmax", "nn.log_softmax")
    assert call is not None
    found = _source(view, call.args[0])
    if isinstance(found, Rejection):
        return found
    x, beta, members = found
    shape = static_shape(x.source)
    if not isinstance(x.source, Var) or shape is None:
        return Rejection(reason=f"the input of {core.name} is a constant, or its shape is not static")
    axis = int(call.attrs.axis) % len(shape)
    if surpasses(shape[axis], SOFTMAX_MAX_COLUMNS):
        return Rejection(reason=f"its rows hold {shape[axis]} values; the kernel takes {SOFTMAX_MAX_COLUMNS}")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    tail = follow_to_quantize(view, core, of_width(support, x.params))
    if isinstance(tail, Rejection):
        return tail
    is_log = call_to(call, "nn.log_softmax") is not None
    if is_log and float(tail.result.tensor.params.scale) < LOG_SOFTMAX_MIN_SCALE:
        return Rejection(reason=f"its result has steps of {float(tail.result.tensor.params.scale)}, too small for the kernel")
    source = QuantizedTensor(name=x.source.name, shape=shape, params=x.params)
    # A factor in between keeps a softmax from the kernels that round otherwise.
    rounding = "half_even" if is_log or beta != 1.0 else result_rounding(view, tail.members, (INTEGER_INVERSE_SCALE,))
    if source.kernel_dtype == "int16":
        rounding = "fixed_point" if is_fixed_point(result_rounding(view, tail.members)) else "half_even"
        y = tail.result.tensor
        if rounding == "fixed_point" and (float(y.params.scale) != 1 / 32768 or y.zero_point != 0):
            return Rejection(reason="its result has another scale than 1 / 32768, or a zero point")
    op = SoftmaxOp(x=source, y=tail.result, axis=axis, beta=beta, is_log=is_log, rounding=rounding)
    return Region(
        core=core,
        output=tail.output,
        members=(*members, core, *tail.members),
        inputs=(x.source,),
        op=op,
    )


def _source(view: DataflowView, arg: Expr) -> tuple[Dequantized, float, tuple[Var, ...]] | Rejection:
    """Return what is dequantized, the factor beta, and the variables between (in order)."""
    name = getattr(arg, "name", "constant")
    x, beta = dequantized(view, arg), 1.0
    members: tuple[Var, ...] = ()
    scaled = call_to(view.definition(arg), "multiply")
    if scaled is not None:
        sides = [(dequantized(view, a), numpy_constant(view.definition(b))) for a, b in (scaled.args, scaled.args[::-1])]
        x, factor = next(((a, b) for a, b in sides if a is not None and b is not None and b.size == 1), (None, None))
        var = view.binding_of(arg)
        beta = float(np.asarray(factor).reshape(())) if factor is not None else 0.0
        members = () if var is None else (var,)
    if x is None:
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if not beta > 0.0:
        return Rejection(reason=f"its input is multiplied by {beta}; the kernel takes positive factors")
    return x, beta, (*(() if x.var is None else (x.var,)), *members)


def match_layer_norm(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(layer_norm(dequantize(x), gamma, beta)) over the last axis."""
    call: Any = view.definition(core)
    x = dequantized(view, call.args[0])
    shape = None if x is None else static_shape(x.source)
    if x is None or not isinstance(x.source, Var) or not shape or 0 in shape:
        name = getattr(call.args[0], "name", "constant")
        return Rejection(reason=f"input {name} is float, or its shape is not static; quantize and dequantize it before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1] or surpasses(shape[-1], LAYER_NORM_MAX_COLUMNS):
        taken = f"the kernel takes the last, of up to {LAYER_NORM_MAX_COLUMNS}"
        return Rejection(reason=f"it normalizes axes {[int(axis) for axis in call.attrs.axes]} of {shape}; {taken}")
    constants = [constant_value(view, arg) for arg in call.args[1:3]]
    known = [constant for constant in constants if constant is not None and constant.values.size == shape[-1]]
    if len(known) < 2:
        return Rejection(reason="a factor or an addend is not a constant of one number for each element of a row; make it one")
    tail = follow_to_quantize(view, core, support)
    if isinstance(tail, Rejection):
        return tail
    gamma, beta = known
    op = LayerNormOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=tail.result,
        gamma=_values(gamma) if call.attrs.scale else np.ones(shape[-1], np.float32),
        beta=_values(beta) if call.attrs.center else np.zeros(shape[-1], np.float32),
        names=(gamma.name, beta.name),
        epsilon=float(call.attrs.epsilon),
    )
    members = (x.var, *gamma.members, *beta.members, core, *tail.members)
    return Region(
        core=core,
        output=tail.output,
        members=tuple(dict.fromkeys(var for var in members if var is not None)),
        inputs=(x.source,),
        op=op,
    )


def _values(constant: ConstantValue) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(real_values(constant).reshape(-1))


def match_group_norm(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(group_norm(dequantize(x), gamma, beta)), with the reshapes and factors around that belong to it."""
    norm = group_norm_of_constants(view, core)
    if isinstance(norm, Rejection):
        return norm
    x = dequantized(view, norm.data)
    if x is None or not isinstance(x.source, Var):
        return Rejection(reason=f"input {norm.data.name} is float; quantize and dequantize it before this op")
    problem = check_activation(x.source.name, x.params, support)
    if problem is not None:
        return problem
    shape = static_shape(x.source)
    assert shape is not None, "checked with the channels"
    size = math.prod(shape[1:]) // norm.groups
    if surpasses(size, GROUP_NORM_MAX_VALUES):
        return Rejection(reason=f"its groups have {size} values; the kernel takes up to {GROUP_NORM_MAX_VALUES}")
    tail = follow_to_quantize(view, norm.output, support)
    if isinstance(tail, Rejection):
        return tail
    call: Any = view.definition(core)
    op = GroupNormOp(
        x=QuantizedTensor(name=x.source.name, shape=shape, params=x.params),
        y=tail.result,
        groups=norm.groups,
        axis=norm.channel_axis,
        gamma=norm.gamma,
        beta=norm.beta,
        names=(getattr(call.args[1], "name", ""), getattr(call.args[2], "name", "")),
        epsilon=norm.epsilon,
    )
    constants = [var for member in norm.members for var in constants_behind(view, view.definition(member))]
    members = () if x.var is None else (x.var,)
    return Region(
        core=core,
        output=tail.output,
        members=tuple(dict.fromkeys((*members, *constants, *norm.members, *tail.members))),
        inputs=(x.source,),
        op=op,
    )


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
    if surpasses(shape[axis], L2_MAX_COLUMNS) or 0 in shape:
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
