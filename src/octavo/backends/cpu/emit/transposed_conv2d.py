"""Kernel calls of composites: transposed_conv2d. Reads no QDQ graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Var

from ....composites.base import FloatResult
from ....composites.weighted import Conv2dOp, Conv2dTransposeOp, QuantizedWeight
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import GatherSpec
from .conv2d import convolved


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


@emits(Conv2dTransposeOp)
def emit_conv2d_transpose(op: Conv2dTransposeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the calls: the convolution, the weaving of its phases, the cut to the result's size."""
    axes = [_phases(op, at) for at in (0, 1)]
    y = op.y
    if isinstance(y, FloatResult):
        y = replace(y, bias=_for_each_phase(op, y.bias))
    conv = Conv2dOp(
        x=op.x,
        weight=_weight_of(op, axes),
        y=y,
        accumulator_bits=op.accumulator_bits,
        layout=op.layout,
        strides=(1, 1),
        padding=(axes[0].padding[0], axes[1].padding[0], axes[0].padding[1], axes[1].padding[1]),
        dilation=(1, 1),
        groups=op.groups,
    )
    value, kernel = convolved(conv, context, inputs, f"{output.name}_phases")
    batch, rows, columns, channels = shape_of(value)
    down, across = op.strides
    of_group = channels // (op.groups * down * across)
    value = context.reshape(f"{output.name}_phases_split", value, (batch, rows, columns, op.groups, down, across, of_group))
    value = context.permute(f"{output.name}_woven", value, (0, 1, 4, 2, 5, 3, 6))
    full = (batch, rows * down, columns * across, op.groups * of_group)
    value = context.reshape(f"{output.name}_phases_merged", value, full)
    spatial = _sizes(op, op.y.shape)
    if spatial != full[1:3]:
        cuts = [tuple(range(axis.first, axis.first + extent)) for axis, extent in zip(axes, spatial, strict=True)]
        maps = (tuple(range(batch)), *cuts, tuple(range(full[3])))
        dtype: Any = y.kernel_dtype
        cut = kernels.gather(GatherSpec(shape=full, maps=maps, dtype=dtype, threads=context.threads), isa=context.isa)
        value = context.call(output.name, cut, [value], (batch, *spatial, full[3]), dtype)
    context.does_the_work(kernel)
    context.put(output, value, is_nhwc=op.layout == "NCHW")


def _sizes(op: Conv2dTransposeOp, shape: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = shape[2:] if op.layout == "NCHW" else shape[1:3]
    return rows, columns


def _phases(op: Conv2dTransposeOp, at: int) -> Phases:
    return phases(
        size=_sizes(op, op.x.shape)[at],
        result=_sizes(op, op.y.shape)[at],
        taps=op.weight.values.shape[at],
        stride=op.strides[at],
        before=op.padding[at],
        dilation=op.dilation[at],
    )


def _weight_of(op: Conv2dTransposeOp, axes: list[Phases]) -> QuantizedWeight:
    """Return the weight of the convolution of all phases: channels in the order of groups, rows, columns, outputs."""
    rows, columns = axes
    weight = op.weight
    inputs, outputs = weight.values.shape[2:]
    of_group = outputs // op.groups
    shape = (rows.taps, columns.taps, inputs, op.groups, *op.strides, of_group)
    zero_points = weight.zero_point.reshape(op.groups, 1, 1, of_group)
    values = np.broadcast_to(zero_points, shape).astype(np.int8)  # taps that a phase lacks multiply by 0
    for i, (row, down) in enumerate(rows.places):
        for j, (column, across) in enumerate(columns.places):
            values[row, column, :, :, down, across] = weight.values[i, j].reshape(inputs, op.groups, of_group)
    return replace(
        weight,
        values=values.reshape(rows.taps, columns.taps, inputs, -1),
        zero_point=_for_each_phase(op, weight.zero_point),
        bias=_for_each_phase(op, weight.bias),
        bias_scale=_for_each_phase(op, weight.bias_scale),
        multiplier=_for_each_phase(op, weight.multiplier),
        real_bias=None if weight.real_bias is None else _for_each_phase(op, weight.real_bias),
    )


def _for_each_phase(op: Conv2dTransposeOp, channels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    grouped = channels.reshape(op.groups, 1, 1, -1)
    return np.broadcast_to(grouped, (op.groups, *op.strides, grouped.shape[3])).reshape(-1)
