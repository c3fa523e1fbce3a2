"""Ranges of what was observed, all of it or on average, and one range for all: they look at no histogram."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...numerics.statistics.ranges import SMALLEST_RANGE
from .estimator import QuantScheme, TensorRange

_LARGEST = 2.0**127
"""Both ends and the width of the range stay finite in float32."""


@dataclass(frozen=True)
class MinMax:
    """Takes the observed range."""

    def range_of(self, tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return [minimum; maximum]."""
        return float(tensor.minimum), float(tensor.maximum)


class Auto(MinMax):
    """Tries several, and takes the one whose outputs come nearest on samples that the profile keeps, or min_max without such."""


@dataclass(frozen=True)
class Mean:
    """Takes the means of the least and of the greatest values of the buckets of samples.

    It clips what single samples alone reach, their outliers among it: the more, the fewer buckets reach as far. A profile keeps
    ranges by bucket (`octavo.profile`), so up to 32 samples weigh about alike, and of many more a bucket's range is that of its
    widest sample. Without ranges by bucket it takes the observed range.
    """

    def range_of(self, tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return the mean range, within the observed one."""
        low, high = float(tensor.minimum), float(tensor.maximum)
        seen = np.isfinite(tensor.bucket_minimum)
        if not seen.any():
            return low, high
        ends = (float(np.mean(each[seen].astype(np.float64))) for each in (tensor.bucket_minimum, tensor.bucket_maximum))
        mean_low, mean_high = ends
        return max(low, mean_low), min(high, mean_high)


@dataclass(frozen=True)
class GlobalScale:
    """Gives every activation the range [-half_width; half_width].

    The default is that of Relay's `qconfig(calibrate_mode="global_scale")`. It looks at no value: for comparison with Relay, and
    for hardware of one scale.
    """

    half_width: float = 8.0

    def __post_init__(self) -> None:
        """Check the width."""
        half_width: Any = self.half_width  # callers may not check types
        if not isinstance(half_width, (int, float)) or not SMALLEST_RANGE <= half_width < _LARGEST:
            raise ValueError(f"half_width must lie in [2^-100; 2^127), got {half_width!r}")

    def range_of(self, _tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return [-half_width; half_width]."""
        return -float(self.half_width), float(self.half_width)
