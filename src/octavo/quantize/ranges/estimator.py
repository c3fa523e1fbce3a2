"""What a range estimator is: statistics of one tensor, and the integers that it becomes -> the range that they shall cover.

An estimator knows no graph, no file and no other tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...numerics import INTEGER_RANGE, QuantParams
from ...numerics.statistics.histogram import Histogram
from ...numerics.statistics.ranges import asymmetric_params, symmetric_params


class TensorRange(Protocol):
    """What a profile tells of one tensor; `octavo.profile.TensorStatistics` has it."""

    @property
    def minimum(self) -> float:
        """Least finite value."""
        ...

    @property
    def maximum(self) -> float:
        """Greatest finite value."""
        ...

    @property
    def histogram(self) -> Histogram:
        """Counts of the finite values."""
        ...

    @property
    def channel_axis(self) -> int | None:
        """Axis of the channels, None where none is known."""
        ...

    @property
    def channel_minimum(self) -> npt.NDArray[np.float32]:
        """Least value of each channel, (channels,); (0,) without an axis."""
        ...

    @property
    def channel_maximum(self) -> npt.NDArray[np.float32]:
        """Greatest value of each channel, (channels,); (0,) without an axis."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantScheme:
    """The integers that a range is for.

    Parameters
    ----------
    dtype
        "uint8", "int8", "int16", ...
    symmetric
        Whether the zero point is 0 and the range extends alike to both sides.
    """

    dtype: str
    symmetric: bool = False

    @property
    def num_bits(self) -> int:
        """Width of the integers."""
        qmin, qmax = INTEGER_RANGE[self.dtype]
        return (qmax - qmin).bit_length()

    def params(self, low: float, high: float) -> QuantParams:
        """Return the per-tensor parameters of a range, extended to hold 0."""
        if self.symmetric:
            return symmetric_params(np.array([low, high], np.float32), self.dtype, axis=None)
        return asymmetric_params(low, high, self.dtype)


class RangeEstimator(Protocol):
    """Chooses a tensor's range."""

    def range_of(self, tensor: TensorRange, scheme: QuantScheme, /) -> tuple[float, float]:
        """Return the finite range [low; high] that the integers of `scheme` shall cover."""
        ...
