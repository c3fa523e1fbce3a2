"""How a matrix product takes off what the zero points of its weights have added: zero_point * sum(x), of a window's sum.

Where all channels share the zero point, the sum is multiplied once for each pixel and taken off at no cost: the accumulators of a
loop start from it, and those that start from the bias lose it on their way to float32 (see `rounding.float_difference`).
Where lanes of the product have no output channel, they compute that sum by the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from tvm.script.ir_builder import tirx as T

from .......ir.composites.outputs import SumOutput
from ...language.rounding import MAGIC_BITS, MAGIC_REACH, float_difference, less_magic
from ...language.vectors import Expr, intrinsic, shuffled
from ...language.x86.vector import LANES
from ..loops.geometry import Geometry
from ..loops.packing import Weights, lane_channels
from ..spec import Conv2dSpec

MAX_EXTRA_STEPS = 8  # written out one by one; with more weights that leave int8, window sums take over ...
EXTRA_STEP_CYCLES, SUM_CYCLES = 1.5, 3.0  # ... or where they cost less: of a step, and to add up the lanes of a window's sum
_BLOCK = 4  # lanes of 128 bits, which one instruction repeats over a register


@dataclass(frozen=True, kw_only=True, slots=True)
class ZeroPoints:
    """A method that corrects accumulators; this one is for weights without any, the other classes are for those that have some.

    In all methods `minus` is -zero_point of an accumulator's lanes, and `total` a window's sum, times `factor` and counted from
    `start`: one int32, or as many as there are lanes once accumulators are finished.

    Parameters
    ----------
    factor, start
        What the sums are multiplied by (an int8, for bytes are multiplied before they are added), and what they count from.
    bias_start
        What the bias counts from.
    minus
        -zero_point of each output channel, as it is multiplied; None where the factor has it.
    """

    factor: int = 1
    start: int = 0
    bias_start: int = 0
    minus: npt.NDArray[Any] | None = None

    is_late: ClassVar[bool] = False
    """Whether sums are read when accumulators are finished, and only then."""

    def first(self, total: Expr | None) -> Expr:
        """Return what the accumulators of a loop start from."""
        del total
        return T.broadcast(T.int32(0), LANES)

    def with_bias(self, bias: Expr, total: Expr | None, minus: Expr | None, *, is_first: bool) -> Expr:
        """Return what is added together with the bias; `is_first` where accumulators start from it."""
        del total, minus, is_first
        return bias

    def last(self, acc: Expr, total: Expr | None, minus: Expr | None) -> Expr:
        """Return a finished accumulator: int32, or the same integers in float32."""
        del total, minus
        return acc


class _Shared(ZeroPoints):
    """One zero point of all channels, in int32."""

    def first(self, total: Expr | None) -> Expr:
        return T.broadcast(total, LANES)

    def with_bias(self, bias: Expr, total: Expr | None, minus: Expr | None, *, is_first: bool) -> Expr:
        return bias + T.broadcast(total, LANES) if is_first else bias


class _SharedInFloat(ZeroPoints):
    """One zero point of all channels: the conversion to float32 takes it off."""

    is_late = True

    def last(self, acc: Expr, total: Expr | None, minus: Expr | None) -> Expr:
        return float_difference(acc, total, LANES)


class _ByChannel(ZeroPoints):
    """A zero point of each channel, in int32."""

    def with_bias(self, bias: Expr, total: Expr | None, minus: Expr | None, *, is_first: bool) -> Expr:
        return bias + T.broadcast(total, LANES) * minus


class _ByChannelInFloat(ZeroPoints):
    """A zero point of each channel: one multiply-add, exact for all of it are integers that float32 holds."""

    is_late = True

    def last(self, acc: Expr, total: Expr | None, minus: Expr | None) -> Expr:
        dtype = f"float32x{LANES}"
        assert total is not None
        value = intrinsic("llvm.fma", dtype, total.astype(dtype), minus, T.reinterpret(dtype, acc))
        return less_magic(value, LANES)


@dataclass(frozen=True, kw_only=True, slots=True)
class SumLanes:
    """Lanes without an output channel, whose weights make them sum the window: all of a 128-bit block, or just one.

    Parameters
    ----------
    vector, lane, count
        Where they are: the vector of a tile, its first lane of them, and how many there are.
    channels, channel
        Output channels of a group, and the number of the first lane among them.
    """

    vector: int
    lane: int
    count: int
    channels: int
    channel: int

    @staticmethod
    def of(channels: int, vectors: int) -> SumLanes | None:
        """Return those of tiles of `vectors` that hold all `channels`; None where every lane has one."""
        if channels == vectors * LANES:
            return None
        block = -(-channels // _BLOCK) * _BLOCK  # four neighbours of a multiple of four channels are a block
        channel, count = (block, _BLOCK) if block < vectors * LANES else (channels, 1)
        vector, lane = np.argwhere(lane_channels(channels, vectors) == channel)[0]
        return SumLanes(vector=int(vector), lane=int(lane), count=count, channels=channels, channel=channel)

    def appended(self, values: npt.NDArray[Any], groups: int, value: int) -> npt.NDArray[Any]:
        """Return values (..., out_channels) with `value` in these lanes of each group, as channels of their own."""
        by_group = values.reshape(*values.shape[:-1], groups, self.channels)
        padding = [(0, 0)] * (by_group.ndim - 1)
        by_group = np.pad(by_group, [*padding, (0, self.channel - self.channels)])
        by_group = np.pad(by_group, [*padding, (0, self.count)], constant_values=value)
        return by_group.reshape(*values.shape[:-1], -1)

    def spread(self, acc: Expr) -> Expr:
        """Return the sum that they hold in every lane."""
        return shuffled([acc], [self.lane + lane % self.count for lane in range(LANES)])


def are_extra_steps_cheap(count: int, geometry: Geometry, *, is_short: bool) -> bool:
    """Return whether the few weights beyond int8 cost less cycles a pixel as `count` extra steps than by window sums.

    `is_short`: accumulators start from the bias, to which sums of shared zero points are added.
    """
    adds = 0.5 * geometry.group_vectors if is_short else 0.0
    sums = geometry.groups * (SUM_CYCLES + 4 * geometry.reduction.steps / 64 + adds)
    return count <= MAX_EXTRA_STEPS and count * EXTRA_STEP_CYCLES < sums


def zero_points_of(spec: Conv2dSpec, weights: Weights, bias: npt.NDArray[np.int32], *, is_late: bool) -> ZeroPoints:
    """Return the cheapest method for accumulators of `weights.values` and `bias`; with `is_late` it is best to read sums late."""
    shared = int(weights.zero_points[0]) if np.ptp(weights.zero_points) == 0 else None
    are_floats = _fit_float(spec, weights, bias)
    if shared is not None and is_late and are_floats:
        return _SharedInFloat(factor=shared, start=MAGIC_BITS, bias_start=MAGIC_BITS)
    if shared is not None and shared > -128:
        return _Shared(factor=-shared)
    if are_floats:
        return _ByChannelInFloat(bias_start=MAGIC_BITS, minus=(-weights.zero_points).astype(np.float32))
    return _ByChannel(minus=-weights.zero_points)


def _fit_float(spec: Conv2dSpec, weights: Weights, bias: npt.NDArray[np.int32]) -> bool:
    """Whether accumulators, sums times zero points, and their differences are integers that may be read as float32."""
    if isinstance(spec.output, SumOutput) or spec.scales != 0:
        return False
    products = np.abs(weights.values.astype(np.int64)).sum(axis=(0, 1, 2))
    sums = weights.values[..., 0].size * np.maximum(np.abs(weights.zero_points.astype(np.int64)), 1)
    finished = np.abs(weights.centered).sum(axis=(0, 1, 2))
    most = 255 * np.maximum(np.maximum(products, sums), finished) + np.abs(bias.astype(np.int64))
    return bool(most.max() <= MAGIC_REACH)
