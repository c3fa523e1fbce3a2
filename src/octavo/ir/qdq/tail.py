"""From an op's float result to the integers it ends in: clamps on the way, then quantize, then an integer clamp."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ...numerics import PerAxis, PerTensor, QuantParams
from ...target import OpSupport
from ...target.op_facts import CLAMPS
from ..composites.base import WIDE, QuantizedOutput, QuantizedTensor
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ..graph.rules import Rejection
from .rounding import fixed_point_of
from .values import params_of


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tail:
    """The variables from an op's result (excluded) to the integer result, and what that result is."""

    members: tuple[Var, ...]
    output: Var
    result: QuantizedOutput


def follow_to_quantize(
    view: DataflowView, start: Var, support: OpSupport, *, channel_axis: int | None = None
) -> Tail | Rejection:
    """Walk from an op's float result through clamps that `support` can fuse to its quantize.

    Before::

        lv = R.nn.conv2d(...); lv1 = R.nn.relu(lv); y = R.quantize(lv1, scale, zero_point); y1 = R.clip(y, 0, 255)

    The walk from lv returns members (lv1, y, y1), output y1 and the clamp [q(0); 255]. An op that can give each channel its own
    scale states the `channel_axis` of its result.
    """
    members: list[Var] = []
    low, high = -math.inf, math.inf
    current = start
    while True:
        user = view.only_user(current)
        if user is None:
            return Rejection(reason=_why_not_single(view, current))
        value = view.definition(user)
        members.append(user)
        quantize = call_to(value, "quantize")
        if quantize is not None:
            return _finish(view, user, quantize, (low, high), members, support, channel_axis)
        clamp = call_to(value, *CLAMPS)
        if clamp is None or op_name(clamp) not in support.fusions:
            return Rejection(reason=f"its result {current.name} is read in float by {op_name(value)} ({user.name}); quantize it")
        bounds = (0.0, math.inf) if call_to(clamp, "nn.relu") is not None else clip_bounds(clamp)
        if bounds is None:
            return Rejection(reason=f"the bounds of clip {user.name} are not constants; make them so")
        low, high = max(low, bounds[0]), min(high, bounds[1])
        current = user


def _why_not_single(view: DataflowView, var: Var) -> str:
    if view.is_returned(var):
        return f"its result {var.name} is returned in float, and no quantize stands before"
    users = [f"{op_name(view.definition(user))} ({user.name})" for user in view.users(var)]
    return f"its float result {var.name} is read by {len(users)} ops: {', '.join(users[:4])}"


def float_clamp(value: Expr) -> tuple[float, float] | None:
    """Return the bounds of a relu or a clip of reals; None for any other value."""
    if call_to(value, "nn.relu") is not None:
        return 0.0, math.inf
    clip = call_to(value, "clip")
    bounds = None if clip is None else clip_bounds(clip)
    return None if bounds is None or any(map(math.isnan, bounds)) else bounds


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatTail:
    """The clamps from an op's result (excluded) to the last that nobody else reads, and their bounds together."""

    members: tuple[Var, ...]
    output: Var
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumTail:
    """Nothing behind int32 sums: `output` are these."""

    output: Var
    members: tuple[Var, ...] = ()


def follow_in_float(view: DataflowView, start: Var, support: OpSupport) -> FloatTail:
    """Walk from an op's float result through the clamps that `support` can fuse, as long as each value has one reader."""
    members: list[Var] = []
    low, high = -math.inf, math.inf
    current = start
    while (user := view.only_user(current)) is not None:
        bounds = float_clamp(view.definition(user))
        # A clamp behind one already taken can be folded in only while it leaves low <= high.
        fused = bounds is not None and op_name(view.definition(user)) in support.fusions
        if not fused or bounds is None or max(low, bounds[0]) > min(high, bounds[1]):
            break
        low, high = max(low, bounds[0]), min(high, bounds[1])
        members.append(user)
        current = user
    return FloatTail(members=tuple(members), output=current, low=low, high=high)


def clip_bounds(call: Any) -> tuple[float, float] | None:
    """Return the bounds of a relax.clip, or None if they aren't literals."""
    low, high = (getattr(arg, "value", None) for arg in call.args[1:3])
    return None if low is None or high is None else (float(low), float(high))


