"""Rules of the ops with weights: nn.conv2d and matmul."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from .....numerics import INTEGER_RANGE, QuantParams
from .....numerics.dynamic import is_by_row
from .....numerics.quantized.accumulator_bounds import max_accumulator
from .....numerics.rounding.fixed_point import FixedPointMultiplier, FixedPointRounding
from .....numerics.rounding.requantize import ScaledRounding
from .....target import OpSupport
from .....target.vocabulary import FIXED_POINT_WIDE_BIAS
from ....composites.base import (
    WIDE,
    CompositeOp,
    FloatResult,
    FunctionResult,
    Layout,
    QuantizedOutput,
    QuantizedTensor,
    SumResult,
)
from ....composites.weighted import Conv2dOp, DynamicTensor, MatmulOp, QuantizedWeight, Result
from ....graph.dataflow import DataflowView, call_to, dtype_of, static_shape
from ....graph.rules import Region, Rejection
from ...integer_sums import CenteredInput, centered_input, follow_scaling, integer_weight
from ...pad import FoldedPad, folded_pad
from ...rounding import is_fixed_point, result_rounding, unscalable
from ...runtime_inputs import UNIT, DynamicInput, dynamic_input, dynamic_tensor
from ...tail import FloatTail, SumTail, Tail, check_activation, follow_in_float, follow_to_quantize, of_width
from ...values import ConstantValue, Dequantized, dequantized, real_values
from ...weights import quantized_weight, read_bias, read_weight
from ..elementwise.function_tail import FunctionTail, follow_function

Input = Dequantized | DynamicInput | CenteredInput

_Op = TypeVar("_Op", Conv2dOp, MatmulOp)


def match_conv2d(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(conv2d(dequantize(x), dequantize(w)) + bias)).

    Before::

        x = R.dequantize(x_q, ...); w = R.dequantize(w_q, ...)
        lv = R.nn.conv2d(x, w); lv1 = R.add(lv, b); y = R.quantize(lv1, ...)

    After: one composite "octavo.conv2d" from x_q to y. Where nothing quantizes the result, and the target's kernels can leave it
    in float32, the composite ends before its reader.
    """
    call = call_to(view.definition(core), "nn.conv2d")
    assert call is not None
    layout = str(call.attrs.data_layout)
    if layout not in ("NCHW", "NHWC") or str(call.attrs.out_layout) not in ("", layout):
        return Rejection(reason=f"data layout {layout} is neither NCHW nor NHWC; transpose to one of them")
    source: Layout = "NCHW" if layout == "NCHW" else "NHWC"
    kernel_layout = str(call.attrs.kernel_layout)
    if sorted(kernel_layout) != sorted("HWIO"):
        return Rejection(reason=f"kernel layout {kernel_layout} is no order of O, I, H, W; convert it to OIHW")
    pad = folded_pad(view, call)
    channel_axis = 1 if source == "NCHW" else 3
    shape, in_shape = static_shape(core), static_shape(call.args[0])
    if shape is None or in_shape is None or 0 in shape:
        return Rejection(reason=f"the shape of {core.name} is not static, or without elements")
    # Where each channel has its own filters it may have its own scale, too.
    is_depthwise = int(call.attrs.groups) == in_shape[channel_axis]
    operands = weighted_operands(view, call, support, pad, channel_axis if is_depthwise else None)
    if isinstance(operands, Rejection):
        return operands
    x, weight = operands
    support = of_width(support, x.params)
    order, axes = tuple(kernel_layout.index(axis) for axis in "HWIO"), (channel_axis, kernel_layout.index("O"))
    followed = follow_weighted(view, core, (x, weight), axes, order, support, channel_axis)
    if isinstance(followed, Rejection):
        return followed
    weighted, weights, result = followed
    op = Conv2dOp(
        x=quantized_input(x),
        weight=weights,
        y=result,
        accumulator_bits=support.bits_of(x.params.dtype),
        layout=source,
        strides=pair(call.attrs.strides),
        padding=padding_of(call.attrs.padding) if pad is None else pad.widths,
        dilation=pair(call.attrs.dilation),
        groups=int(call.attrs.groups),
    )
    if op.y.kernel_dtype == "int16" and op.y.fixed_point is None:
        # TFLite's sums of 64 bits meet a factor of 15 bits, those of 32 bits one of 31.
        asked = result_rounding(view, weighted.tail.members)
        op = _wide(op, asked, "twice" if op.weight.bias_name and asked != FIXED_POINT_WIDE_BIAS else "reduced")
    else:
        op = _in_integers(op)
    if isinstance(op, Rejection):
        return op
    region = weighted_region(core, x, weighted, op)
    return region if pad is None else replace(region, members=tuple(dict.fromkeys((*pad.members, *region.members))))


