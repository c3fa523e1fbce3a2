"""A transposed convolution as one of stride 1 that computes all phases of the stride: whose result is woven, then cut.

Knows no graph, and no kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import QuantizedOutput, SumResult
from .weighted import Conv2dOp, Conv2dTransposeOp, QuantizedWeight, Result


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


def convolution_of(op: Conv2dTransposeOp) -> tuple[Conv2dOp, tuple[Phases, Phases]]:
    """Return the convolution of all phases, and the phases of rows and columns.

    Its channels are in the order of groups, phases of rows, of columns, outputs of a group.
    """
    rows, columns = _phases(op, 0), _phases(op, 1)
    conv = Conv2dOp(
        x=op.x,
        weight=_weight_of(op, [rows, columns]),
        y=_result_of(op, [rows, columns]),
        accumulator_bits=op.accumulator_bits,
        layout=op.layout,
        strides=(1, 1),
        padding=(rows.padding[0], columns.padding[0], rows.padding[1], columns.padding[1]),
        dilation=(1, 1),
        groups=op.groups,
    )
    return conv, (rows, columns)


def spatial_sizes(op: Conv2dTransposeOp, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return rows and columns of a tensor in the op's layout."""
    rows, columns = shape[2:] if op.layout == "NCHW" else shape[1:3]
    return rows, columns


def _result_of(op: Conv2dTransposeOp, axes: list[Phases]) -> Result:
    """Return the result with the shape, and the bias, of the convolution."""
    sizes = spatial_sizes(op, op.x.shape)
    spatial = tuple(size + sum(axis.padding) - axis.taps + 1 for size, axis in zip(sizes, axes, strict=True))
    channels = op.weight.values.shape[3] * op.strides[0] * op.strides[1]
    shape = (op.x.shape[0], channels, *spatial) if op.layout == "NCHW" else (op.x.shape[0], *spatial, channels)
    y = op.y
    if isinstance(y, QuantizedOutput):
        return replace(y, tensor=replace(y.tensor, shape=shape))
    if isinstance(y, SumResult):
        return replace(y, shape=shape)
    return replace(y, shape=shape, bias=_for_each_phase(op, y.bias))


def _phases(op: Conv2dTransposeOp, at: int) -> Phases:
    return phases(
        size=spatial_sizes(op, op.x.shape)[at],
        result=spatial_sizes(op, op.y.shape)[at],
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