def clamp_in_integers(params: QuantParams, low: float, high: float) -> tuple[int, int]:
    """Return [qmin; qmax] such that clamping integers equals quantizing clamped reals; quantize is monotone, so it is exact."""

    def quantized(value: float, fallback: int) -> int:
        if math.isinf(value):
            return fallback
        with np.errstate(over="ignore"):  # a bound of 3.4e38 is none, and infinity saturates as it should
            steps = float(np.rint(np.float32(value) / params.scale)) + int(params.zero_point)
        return int(min(max(steps, params.qmin), params.qmax))

    return quantized(low, params.qmin), quantized(high, params.qmax)


def per_channel(params: QuantParams) -> list[QuantParams]:
    """Return the parameters of each channel, as those of a tensor: one for all where there is one scale."""
    if isinstance(params.granularity, PerTensor):
        return [params]
    pairs = zip(params.scale, params.zero_point, strict=True)
    return [QuantParams(dtype=params.dtype, scale=scale, zero_point=zero, granularity=PerTensor()) for scale, zero in pairs]


def check_activation(
    name: str, params: QuantParams, support: OpSupport, channel_axis: int | None = None, *, own_zero_points: bool = False
) -> Rejection | None:
    """Return why a quantized activation can't enter or leave an integer kernel, or None if it can.

    Scales along `channel_axis` are allowed, with one zero point, or with `own_zero_points` one each.
    """
    if isinstance(params.granularity, PerAxis):
        along_channels = params.granularity.axis == channel_axis
        if not (along_channels and (own_zero_points or np.ptp(params.zero_point) == 0)):
            return Rejection(reason=f"activation {name} is quantized per axis; kernels take one scale per tensor")
    if params.dtype not in support.activations:
        return Rejection(reason=f"activation {name} is {params.dtype}; the target allows {', '.join(support.activations)}")
    return None


def of_width(support: OpSupport, params: QuantParams) -> OpSupport:
    """Return what `support` offers to ops that read `params`: kernels take one width, and no sums of 16-bit integers are left."""
    is_wide = params.dtype in WIDE
    if not is_wide:
        return replace(support, activations=tuple(dtype for dtype in support.activations if dtype not in WIDE))
    activations = tuple(dtype for dtype in support.activations if dtype in WIDE)
    return replace(support, activations=activations, sum_output=False)


def unquantized(expr: Expr) -> Rejection:
    """Return why an operand that no dequantize made can't enter an integer kernel."""
    name, dtype = getattr(expr, "name", "constant"), dtype_of(expr)
    if dtype == "float32":
        return Rejection(reason=f"operand {name} is float; quantize it with a constant scale")
    return Rejection(reason=f"operand {name} is {dtype}, not the dequantize of 8-bit integers with a constant scale")


def _finish(
    view: DataflowView,
    var: Var,
    quantize: Any,
    bounds: tuple[float, float],
    members: list[Var],
    support: OpSupport,
    channel_axis: int | None,
) -> Tail | Rejection:
    params = params_of(quantize, dtype_of(var))
    shape = static_shape(var)
    if params is None or shape is None:
        return Rejection(reason=f"scale, zero point or shape of {var.name} is not a constant; make it so")
    problem = check_activation(var.name, params, support, channel_axis)
    if problem is not None:
        return problem
    clamps = {clamp_in_integers(channel, *bounds) for channel in per_channel(params)}
    if len(clamps) > 1:
        return Rejection(reason=f"the clamp of {var.name} is another integer in each channel, for their scales differ")
    qmin, qmax = clamps.pop()
    output, qmin, qmax = integer_clamp(view, var, qmin, qmax)
    if not output.same_as(var):
        members.append(output)
    tensor = QuantizedTensor(name=output.name, shape=shape, params=params)
    result = QuantizedOutput(tensor=tensor, qmin=qmin, qmax=qmax, fixed_point=fixed_point_of(quantize))
    return Tail(members=tuple(members), output=output, result=result)


def integer_clamp(view: DataflowView, var: Var, qmin: int, qmax: int) -> tuple[Var, int, int]:
    """Fold a clip that alone reads the integers `var` into the bounds; return the variable the region ends in."""
    user = view.only_user(var)
    clip = call_to(view.definition(user), "clip") if user is not None else None
    bounds = clip_bounds(clip) if clip is not None else None
    if user is None or bounds is None:
        return var, qmin, qmax
    low = qmin if math.isinf(bounds[0]) else max(qmin, math.ceil(bounds[0]))
    high = qmax if math.isinf(bounds[1]) else min(qmax, math.floor(bounds[1]))
    return (user, low, high) if low <= high else (var, qmin, qmax)