def match_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(matmul(dequantize(x), dequantize(w)) + bias)) with a constant two-dimensional w [in, out]."""
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    operands = weighted_operands(view, call, support)
    if isinstance(operands, Rejection):
        return operands
    x, weight = operands
    support = of_width(support, x.params)
    shape = static_shape(core)
    x_shape = static_shape(x.source)
    if weight.values.ndim != 2 or shape is None or not x_shape or 0 in (*shape, *x_shape):
        return Rejection(reason=f"matmul of {x_shape} by {weight.values.shape}: the kernel takes [..., in] by [in, out]")
    followed = follow_weighted(view, core, (x, weight), (len(shape) - 1, 1), (0, 1), support)
    if isinstance(followed, Rejection):
        return followed
    weighted, weights, result = followed
    bits = support.bits_of(x.params.dtype)
    op = MatmulOp(x=quantized_input(x), weight=weights, y=result, accumulator_bits=bits)
    if op.y.kernel_dtype == "int16" and op.y.fixed_point is None:
        asked = result_rounding(view, weighted.tail.members)
        op = _wide(op, asked, "once" if op.weight.bias_name and asked == FIXED_POINT_WIDE_BIAS else "twice")
    else:
        op = _in_integers(op)
    return op if isinstance(op, Rejection) else weighted_region(core, x, weighted, op)


def _wide(op: _Op, asked: str, rounding: FixedPointRounding) -> _Op | Rejection:
    """Return the op of int16 in the arithmetic that its source asks for, once no sum times a fixed-point factor leaves int64."""
    x, y = op.x, op.y
    assert isinstance(x, QuantizedTensor)
    assert isinstance(y, QuantizedOutput)
    if x.params.scale.ndim or y.tensor.params.scale.ndim:
        return Rejection(reason=f"activation {x.name} is quantized per axis; kernels take one scale per tensor")
    if not is_fixed_point(asked):
        return op
    return _within_int64(replace(op, fixed_point=rounding), x.params)


def _in_integers(op: _Op) -> _Op | Rejection:
    """Return the op in the integers of accelerators, where its quantize says so."""
    if isinstance(op.x, QuantizedTensor) and op.x.kernel_dtype == "int16" and op.x.params.scale.ndim:
        return Rejection(reason=f"activation {op.x.name} is quantized per axis; kernels of 16 bits take one scale per tensor")
    if not isinstance(op.y, QuantizedOutput) or not isinstance(op.x, QuantizedTensor):
        return op
    result, weight, rounding = op.y.tensor, op.weight, op.y.fixed_point
    if rounding is None:
        return op
    tensors = {op.x.name: op.x.params, weight.name: weight.params, result.name: result.params}
    problem = unscalable(rounding, {name: params.scale for name, params in tensors.items()})
    if problem is not None:
        return problem
    wide = next((name for name, params in tensors.items() if params is not weight.params and params.scale.ndim), None)
    if wide is not None:
        return Rejection(reason=f"{wide} is quantized per axis; {rounding} takes one scale per tensor", matched=True)
    if weight.real_bias is not None:
        return Rejection(reason=f"bias {weight.bias_name} is float; {rounding} takes int32 in units of the sums", matched=True)
    return _within_int64(replace(op, fixed_point=rounding), op.x.params)


def _within_int64(op: _Op, x: QuantParams) -> _Op | Rejection:
    """Return the op unless a sum times its fixed-point factor may leave int64."""
    weight, factor = op.weight, op.multiplier
    assert isinstance(factor, FixedPointMultiplier)
    reach = max_accumulator(weight.values, weight.zero_point, weight.bias, int(x.zero_point), *INTEGER_RANGE[x.dtype])
    largest = int(reach.max(initial=0))
    largest = largest if op.narrow is None else min(largest, -op.narrow.bounds[0])
    if largest <= factor.max_value:
        return op
    assert isinstance(op.y, QuantizedOutput), "sums in fixed point end in integers"
    reason = f"a sum of {op.y.tensor.name} can reach {largest}; its factor allows {factor.max_value} in 64 bits"
    return Rejection(reason=reason, matched=True)


def weighted_operands(
    view: DataflowView,
    call: Any,
    support: OpSupport,
    pad: FoldedPad | None = None,
    channel_axis: int | None = None,
    *,
    weight: Expr | None = None,
) -> tuple[Input, ConstantValue] | Rejection:
    """Return the quantized input and weight of an op, as far as the target takes them; the weight is its second operand."""
    of_sums = dtype_of(call) == "int32"
    x: Input | Rejection | None = dequantized(view, call.args[0]) if pad is None else pad.source
    if x is None and (support.float_output or of_sums):
        x = dynamic_input(view, call.args[0])
    if x is None and of_sums:
        x = centered_input(view, call.args[0])
    if isinstance(x, Rejection):
        return x
    name = getattr(call.args[0], "name", "constant")
    if isinstance(x, DynamicInput) and is_by_row(x.found.style) and not support.per_row_input:
        return Rejection(reason=f"input {x.source.name} is quantized per row when run, which the target does not take")
    if isinstance(x, DynamicInput) and call_to(call, "nn.conv2d") is not None and x.found.shape[0] != x.shape[0]:
        return Rejection(reason=f"input {x.source.name} has other parameters in each row, and a convolution sums over rows")
    if x is None or not isinstance(x.source, Var):
        return Rejection(reason=f"input {name} is float; quantize and dequantize it (constant scale) before this op")
    if static_shape(x.source) is None:
        return Rejection(reason=f"the shape of input {name} is not static")
    if not isinstance(x, DynamicInput):  # whose integers nobody sees
        problem = check_activation(x.source.name, x.params, support, channel_axis, own_zero_points=True)
        if problem is not None:
            return problem
    weight_operand: Any = call.args[1] if weight is None else weight
    found = (integer_weight(view, weight_operand) if of_sums else None) or read_weight(view, weight_operand, support)
    return found if isinstance(found, Rejection) else (x, found)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WeightedMatch:
    """What becomes of an op's result within the kernel: the weight with its scales, bias and tail, and the variables passed."""

    weight: ConstantValue
    bias: ConstantValue | None
    tail: Tail | FunctionTail | FloatTail | SumTail
    members: tuple[Var, ...]
    rounding: ScaledRounding = "fused"


