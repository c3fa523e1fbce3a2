"""What a range estimator is: statistics of one tensor, and the integers that it becomes -> the range that they shall cover.

Parameters follow from a range, and a range from parameters, here alone.

An estimator knows no graph, no file and no other tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ...numerics import INTEGER_RANGE, QuantParams
from ...numerics.statistics.histogram import Histogram
from ...numerics.statistics.ranges import SMALLEST_RANGE, asymmetric_params, power_of_two_above
from ...profiling import TensorStatistics

Range = tuple[float, float]
"""The least and the greatest number that integers stand for."""


def width(low: float, high: float) -> float:
    """Return the width of the range that integers cover: 0 is always in it."""
    return max(high, 0.0) - min(low, 0.0)


def range_of(params: QuantParams) -> Range:
    """Return the range that per-tensor parameters have."""
    scale, zero_point = float(params.scale), int(params.zero_point)
    return (params.qmin - zero_point) * scale, (params.qmax - zero_point) * scale


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScaledTensor:
    """Statistics of a tensor that was rotated, or divided by factors; see `TensorStatistics` for the fields."""

    minimum: float
    maximum: float
    histogram: Histogram
    channel_axis: int | None
    channel_minimum: npt.NDArray[np.float32]
    channel_maximum: npt.NDArray[np.float32]
    bucket_minimum: npt.NDArray[np.float32]
    bucket_maximum: npt.NDArray[np.float32]
    non_finite_note: str


TensorRange = TensorStatistics | ScaledTensor
"""What is known of one tensor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantScheme:
    """The integers that a range is for, and what their parameters must be.

    Parameters
    ----------
    dtype
        "uint8", "int8", "int16", ...
    symmetric
        Whether the zero point is 0 and the range extends alike to both sides.
    narrow
        Whether symmetric integers leave out the least one of the dtype, as those of weights do.
    power_of_two
        Whether the scale is a power of two.
    scale, zero_point
        The only ones that they may have; None where the range says them.
    """

    dtype: str
    symmetric: bool = False
    narrow: bool = False
    power_of_two: bool = False
    scale: float | None = None
    zero_point: int | None = None

    @classmethod
    def of(cls, params: QuantParams) -> QuantScheme:
        """Return how parameters like these follow from a range."""
        symmetric = int(params.zero_point) == 0 and params.qmin < 0
        return cls(dtype=params.dtype, symmetric=symmetric, power_of_two=bool(np.frexp(params.scale)[0] == 0.5))

    @property
    def num_bits(self) -> int:
        """Width of the integers."""
        qmin, qmax = INTEGER_RANGE[self.dtype]
        return (qmax - qmin).bit_length()

    @property
    def is_fixed(self) -> bool:
        """Whether the range says nothing."""
        return self.scale is not None and (self.symmetric or self.zero_point is not None)

    def params(self, low: float, high: float) -> QuantParams:
        """Return the per-tensor parameters of a range, extended to hold 0: the least scale that covers it, if none is given."""
        if not self.symmetric and not self.power_of_two and self.scale is None and self.zero_point is None:
            return asymmetric_params(low, high, self.dtype)
        low, high = min(float(low), 0.0), max(float(high), 0.0)
        qmin, qmax = INTEGER_RANGE[self.dtype]
        zero_point, scale = 0 if self.symmetric else self.zero_point, self.scale
        if scale is None:
            scale = self._least_scale(low, high, zero_point)
            scale = float(power_of_two_above(scale)) if self.power_of_two else scale
        if zero_point is None:
            # Of a scale that does not cover the range, both ends lose alike.
            zero_point = int(np.rint(qmin - low / max(scale, (high - low) / (qmax - qmin))))
        qmin = -qmax if self.symmetric and self.narrow else qmin
        return QuantParams.per_tensor(self.dtype, scale, zero_point, qmin=qmin, qmax=qmax)

    def _least_scale(self, low: float, high: float, zero_point: int | None) -> float:
        """Return the least scale with which the integers cover [low; high], 0 among it."""
        qmin, qmax = INTEGER_RANGE[self.dtype]
        if high - low < SMALLEST_RANGE:
            return 1.0 / (qmax if self.symmetric else qmax - qmin)
        if zero_point is None:
            return (high - low) / (qmax - qmin)
        if self.symmetric:
            return max(-low, high) / qmax
        ends = ((high, qmax - zero_point), (-low, zero_point - qmin))
        found = max(end / steps for end, steps in ends if steps)
        return found if found * (qmax - qmin) >= SMALLEST_RANGE else 1.0 / (qmax - qmin)


class RangeEstimator(Protocol):
    """Chooses a tensor's range."""

    def range_of(self, tensor: TensorRange, scheme: QuantScheme, /) -> Range:
        """Return the finite range [low; high] that the integers of `scheme` shall cover."""
        ...
