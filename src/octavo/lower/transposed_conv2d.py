"""Rule of nn.conv2d_transpose: one convolution that computes all pixels between two of the input's, then their weaving.

With strides (2, 2) each pixel of the input meets 2 x 2 pixels of the result, its phases. Each phase is a convolution of stride 1
with some of the taps; one convolution with a channel for each phase computes all of them and multiplies no zeros between pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from .. import kernels
from ..graph.dataflow import DataflowView, call_to, static_shape
from ..graph.rules import Region, Rejection
from ..kernels import GatherSpec
from ..numerics import PerAxis, QuantParams
from ..target import OpSupport
from .context import KernelContext, shape_of
from .conv2d import (
    ConvForm,
    Result,
    follow_weighted,
    padding_of,
    pair,
    weighted_operands,
    weighted_region,
    weights_and_result,
)
from .forms import FloatResult, Form, Layout, TensorForm
from .values import ConstantValue, Dequantized
from .weights import WeightForm


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """One axis of a transposed convolution as convolutions of stride 1, one for each of the stride's phases.

    Parameters
    ----------
    places
        Of each tap of the kernel: its place in the convolutions' kernel, and the phase that it belongs to.
    taps
        Extent of the convolutions' kernel.
    padding
        Of the input, before and after.
    first
        How many elements of the woven result come before the first one of the op's.
    """

    places: tuple[tuple[int, int], ...]
    taps: int
    padding: tuple[int, int]
    first: int


def phases(*, size: int, result: int, taps: int, stride: int, before: int, dilation: int) -> Phases:
    """Return the phases of y[o] = sum of w[k] * x[i] over o = i * stride + k * dilation - before, for o in [0; result).

    Element o is that of place `a` and phase r with o + first = a * stride + r, and reads x[a + m] through tap k where
    m * stride = r - first + before - k * dilation. Of the `first` that there are, the one with the fewest taps, then the least.
    """
    reach = [tap * dilation - before for tap in range(taps)]

    def moves(first: int) -> list[int]:
        return [((at + first) % stride - first - at) // stride for at in reach]

    def extent(first: int) -> int:
        return max(0, *moves(first)) - min(0, *moves(first)) + 1

    first = min(range(stride), key=lambda candidate: (extent(candidate), candidate))
    least = min(0, *moves(first))
    wide = extent(first)
    count = -(-(result + first) // stride)
    after = max(0, count + wide - 1 - size + least)
    places = tuple((move - least, (at + first) % stride) for move, at in zip(moves(first), reach, strict=True))
    return Phases(places=places, taps=wide, padding=(-least, after), first=first)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TransposedConvForm(Form):
    """conv2d_transpose + bias + clamp; the weight as HWIO with the inputs of one group, `padding` (top, left, bottom, right)."""

    x: TensorForm
    weight: WeightForm
    y: Result
    layout: Layout
    strides: tuple[int, int]
    padding: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one inference."""
        rows, columns, _, outputs = self.weight.values.shape
        return int(np.prod(self.x.shape)) * rows * columns * outputs // self.groups

    def quantize_info(self) -> dict[str, Any]:
        """Return its tensors by role."""
        return {"input": self.x.info(), **self.weight.info(), **self.y.roles()}

    def write(self, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
        """Write the calls: the convolution, the weaving of its phases, the cut to the result's size."""
        axes = [self._phases(at) for at in (0, 1)]
        y = self.y
        if isinstance(y, FloatResult):
            y = replace(y, bias=self._for_each_phase(y.bias))
        form = ConvForm(
            x=self.x,
            weight=self._weight_of(axes),
            y=y,
            layout=self.layout,
            strides=(1, 1),
            padding=(axes[0].padding[0], axes[1].padding[0], axes[0].padding[1], axes[1].padding[1]),
            dilation=(1, 1),
            groups=self.groups,
        )
        value, kernel = form.convolved(context, inputs, f"{output.name}_phases")
        batch, rows, columns, channels = shape_of(value)
        down, across = self.strides
        of_group = channels // (self.groups * down * across)
        value = context.reshape(f"{output.name}_apart", value, (batch, rows, columns, self.groups, down, across, of_group))
        value = context.permute(f"{output.name}_woven", value, (0, 1, 4, 2, 5, 3, 6))
        whole = (batch, rows * down, columns * across, self.groups * of_group)
        value = context.reshape(f"{output.name}_whole", value, whole)
        spatial = self._sizes(self.y.shape)
        if spatial != whole[1:3]:
            cuts = [tuple(range(axis.first, axis.first + extent)) for axis, extent in zip(axes, spatial, strict=True)]
            maps = (tuple(range(batch)), *cuts, tuple(range(whole[3])))
            dtype: Any = y.kernel_dtype
            cut = kernels.gather(GatherSpec(shape=whole, maps=maps, dtype=dtype, threads=context.threads), isa=context.isa)
            value = context.call(output.name, cut, [value], (batch, *spatial, whole[3]), dtype)
        context.does_the_work(kernel)
        context.put(output, value, is_nhwc=self.layout == "NCHW")

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, int]:
        rows, columns = shape[2:] if self.layout == "NCHW" else shape[1:3]
        return rows, columns

    def _phases(self, at: int) -> Phases:
        return phases(
            size=self._sizes(self.x.shape)[at],
            result=self._sizes(self.y.shape)[at],
            taps=self.weight.values.shape[at],
            stride=self.strides[at],
            before=self.padding[at],
            dilation=self.dilation[at],
        )

    def _weight_of(self, axes: list[Phases]) -> WeightForm:
        """Return the weight of the convolution of all phases: channels in the order of groups, rows, columns, outputs."""
        rows, columns = axes
        weight = self.weight
        inputs, outputs = weight.values.shape[2:]
        of_group = outputs // self.groups
        shape = (rows.taps, columns.taps, inputs, self.groups, *self.strides, of_group)
        zero_points = weight.zero_point.reshape(self.groups, 1, 1, of_group)
        values = np.broadcast_to(zero_points, shape).astype(np.int8)  # taps that a phase lacks multiply by 0
        for i, (row, down) in enumerate(rows.places):
            for j, (column, across) in enumerate(columns.places):
                values[row, column, :, :, down, across] = weight.values[i, j].reshape(inputs, self.groups, of_group)
        return replace(
            weight,
            values=values.reshape(rows.taps, columns.taps, inputs, -1),
            zero_point=self._for_each_phase(weight.zero_point),
            bias=self._for_each_phase(weight.bias),
            bias_scale=self._for_each_phase(weight.bias_scale),
            multiplier=self._for_each_phase(weight.multiplier),
            real_bias=None if weight.real_bias is None else self._for_each_phase(weight.real_bias),
        )

    def _for_each_phase(self, channels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        apart = channels.reshape(self.groups, 1, 1, -1)
        return np.broadcast_to(apart, (self.groups, *self.strides, apart.shape[3])).reshape(-1)


def layout_obstacle(call: Any) -> Rejection | None:
    """Return why the layouts of a transposed convolution are not those of a kernel, or None."""
    layout, kernel_layout = str(call.attrs.data_layout), str(call.attrs.kernel_layout)
    is_known = layout in ("NCHW", "NHWC") and sorted(kernel_layout) == sorted("HWIO")
    if is_known and str(call.attrs.out_layout) in ("", layout):
        return None
    return Rejection(reason=f"its layouts are {layout} and {kernel_layout}, expected NCHW or NHWC and an order of IOHW")


def match_conv2d_transpose(view: DataflowView, core: Var, support: OpSupport) -> Region | Rejection:
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
    way = follow_weighted(view, core, (x, turned), (channel_axis, 3), support)
    if isinstance(way, Rejection):
        return way
    formed = weights_and_result(way, (0, 1, 2, 3), x.params, support)
    if isinstance(formed, Rejection):
        return formed
    in_shape = static_shape(x.source)
    assert in_shape is not None, "checked with the operands"
    form = TransposedConvForm(
        x=TensorForm(name=x.source.name, shape=in_shape, params=x.params),
        weight=replace(formed[0], params=_source_params(weight, formed[0].params)),
        y=formed[1],
        layout=source,
        strides=pair(call.attrs.strides),
        padding=padding_of(call.attrs.padding),
        dilation=pair(call.attrs.dilation),
        groups=groups,
    )
    return weighted_region(core, x, way, form)


def as_convolution(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return HWIO of all groups' inputs and one group's outputs as a convolution has it: one's inputs, all groups' outputs."""
    rows, columns, inputs, outputs = weight.shape
    apart = weight.reshape(rows, columns, groups, inputs // groups, outputs).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(apart).reshape(rows, columns, inputs // groups, groups * outputs)


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