def follow_weighted(
    view: DataflowView,
    core: Var,
    operands: tuple[Input, ConstantValue],
    axes: tuple[int, int],
    order: tuple[int, ...],
    support: OpSupport,
    channel_axis: int | None = None,
) -> tuple[WeightedMatch, QuantizedWeight, Result] | Rejection:
    """Walk from the op's result to what leaves the kernel; `axes` are those of output channels in the result and the weight."""
    x = operands[0]
    if dtype_of(core) == "int32" and not isinstance(x, Dequantized):
        found = _follow_sums(view, core, (x, operands[1]), axes, support)
    elif dtype_of(core) != "float32":
        return Rejection(reason=f"the result {core.name} is {dtype_of(core)}")
    else:
        found = _follow_real(view, core, core, operands, axes[0], support, channel_axis)
    if isinstance(found, Rejection):
        return found
    formed = _weights_and_result(found, order, x.params, support)
    return formed if isinstance(formed, Rejection) else (found, *formed)


def _follow_sums(
    view: DataflowView,
    core: Var,
    operands: tuple[DynamicInput | CenteredInput, ConstantValue],
    axes: tuple[int, int],
    support: OpSupport,
) -> WeightedMatch | Rejection:
    """Walk from int32 sums to integers or reals where constants scale them, else leave them, with an int32 bias, as they are."""
    x, weight = operands
    start, bias = _with_bias(view, core, axes[0], weight.values.shape[axes[1]], support)
    if bias is not None and (bias.scale is not None or bias.values.dtype != np.int32):
        start, bias = core, None
    scaling = follow_scaling(view, start, x, axes[0])
    # The units of an int32 bias are known where the input's scale is.
    if scaling is not None and support.float_output and (bias is None or isinstance(x, CenteredInput)):
        along = [-1 if axis == axes[1] else 1 for axis in range(weight.values.ndim)]
        scaled = replace(weight, scale=np.broadcast_to(scaling.factor.reshape(along), weight.values.shape))
        weighted = _follow_real(view, core, scaling.output, (x, scaled), axes[0], support, None, has_bias=bias is not None)
        if not isinstance(weighted, Rejection):
            passed = tuple(dict.fromkeys((start, *scaling.members, *weighted.members)))
            if bias is None:
                return replace(weighted, members=passed, rounding=scaling.rounding)
            return replace(weighted, bias=_in_units(bias, scaling.factor), members=(*bias.members, *passed))
    if not support.sum_output:
        return Rejection(reason=f"the int32 result {core.name} is read as it is, not scaled to float")
    if bias is None:
        return WeightedMatch(weight=weight, bias=None, tail=SumTail(output=core), members=())
    return WeightedMatch(
        weight=weight, bias=_in_units(bias, np.ones(1)), tail=SumTail(output=start), members=(*bias.members, start)
    )


def _in_units(bias: ConstantValue, scale: npt.NDArray[Any]) -> ConstantValue:
    """Return a bias of int32 sums as one of units of `scale`."""
    scales = np.broadcast_to(scale.astype(np.float32), bias.values.shape)
    return replace(bias, scale=scales, zero_point=np.zeros(bias.values.shape, np.int32))


