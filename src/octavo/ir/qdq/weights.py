"""Weights and biases of convolutions and matmuls: from QDQ constants to int8 values, int32 biases and multipliers."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...numerics import INTEGER_RANGE, PerAxis, PerTensor, QuantParams, max_accumulator, requantize_multiplier
from ...numerics.rounding.narrow_accumulator import Overflow
from ...target import OpSupport
from ..composites.base import WIDE
from ..composites.weighted import QuantizedWeight
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Rejection
from .values import ConstantValue, constant_value


def read_weight(view: DataflowView, expr: Expr, support: OpSupport) -> ConstantValue | Rejection:
    """Return the quantized constant behind a weight operand, if the target can take it."""
    weight = constant_value(view, expr)
    if weight is None:
        return Rejection(reason=f"weight {getattr(expr, 'name', '')} is not a constant; make it one")
    name = weight.name or getattr(expr, "name", "constant")
    if weight.scale is None:
        return Rejection(reason=f"weight {name} is {weight.values.dtype}, not quantized; quantize it")
    dtype = str(weight.values.dtype)
    if dtype not in support.weights:
        return Rejection(reason=f"weight {name} is {dtype}; the target allows {', '.join(support.weights)}")
    assert weight.zero_point is not None
    if weight.zero_point.any() and "asymmetric" not in support.weight_schemes:
        return Rejection(reason=f"weight {name} is asymmetric; the target takes zero point 0")
    return weight


def read_bias(view: DataflowView, var: Var, channel_axis: int, channels: int) -> tuple[Var, ConstantValue] | None:
    """Return the add that alone reads `var` with a constant per channel, and that constant as one value per channel."""
    user = view.only_user(var)
    call = call_to(view.definition(user), "add") if user is not None else None
    shape = static_shape(var)
    if user is None or call is None or shape is None:
        return None
    other = call.args[1] if isinstance(call.args[0], Var) and call.args[0].same_as(var) else call.args[0]
    bias = constant_value(view, other)
    if bias is None or static_shape(user) != shape:
        return None
    along = bias.values.shape
    padded = (1,) * (len(shape) - len(along)) + along
    if any(dim != 1 and axis != channel_axis % len(shape) for axis, dim in enumerate(padded)):
        return None

    def per_channel(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.broadcast_to(array.reshape(-1), (channels,))

    return user, ConstantValue(
        values=per_channel(bias.values),
        scale=None if bias.scale is None else per_channel(bias.scale),
        zero_point=None if bias.zero_point is None else per_channel(bias.zero_point),
        name=bias.name or getattr(other, "name", ""),
        members=bias.members,
    )


def quantized_weight(
    weight: ConstantValue,
    order: tuple[int, ...],
    bias: ConstantValue | None,
    x_params: QuantParams,
    y_params: QuantParams,
    support: OpSupport,
) -> QuantizedWeight | Rejection:
    """Bring a weight into the kernel's axis order, with one scale and zero point per output channel (the last axis).

    uint8 weights move to int8: values and zero point both lose 128, which leaves the reals as they are.
    """
    assert weight.scale is not None
    assert weight.zero_point is not None
    values = np.transpose(weight.values, order)
    scale = _per_channel(np.transpose(weight.scale, order))
    zero_point = _per_channel(np.transpose(weight.zero_point, order))
    if scale is None or zero_point is None:
        return Rejection(reason=f"weight {weight.name} has scales that vary within one output channel; give each channel one")
    is_per_tensor = bool((scale == scale[0]).all() and (zero_point == zero_point[0]).all())
    if not is_per_tensor and "per_axis" not in support.weight_granularity:
        return Rejection(reason=f"weight {weight.name} is quantized per axis; the target takes one scale per tensor")
    params = _source_params(str(weight.values.dtype), scale, zero_point, order, is_per_tensor=is_per_tensor)
    if values.dtype == np.uint8:
        values = (values.astype(np.int16) - 128).astype(np.int8)
        zero_point = zero_point - 128
    # Scales of the channels of a depthwise input, one for each of its outputs.
    x_scale = np.repeat(x_params.scale, scale.size // x_params.scale.size) if x_params.scale.ndim else x_params.scale
    bias_scale = x_scale * scale
    multiplier = np.asarray(requantize_multiplier(x_scale, scale, y_params.scale), np.float32)
    is_real = bias is not None and bias.scale is None and support.float_output
    integers = _bias_integers(None if is_real else bias, bias_scale)
    if isinstance(integers, Rejection):
        return integers
    bits = support.bits_of(x_params.dtype)
    reach = _reach(values, zero_point, x_params)
    overflow = cast("Overflow", support.overflow)
    if overflow == "proven":
        integers = _without_overflow(reach, integers, multiplier, bits if x_params.dtype in WIDE else min(bits, 32))
        if isinstance(integers, Rejection):
            return integers
    elif not (reach + np.abs(integers.astype(np.int64)) >= 2 ** (bits - 1)).any():
        overflow = "proven"
    return QuantizedWeight(
        name=weight.name,
        values=np.ascontiguousarray(values),
        zero_point=zero_point.astype(np.int32),
        params=params,
        bias_name=bias.name if bias is not None else "",
        bias=integers,
        bias_scale=bias_scale,
        multiplier=multiplier,
        real_bias=_in_units_of(y_params, bias) if is_real and bias is not None else None,
        overflow=overflow,
    )


def _in_units_of(params: QuantParams, bias: ConstantValue) -> npt.NDArray[np.float32]:
    """Return a float bias over the scale of the result; what is beyond float32 saturates any result."""
    largest = np.finfo(np.float32).max
    units = bias.values.astype(np.float64) / params.scale.astype(np.float64)
    return np.clip(units, -largest, largest).astype(np.float32)


def _per_channel(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    flat = array.reshape(-1, array.shape[-1])
    return flat[0] if (flat == flat[:1]).all() else None


def _source_params(
    dtype: str, scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], order: tuple[int, ...], *, is_per_tensor: bool
) -> QuantParams:
    if is_per_tensor:
        return QuantParams(dtype=dtype, scale=scale[0], zero_point=zero_point[0], granularity=PerTensor())
    return QuantParams(dtype=dtype, scale=scale, zero_point=zero_point, granularity=PerAxis(order[-1]))


_BIAS_TOLERANCE = 1 / 16
"""How far a bias may move to keep accumulators within int32, in quantization steps of the result."""


def _reach(values: npt.NDArray[Any], zero_point: npt.NDArray[Any], x_params: QuantParams) -> npt.NDArray[np.int64]:
    """Return the largest |sum of products| of each output channel."""
    if np.ptp(x_params.zero_point) != 0:  # see `channels`: the kernel sums integers of zero point 0, the bias holds the rest
        return 2 * max_accumulator(values, zero_point, None, 0, 0, 255)
    low, high = INTEGER_RANGE[x_params.dtype]
    return max_accumulator(values, zero_point, None, int(np.ravel(x_params.zero_point)[0]), low, high)


def _without_overflow(
    reach: npt.NDArray[np.int64], bias: npt.NDArray[np.int32], multiplier: npt.NDArray[np.float32], bits: int
) -> npt.NDArray[np.int32] | Rejection:
    """Return the bias, moved towards 0 where an accumulator could leave `bits` by a hair, or why the layer stays float.

    Quantizers that give a channel of tiny weights a tiny scale store its bias as almost 2**31; a few more products then overflow.
    What such a bias moves by is far below one step of the result.
    """
    limit = 2 ** (bits - 1) - 1
    room = np.maximum(limit - reach, 0)
    moved = np.clip(bias.astype(np.int64), -room, room)
    steps = np.abs(moved - bias) * multiplier.astype(np.float64)
    if (reach > limit).any() or (steps > _BIAS_TOLERANCE).any():
        totals = reach + np.abs(bias.astype(np.int64))
        worst = int(np.argmax(totals))
        reason = f"the int{bits} accumulator of output channel {worst} can reach {totals[worst]}, above {limit}"
        return Rejection(reason=reason, matched=True)
    return moved.astype(np.int32)


def _bias_integers(bias: ConstantValue | None, scale: npt.NDArray[np.float32]) -> npt.NDArray[np.int32] | Rejection:
    """Return the bias in units of the accumulator, x_scale * w_scale.

    A bias stored in those units (within float32 rounding of the product) is taken as it is; any other, and a float one, is
    rounded half-even to them.
    """
    if bias is None:
        return np.zeros(scale.shape, np.int32)
    if bias.scale is not None and np.allclose(bias.scale, scale, rtol=1e-5, atol=0.0) and bias.zero_point is not None:
        units = bias.values.astype(np.int64) - bias.zero_point
    else:
        real = bias.values.astype(np.float64)
        if bias.scale is not None and bias.zero_point is not None:
            real = (real - bias.zero_point) * bias.scale
        units = np.rint(real / scale.astype(np.float64))
    low, high = INTEGER_RANGE["int32"]
    if not (np.isfinite(units).all() and (units >= low).all() and (units <= high).all()):
        worst = int(np.argmax(np.abs(units)))
        return Rejection(reason=f"bias {bias.name} of channel {worst} needs {units[worst]:.4g} units, beyond int32")
    return units.astype(np.int32)
