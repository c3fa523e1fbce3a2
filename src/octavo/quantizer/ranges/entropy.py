"""TensorRT's calibration: the range whose integers tell most of how the values are distributed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...numerics.statistics.cumulative import CumulativeBins, natural_log, running_sum
from ...numerics.statistics.histogram import Histogram
from .estimator import QuantScheme, TensorRange

Doubles = npt.NDArray[np.float64]

_TRIED = 32
"""Ranges compared at once: first over all magnitudes, then about the best of them."""
_LEVELS = 512
"""Levels compared, those about 0: further out a bin is wider than a level, which then loses nothing."""
_MEAN_BINS = 512
"""Magnitudes below this part of the mean are like 0: of a normal distribution, about what the source's first bin holds."""
_BINS_OF_THRESHOLD = 128
"""Of the source: a range of fewer bins is not considered."""
_RESOLUTION = 2.0**40
"""Divergences are compared in these parts of a nat: what differs by less is alike, and the wider range is taken."""


@dataclass(frozen=True)
class Entropy:
    """Takes the range whose quantized distribution diverges least (Kullback-Leibler) from the clamped one.

    Migacz, "8-bit Inference with TensorRT" (GTC 2017): for each threshold on the magnitude, P are the values clamped to it, those
    beyond counted at the ends; Q are the values within, merged into as many levels as there are integers and spread again over
    the bins in use of each level, without those beyond. The range is that of least

        KL(P || Q) = sum P log(P / Q)

    In place of the source's 2048 even bins it reads the profile's, and integrates over parts of them where a level begins. Zeros
    and what is like them are left out: every range represents them, and bins ever smaller towards 0 would weigh most. What is
    beyond an end is spread over that end's level. A symmetric scheme divides [-threshold; threshold], another the observed part
    of it: of values of one sign, [0; threshold].
    """

    def range_of(self, tensor: TensorRange, scheme: QuantScheme) -> tuple[float, float]:
        """Return the range, within the observed one."""
        minimum, maximum = float(tensor.minimum), float(tensor.maximum)
        if not tensor.histogram.bins.any() or minimum == maximum:
            return minimum, maximum
        divergence = _Divergence(tensor.histogram, scheme)
        thresholds = divergence.thresholds()
        step = -(-thresholds.size // _TRIED)
        best = step * divergence.least(thresholds[::step])
        near = thresholds[max(best - step + 1, 0) : best + step]
        near = near[:: -(-near.size // _TRIED)]
        threshold = float(near[divergence.least(near)])
        return min(max(-threshold, minimum), maximum), max(min(threshold, maximum), minimum)


class _Divergence(CumulativeBins):
    """Divergences of the ranges of one histogram, those of its values that are not like 0."""

    def __init__(self, histogram: Histogram, scheme: QuantScheme) -> None:
        lower, upper = histogram.edges()
        magnitude, counts = np.maximum(np.abs(lower), np.abs(upper)), histogram.counts.astype(np.float64)
        used = (histogram.bins != 0) & (magnitude > (counts * magnitude).sum() / (counts.sum() * _MEAN_BINS))
        super().__init__(lower[used], upper[used])
        self._scheme = scheme
        self._counts = counts[used]
        self._logs = self._counts * natural_log(self._counts / self.width)
        self._sums = [running_sum(each) for each in (self._counts, self._logs, self.width)]

    def thresholds(self) -> Doubles:
        """Return the outer ends of bins, descending, that have as many bins within as there are integers, or at least 128.

        Of fewer bins, merging them loses nothing, however few the values.
        """
        ends = np.sort(np.maximum(np.abs(self.lower), np.abs(self.upper)))
        return np.unique(ends[min(1 << self._scheme.num_bits, _BINS_OF_THRESHOLD, ends.size) - 1 :])[::-1]

    def least(self, thresholds: Doubles) -> int:
        """Return the index of the threshold, of some in descending order, whose divergence is least; the first of equal ones."""
        return int(np.argmin(np.rint(self._divergences(thresholds[:, None]) * _RESOLUTION)))

    def _below(self, numbers: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return the count of the values below, the sum of their densities' logarithms, and the width that they cover."""
        index, share, reach = self.locate(numbers)
        counts, logs, width = self._sums
        return counts[index] + share * self._counts[index], logs[index] + share * self._logs[index], width[index] + reach

    def _divergences(self, threshold: Doubles) -> Doubles:
        """Return KL(P || Q) of each threshold, (n, 1) -> (n,)."""
        low, high = -threshold, threshold
        if not self._scheme.symmetric:
            low, high = np.maximum(low, min(self.lower[0], 0.0)), np.minimum(high, max(self.upper[-1], 0.0))
        levels = 1 << self._scheme.num_bits
        width = (high - low) / levels
        shown = min(levels, _LEVELS)
        first = np.clip(np.rint(-low / width) - shown // 2, 0, levels - shown)
        count, logs, covered = (np.diff(each, axis=1) for each in self._below(low + (first + np.arange(shown + 1)) * width))
        # Of a level of one bin both terms are one number.
        merged = logs - count * _log(count, covered)
        under, over = self._below(low)[0], self._sums[0][-1] - self._below(high)[0]
        ends = _beyond(under, self._below(low + width)[0] - under)
        total = self._sums[0][-1]
        within = total - under - over
        ends = ends + _beyond(over, total - over - self._below(high - width)[0])
        found = np.maximum(merged, 0.0).sum(axis=1) + (ends + total * _log(within, np.full_like(within, total)))[:, 0]
        return found / total


def _log(numerator: Doubles, denominator: Doubles) -> Doubles:
    """Return log(numerator / denominator), 0 where there is nothing to take it of."""
    known = (numerator > 0) & (denominator > 0)
    return np.where(known, natural_log(np.where(known, numerator, 1.0) / np.where(known, denominator, 1.0)), 0.0)


def _beyond(outside: Doubles, level: Doubles) -> Doubles:
    """Return what values outside add to the divergence of the level that they are counted in; infinite where it has no others."""
    added = (level + outside) * _log(level + outside, level)
    return np.where(outside > 0, np.where(level > 0, added, np.inf), 0.0)
