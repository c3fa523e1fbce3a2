"""The range without the outermost values, cut alike on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .estimator import QuantScheme, TensorRange


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