def _follow_real(
    view: DataflowView,
    core: Var,
    current: Var,
    operands: tuple[Input, ConstantValue],
    axis: int,
    support: OpSupport,
    channel_axis: int | None,
    *,
    has_bias: bool = False,
) -> WeightedMatch | Rejection:
    """Walk from the float result `current` of the op: to its quantize; where there is none, to where it is read in float."""
    x, weight = operands
    shape = static_shape(current)
    assert shape is not None
    start, bias = (current, None) if has_bias else _with_bias(view, current, axis, shape[axis], support)
    tail = (
        follow_in_float(view, start, support)
        if isinstance(x, DynamicInput)
        else follow_to_quantize(view, start, support, channel_axis=channel_axis)
    )
    if isinstance(tail, Rejection) and support.float_function and isinstance(x, Dequantized) and x.params.dtype not in WIDE:
        tail = follow_function(view, start, axis, support) or tail
    if isinstance(tail, Rejection) and support.float_output and dtype_of(start) == "float32":
        tail = follow_in_float(view, start, support)
    if isinstance(tail, Rejection):
        return tail
    passed = () if start.same_as(core) else (start,)
    return WeightedMatch(weight=weight, bias=bias, tail=tail, members=(*(() if bias is None else bias.members), *passed))


def _with_bias(view: DataflowView, core: Var, axis: int, channels: int, support: OpSupport) -> tuple[Var, ConstantValue | None]:
    found = read_bias(view, core, axis, channels) if "bias" in support.fusions else None
    return (core, None) if found is None else found


def _weights_and_result(
    weighted: WeightedMatch, order: tuple[int, ...], x_params: QuantParams, support: OpSupport
) -> tuple[QuantizedWeight, Result] | Rejection:
    """Return the weight in the kernel's order, and the result; a real result takes the bias as real numbers."""
    tail, bias = weighted.tail, weighted.bias
    if isinstance(tail, Tail):
        weights = quantized_weight(weighted.weight, order, bias, x_params, tail.result.tensor.params, support)
        return weights if isinstance(weights, Rejection) else (weights, tail.result)
    is_real = isinstance(tail, FloatTail | FunctionTail)
    weights = quantized_weight(weighted.weight, order, None if is_real else bias, x_params, UNIT, support)
    if isinstance(weights, Rejection):
        return weights
    shape = static_shape(tail.output)
    assert shape is not None
    if isinstance(tail, SumTail):
        return weights, SumResult(name=tail.output.name, shape=shape)
    real = np.zeros(weights.bias.shape, np.float32) if bias is None else np.ascontiguousarray(real_values(bias))
    bias_name = "" if bias is None else bias.name
    facts: dict[str, Any] = {"name": tail.output.name, "shape": shape, "bias": real, "bias_name": bias_name}
    if isinstance(tail, FunctionTail):
        return weights, FunctionResult(
            **facts,
            low=-math.inf,
            high=math.inf,
            function=tail.function,
            channels=tail.channels,
            factors=tail.factors,
            y=tail.result,
        )
    return weights, FloatResult(**facts, low=tail.low, high=tail.high, rounding=weighted.rounding)


def quantized_input(x: Input) -> QuantizedTensor | DynamicTensor:
    """Return what an op reads as composites have it."""
    if isinstance(x, DynamicInput):
        return dynamic_tensor(x)
    assert isinstance(x.source, Var)
    shape = static_shape(x.source)
    assert shape is not None
    return QuantizedTensor(name=x.source.name, shape=shape, params=x.params)


def weighted_region(core: Var, x: Input, weighted: WeightedMatch, op: CompositeOp) -> Region[CompositeOp]:
    """Return the composite of an op with weights: from its input through `weighted` to what leaves the kernel."""
    assert isinstance(x.source, Var)
    entry = () if isinstance(x, Dequantized) and x.var is None else (x.var,) if isinstance(x, Dequantized) else x.members
    members = (*entry, *weighted.weight.members, core, *weighted.members, *weighted.tail.members)
    return Region(
        core=core,
        output=weighted.tail.output,
        members=tuple(dict.fromkeys(var for var in members if var is not None)),
        inputs=(x.source,),
        op=op,
    )


def pair(values: Any) -> tuple[int, int]:
    """Return an attribute's two numbers, of rows and columns."""
    first, second = (int(value) for value in values)
    return first, second


def padding_of(values: Any) -> tuple[int, int, int, int]:
    """Return an attribute's four numbers: top, left, bottom, right."""
    top, left, bottom, right = (int(value) for value in values)
    return top, left, bottom, right
