"""Rule of the float32 transposed convolution with constant weights, in a kernel of our own. It has no quantize_info."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import FloatConv2dTransposeSpec, transposed_obstacle
from .context import KernelContext, shape_of
from .conv2d import padding_of, pair
from .float_conv2d import FloatForm
from .float_tail import FusedTail, float_operands, float_region, real_in_order
from .forms import Layout
from .transposed_conv2d import as_convolution, layout_obstacle


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FloatTransposedForm(FloatForm):
    """A transposed convolution; weight is HWIO with the inputs of one group, `padding` (top, left)."""

    x_shape: tuple[int, ...]
    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference: each element of the input meets each tap, for the outputs of its group."""
        rows, columns, _, outputs = self.weight.shape
        return math.prod(self.x_shape) * rows * columns * outputs // self.groups

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the kernel call."""
        is_nhwc = self.layout == "NCHW"
        names = [name for name in (self.x, self.addend) if name is not None]
        arguments = [context.storage.get(inputs[name], is_nhwc=is_nhwc) for name in names]
        spec = self.spec(shape_of(arguments[0]), context.threads)
        kernel = kernels.float_conv2d_transpose(spec, weight=self.weight, bias=self.bias, isa=context.isa)
        shape = (spec.batch, spec.out_height, spec.out_width, spec.out_channels)
        result = self._call(context, output, kernel, [*arguments], shape, inputs, is_nhwc=is_nhwc)
        context.put(output, result, is_nhwc=is_nhwc)

    def spec(self, shape: tuple[int, ...], threads: int) -> FloatConv2dTransposeSpec:
        """Return it as kernels take it, for an NHWC input of this shape."""
        batch, height, width, channels = shape
        rows, columns = self.output_shape[2:] if self.layout == "NCHW" else self.output_shape[1:3]
        return FloatConv2dTransposeSpec(
            batch=batch,
            in_height=height,
            in_width=width,
            in_channels=channels,
            out_height=rows,
            out_width=columns,
            out_channels=self.weight.shape[3],
            kernel=(self.weight.shape[0], self.weight.shape[1]),
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
            adds=self.addend is not None,
            low=self.low if self.observation is None else -math.inf,
            high=self.high if self.observation is None else math.inf,
            threads=threads,
        )


def match_float_conv2d_transpose(view: DataflowView, core: Var) -> Region | Rejection:
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
    form = FloatTransposedForm(
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
    nhwc = x_shape if layout == "NHWC" else tuple(x_shape[axis] for axis in (0, 2, 3, 1))
    reason = transposed_obstacle(form.spec(nhwc, 1))
    return Rejection(reason=f"{core.name}: {reason}") if reason else float_region(view, core, x, tail, form)
