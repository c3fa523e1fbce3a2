"""Ranges of what was observed, all of it, on average or without its tails, and one range for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True)
class Percentile:
    """Keeps that percent of the values, in [50; 100], and cuts half of the rest on each side.

    Within the bin that an end falls into, values are taken as evenly spread. Never wider than the observed range.
    """

    percentile: float = 99.99

    def __post_init__(self) -> None:
        """Check the percentage."""
        percentile: Any = self.percentile  # callers may not check types
        if not isinstance(percentile, (int, float)) or not 50 <= percentile <= 100:
            raise ValueError(f"percentile must lie in [50; 100], got {percentile!r}")

    def range_of(self, tensor: TensorRange, _scheme: QuantScheme) -> tuple[float, float]:
        """Return the range; the observed one where there are no values, or where all but the cut ones lie in one bin."""
        observed = float(tensor.minimum), float(tensor.maximum)
        histogram = tensor.histogram
        if not histogram.total:
            return observed
        cut = histogram.total * (100.0 - self.percentile) / 200.0
        lower, upper = histogram.edges()
        first, below = _bin_beyond(histogram.counts, cut)
        last, above = _bin_beyond(histogram.counts[::-1], cut)
        last = histogram.counts.size - 1 - last
        if first > last:
            return observed
        low = float(lower[first] + below * (upper[first] - lower[first]))
        high = float(upper[last] - above * (upper[last] - lower[last]))
        if low > high:  # both in one bin
            return observed
        return min(max(observed[0], low), observed[1]), max(min(observed[1], high), observed[0])


def _bin_beyond(counts: npt.NDArray[np.int64], cut: float) -> tuple[int, float]:
    """Return the first bin up to which more than `cut` values lie, and the part of its own values that `cut` takes, in [0; 1)."""
    below = np.cumsum(counts)
    index = int(np.searchsorted(below, cut, side="right"))
    if index == counts.size:
        return index, 0.0
    return index, float(cut - (below[index] - counts[index])) / float(counts[index])
