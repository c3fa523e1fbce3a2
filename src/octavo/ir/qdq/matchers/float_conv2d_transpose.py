"""Rule of the float32 transposed convolution with constant weights, in a kernel of our own. It has no quantize_info."""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatConv2dTransposeOp
from ...graph.dataflow import DataflowView, static_shape
from ...graph.rules import Region, Rejection
from .conv2d import padding_of, pair
from .float_tail import FusedTail, float_operands, float_region, real_in_order
from .transposed_conv2d import as_convolution, layout_obstacle


def match_float_conv2d_transpose(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim clamp(conv2d_transpose(x, w) + bias + addend) of a float32 x and a constant w."""
    call: Any = view.definition(core)
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if (obstacle := layout_obstacle(call)) is not None:
        return obstacle
    operands = float_operands(view, core, call)
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    groups = int(call.attrs.groups)
    turned = as_convolution(real_in_order(weight, tuple(kernel_layout.index(letter) for letter in "HWIO")), groups)
    tail = FusedTail(view, core, layout.index("C"), turned, adds=True)
    x_shape = static_shape(x)
    assert x_shape is not None, "checked with the operands"
    op = FloatConv2dTransposeOp(
        op="nn.conv2d_transpose",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        output_shape=shape,
        x_shape=x_shape,
        layout="NCHW" if layout == "NCHW" else "NHWC",
        strides=pair(call.attrs.strides),
        padding=padding_of(call.attrs.padding)[:2],
        dilation=pair(call.attrs.dilation),
        groups=groups,
    )
    for axis, extent in enumerate((shape[layout.index("H")], shape[layout.index("W")])):
        if _has_untouched_outputs(extent, taps=turned.shape[axis], op=op, axis=axis):
            return Rejection(reason=f"{core.name}: stride {op.strides[axis]} leaves outputs that no tap reaches")
    return float_region(view, core, x, tail, op)


def _has_untouched_outputs(extent: int, *, taps: int, op: FloatConv2dTransposeOp, axis: int) -> bool:
    """Return whether an output o exists that no input reaches: (o + padding - tap * dilation) % stride != 0 for all taps."""
    stride, dilation, before = op.strides[axis], op.dilation[axis], op.padding[axis]
    return any(all((o + before - tap * dilation) % stride for tap in range(taps)) for o in range(min(stride, extent)))
