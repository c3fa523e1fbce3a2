"""Rules of the float32 ops with constant weights, nn.conv2d, nn.conv2d_transpose and matmul: what no integer rule took.

A composite holds the op, its bias, a batch normalization (folded into weight and bias), the sum with another activation and its
clamps, as far as nobody else reads what lies between; the op's result may be observed instead of being added to another. It has
no quantize_info.
"""

from __future__ import annotations

from typing import Any

from tvm.relax import Var

from .....runtime.shapes import bounded, smallest
from ....composites.base import CompositeOp
from ....composites.float_ops import FloatConv2dOp, FloatConv2dTransposeOp, FloatMatmulOp, FloatWeightedOp
from ....graph.dataflow import DataflowView, static_shape
from ....graph.rules import Region, Rejection
from .conv2d import padding_of, pair
from .float_tail import FusedTail, float_operands, float_region, real_in_order
from .transposed_conv2d import as_convolution, layout_obstacle


def match_float_conv2d(view: DataflowView, core: Var, *, takes_function: bool = True) -> Region[FloatWeightedOp] | Rejection:
    """Claim clamp(conv2d(x, w) + bias + addend) of a float32 x and a constant w, or a function of the sum and the addend.

    Before::

        lv = R.nn.conv2d(x, w); lv1 = R.add(lv, b); lv2 = R.add(lv1, z); y = R.nn.relu(lv2)

    After: one composite "octavo.float_conv2d" from x and z to y.
    """
    call: Any = view.definition(core)
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    if (
        layout not in ("NCHW", "NHWC")
        or str(call.attrs.out_layout) not in ("", layout)
        or sorted(kernel_layout) != sorted("HWIO")
    ):
        return Rejection(reason=f"layouts {layout} and {kernel_layout} are not those of a kernel; convert to NCHW and OIHW")
    operands = float_operands(view, core, call)
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    axis = 1 if layout == "NCHW" else 3
    values = real_in_order(weight, tuple(kernel_layout.index(letter) for letter in "HWIO"))
    is_depthwise = values.shape[2] == 1 and int(call.attrs.groups) > 1
    tail = FusedTail(view, core, axis, values, adds=not is_depthwise, takes_function=takes_function)
    op = FloatConv2dOp(
        op="nn.conv2d",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        function=tail.function,
        output_shape=shape,
        layout="NCHW" if layout == "NCHW" else "NHWC",
        strides=_ints(call.attrs.strides)[:2],
        padding=_ints(call.attrs.padding),
        dilation=_ints(call.attrs.dilation)[:2],
        groups=int(call.attrs.groups),
    )
    return float_region(view, core, x, tail, op)


def match_float_matmul(view: DataflowView, core: Var, *, takes_function: bool = True) -> Region[FloatWeightedOp] | Rejection:
    """Claim clamp(matmul(x, w) + bias + addend), or a function of sum and addend, of a float32 x and a constant w [in, out]."""
    operands = float_operands(view, core, view.definition(core))
    if isinstance(operands, Rejection):
        return operands
    x, weight, shape = operands
    if weight.values.ndim != 2 or len(static_shape(x) or ()) < 2:
        return Rejection(reason=f"matmul by {weight.values.shape}: the kernel takes [..., in] by [in, out]")
    tail = FusedTail(view, core, len(shape) - 1, real_in_order(weight, (0, 1)), adds=True, takes_function=takes_function)
    op = FloatMatmulOp(
        op="matmul",
        x=x.name,
        addend=None if tail.addend is None else tail.addend.name,
        weight=tail.weight,
        bias=tail.bias,
        low=tail.low,
        high=tail.high,
        observation=tail.observation,
        function=tail.function,
        output_shape=shape,
    )
    return float_region(view, core, x, tail, op)


def _ints(values: Any) -> Any:
    return tuple(int(value) for value in values)


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
    first = range(bounded(smallest((stride, extent)), stride))
    return any(all((o + before - tap * dilation) % stride for tap in range(taps)) for o in first)
