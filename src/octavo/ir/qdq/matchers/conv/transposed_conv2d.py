"""Rule of nn.conv2d_transpose: one convolution that computes all pixels between two of the input's, then their weaving.

With strides (2, 2) each pixel of the input meets 2 x 2 pixels of the result, its phases. Each phase is a convolution of stride 1
with some of the taps; one convolution with a channel for each phase computes all of them and multiplies no zeros between pixels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .....numerics import PerAxis, QuantParams
from .....target import OpSupport
from ....composites.base import CompositeOp, Layout, QuantizedTensor
from ....composites.weighted import Conv2dTransposeOp
from ....graph.dataflow import DataflowView, call_to, static_shape
from ....graph.rules import Region, Rejection
from ...values import ConstantValue, Dequantized
from .conv2d import follow_weighted, padding_of, pair, weighted_operands, weighted_region


def layout_obstacle(call: Any) -> Rejection | None:
    """Return why the layouts of a transposed convolution are not those of a kernel, or None."""
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    is_known = layout in ("NCHW", "NHWC") and sorted(kernel_layout) == sorted("HWIO")
    if is_known and str(call.attrs.out_layout) in ("", layout):
        return None
    return Rejection(reason=f"its layouts are {layout} and {kernel_layout}, expected NCHW or NHWC and an order of IOHW")


def match_conv2d_transpose(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(conv2d_transpose(dequantize(x), dequantize(w)) + bias)).

    Before::

        x = R.dequantize(x_q, ...); w = R.dequantize(w_q, ...)
        lv = R.nn.conv2d_transpose(x, w, strides=(2, 2)); lv1 = R.add(lv, b); y = R.quantize(lv1, ...)

    After: one composite "octavo.conv2d_transpose" from x_q to y.
    """
    call: Any = call_to(view.definition(core), "nn.conv2d_transpose")
    assert call is not None
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if (obstacle := layout_obstacle(call)) is not None:
        return obstacle
    source: Layout = "NCHW" if layout == "NCHW" else "NHWC"
    shape = static_shape(core)
    if shape is None or 0 in shape:
        return Rejection(reason=f"the shape of {core.name} is not static, or without elements")
    operands = weighted_operands(view, call, support)
    if isinstance(operands, Rejection):
        return operands
    x, weight = operands
    if not isinstance(x, Dequantized) or not isinstance(x.source, Var):
        return Rejection(reason="its input is quantized at run time; the kernel takes constant scales")
    groups = int(call.attrs.groups)
    channel_axis = layout.index("C")
    # As the weight of a convolution: rows, columns, inputs of a group, outputs of all groups.
    turned = _turned(weight, kernel_layout, groups)
    followed = follow_weighted(view, core, (x, turned), (channel_axis, 3), (0, 1, 2, 3), support)
    if isinstance(followed, Rejection):
        return followed
    weighted, weights, result = followed
    in_shape = static_shape(x.source)
    assert in_shape is not None, "checked with the operands"
    op = Conv2dTransposeOp(
        x=QuantizedTensor(name=x.source.name, shape=in_shape, params=x.params),
        weight=replace(weights, params=_source_params(weight, weights.params)),
        y=result,
        accumulator_bits=support.bits_of(x.params.dtype),
        layout=source,
        strides=pair(call.attrs.strides),
        padding=padding_of(call.attrs.padding),
        dilation=pair(call.attrs.dilation),
        groups=groups,
    )
    return weighted_region(core, x, weighted, op)


def as_convolution(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return HWIO of all groups' inputs and one group's outputs as a convolution has it: one's inputs, all groups' outputs."""
    rows, columns, inputs, outputs = weight.shape
    separate = weight.reshape(rows, columns, groups, inputs // groups, outputs).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(separate).reshape(rows, columns, inputs // groups, groups * outputs)


def _turned(weight: ConstantValue, kernel_layout: str, groups: int) -> ConstantValue:
    order = tuple(kernel_layout.index(axis) for axis in "HWIO")

    def turn(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return as_convolution(array.transpose(order), groups)

    assert weight.scale is not None, "read_weight returns quantized weights"
    assert weight.zero_point is not None, "read_weight returns quantized weights"
    return replace(weight, values=turn(weight.values), scale=turn(weight.scale), zero_point=turn(weight.zero_point))


def _source_params(weight: ConstantValue, turned: QuantParams) -> QuantParams:
    """Return the parameters as the source's weight has them, along its own axis."""
    if not isinstance(turned.granularity, PerAxis):
        return turned
    assert weight.scale is not None, "read_weight returns quantized weights"
    assert weight.zero_point is not None, "read_weight returns quantized weights"
    for axis, size in enumerate(weight.values.shape):
        scale = np.moveaxis(weight.scale, axis, 0).reshape(size, -1)
        zero_point = np.moveaxis(weight.zero_point, axis, 0).reshape(size, -1)
        if (scale == scale[:, :1]).all() and (zero_point == zero_point[:, :1]).all():
            granularity = PerAxis(axis)
            return QuantParams(dtype=turned.dtype, scale=scale[:, 0], zero_point=zero_point[:, 0], granularity=granularity)
    raise AssertionError("a weight has its scales along one axis")
