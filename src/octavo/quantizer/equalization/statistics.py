"""What samples say of tensors by group of channels, and statistics of tensors that were divided. It runs no model."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ...numerics.arrays import Array
from ...numerics.statistics.histogram import CODES, SHIFT, Histogram
from ...numerics.statistics.histogram_estimates import moments
from ...profiling import TensorStatistics
from ..ranges import ScaledTensor
from .factors import ChannelValues

Floats = npt.NDArray[np.float64]

_COUNTED = 1 << 16
"""Values of a sample that are counted in a histogram, evenly spread: enough for what lies within a thousandth of the tails."""


_POSITIONS = 1024
"""Of a sample whose values are summed, evenly spread: enough for the variance of channels."""


def profiled_values(profiled: TensorStatistics, groups: npt.NDArray[np.int64]) -> ChannelValues:
    """Return what a profile says of a tensor of which it has the ranges of channels (see `channel_ranges`).

    Their variances are taken to be alike in shares of the squares of their ranges: of all values together they are what the
    histogram says.
    """
    own, of_channel = np.unique(groups.reshape(-1), return_inverse=True)
    low, high = np.full(own.size, np.inf), np.full(own.size, -np.inf)
    _extend(low, high, of_channel, profiled.channel_minimum, profiled.channel_maximum)
    squares = np.where(np.isfinite(low), high - low, 0.0) ** 2
    deviation = moments(profiled.histogram, profiled.minimum, profiled.maximum).deviation
    share = deviation**2 / max(float(squares[of_channel].mean()), 1e-30)
    return ChannelValues.of(own, low, high, share * squares)


def _extend(low: Floats, high: Floats, groups: npt.NDArray[np.int64], least: Array, largest: Array) -> None:
    np.minimum.at(low, groups, least.reshape(-1).astype(np.float64))
    np.maximum.at(high, groups, largest.reshape(-1).astype(np.float64))


class GroupValues:
    """Sums up a tensor's values by the groups of its elements, which are 1 along axes that they don't depend on."""

    def __init__(self, groups: npt.NDArray[np.int64]) -> None:
        self._own, self._groups = np.unique(groups.reshape(-1), return_inverse=True)
        self._axes = tuple(axis for axis, each in enumerate(groups.shape) if each == 1)
        size = self._own.size
        self._low, self._high = np.full(size, np.inf), np.full(size, -np.inf)
        self._sum, self._squares, self._count = np.zeros(size), np.zeros(size), np.zeros(size)

    def add(self, value: Array) -> None:
        """Take one sample's values."""
        _extend(self._low, self._high, self._groups, value.min(axis=self._axes), value.max(axis=self._axes))
        some = value[self._some(value.shape)]
        total, squares = some.sum(axis=self._axes, dtype=np.float64), np.square(some, dtype=np.float64).sum(axis=self._axes)
        np.add.at(self._sum, self._groups, total.reshape(-1))
        np.add.at(self._squares, self._groups, squares.reshape(-1))
        np.add.at(self._count, self._groups, some.size / self._groups.size)

    def _some(self, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return every so many positions, along the longest of the axes that groups don't depend on."""
        longest = max(self._axes, key=lambda axis: shape[axis], default=0)
        step = math.prod(shape[axis] for axis in self._axes) // _POSITIONS
        return tuple(slice(None, None, max(1, step)) if axis == longest else slice(None) for axis in range(len(shape)))

    def result(self) -> ChannelValues:
        """Return what was seen."""
        count = np.maximum(self._count, 1)
        variance = np.maximum(self._squares / count - (self._sum / count) ** 2, 0.0)
        return ChannelValues.of(self._own, self._low, self._high, variance)


def channel_ranges(profiled: TensorStatistics, shape: tuple[int, ...]) -> bool:
    """Return whether a profile has the ranges of the channels that factors of this shape are for."""
    axis = profiled.channel_axis
    if axis is None or not np.isfinite(profiled.channel_minimum).all():
        return False
    return len(shape) == len(profiled.shape) and all(
        size == (profiled.channel_minimum.size if each == axis else 1) for each, size in enumerate(shape)
    )


class ScaledValues:
    """Statistics of a tensor that is rotated or divided by factors: ranges of all samples where a profile has them by channel.

    `profiled` is of the tensor before; factors are of its rank, 1 along axes that they don't depend on, None of a rotated one.
    """

    def __init__(self, profiled: TensorStatistics, factors: npt.NDArray[np.float32] | None = None) -> None:
        self._profiled = profiled
        self._low = self._high = np.zeros(0, np.float32)
        if factors is not None and channel_ranges(profiled, factors.shape):
            flat = factors.reshape(-1)
            self._low, self._high = profiled.channel_minimum / flat, profiled.channel_maximum / flat
        self._ends: list[tuple[np.float32, np.float32]] = []
        self._codes = np.zeros(CODES, np.int64)

    @property
    def has_range(self) -> bool:
        """Whether the profile knows the range of the tensor without a sample."""
        return bool(self._low.size)

    def add(self, value: Array) -> None:
        """Take one sample's values, divided."""
        self._ends.append((value.min(), value.max()))
        flat = np.ascontiguousarray(value.reshape(-1)[:: max(1, value.size // _COUNTED) | 1])
        self._codes += np.bincount(flat.view(np.uint32) >> np.uint32(SHIFT), minlength=CODES)

    def result(self) -> ScaledTensor:
        """Return the statistics."""
        known = [(self._low.min(), self._high.max())] if self.has_range else []
        ends = np.array(self._ends or known, np.float32)
        low, high = map(float, known[0] if known else (ends[:, 0].min(), ends[:, 1].max()))
        extremes = Histogram.of(np.array([low, high], np.float32))
        return ScaledTensor(
            minimum=low,
            maximum=high,
            histogram=Histogram.of_codes(self._codes).clamped(low, high).merge(extremes),
            channel_axis=self._profiled.channel_axis if self._low.size else None,
            channel_minimum=self._low,
            channel_maximum=self._high,
            bucket_minimum=np.maximum(ends[:, 0], np.float32(low)),
            bucket_maximum=np.minimum(ends[:, 1], np.float32(high)),
            non_finite_note=self._profiled.non_finite_note,
        )
