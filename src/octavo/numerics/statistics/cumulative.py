"""How much of a histogram lies below a number: running sums over its bins, read at any number. Chooses no range.

Elementwise float64 operations and running sums alone, so that results are the same bytes on any machine.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .histogram import Histogram

Doubles = npt.NDArray[np.float64]


def folded(histogram: Histogram) -> Histogram:
    """Return the histogram of the values' magnitudes."""
    left = histogram.bins < 0
    negative = Histogram(bins=-histogram.bins[left][::-1], counts=histogram.counts[left][::-1])
    return Histogram(bins=histogram.bins[~left], counts=histogram.counts[~left]).merge(negative)


class CumulativeBins:
    """Finds numbers among bins; values are evenly spread within a bin.

    Parameters
    ----------
    lower, upper
        Ends of the bins, float64 (n,), ascending, n at least 1. A bin of no width is one value, below all that exceed it.
    """

    def __init__(self, lower: Doubles, upper: Doubles) -> None:
        self.lower, self.upper = lower, upper
        self.width = upper - lower
        self._divisor = np.where(self.width > 0, self.width, 1.0)

    def locate(self, numbers: Doubles) -> tuple[npt.NDArray[np.intp], Doubles, Doubles]:
        """Return the last bin that has values below each number, the share of its values that are, and how far they extend."""
        index = np.searchsorted(self.lower, numbers, side="left") - 1
        some = index >= 0
        index = np.maximum(index, 0)
        width = self.width[index]
        reach = np.minimum(np.maximum(numbers - self.lower[index], 0.0), width)
        share = np.where(width > 0, reach / self._divisor[index], some)
        return index, share, reach


class CumulativeMoments(CumulativeBins):
    """Counts, sums and sums of squares of the values below or above numbers.

    Parameters
    ----------
    counts
        Values of each bin, float64 (n,).
    """

    def __init__(self, lower: Doubles, upper: Doubles, counts: Doubles) -> None:
        super().__init__(lower, upper)
        self._counts = counts
        squares = (lower * lower + lower * upper + upper * upper) / 3
        self._sums = [running_sum(counts * each) for each in (1.0, (lower + upper) / 2, squares)]
        self.total = [float(each[-1]) for each in self._sums]

    def below(self, numbers: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return the count, the sum and the sum of squares of the values below each number."""
        index, share, reach = self.locate(numbers)
        start, part = self.lower[index], self._counts[index] * share
        return (
            self._sums[0][index] + part,
            self._sums[1][index] + part * (start + reach / 2),
            self._sums[2][index] + part * (start * start + start * reach + reach * reach / 3),
        )

    def above(self, numbers: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return the same of the values that are not below."""
        count, first, second = self.below(numbers)
        return self.total[0] - count, self.total[1] - first, self.total[2] - second


def running_sum(values: Doubles) -> Doubles:
    """Return the sum of the values before each, and of all: (n,) -> (n + 1,)."""
    return np.concatenate([[0.0], np.cumsum(values)])


def natural_log(numbers: Doubles) -> Doubles:
    """Return log of positive numbers, to within a few ulps: the same bytes on any machine, which np.log is not.

    With m * 2^e, m in [sqrt(1/2); sqrt(2)], and z = (m - 1) / (m + 1): log m = 2 (z + z^3 / 3 + z^5 / 5 + ...), |z| <= 0.172.
    """
    fraction, exponent = np.frexp(numbers)
    small = fraction < np.sqrt(0.5)
    fraction, exponent = np.where(small, fraction * 2, fraction), exponent - small
    z = (fraction - 1) / (fraction + 1)
    square, series = z * z, np.zeros_like(z)
    for odd in range(21, 0, -2):
        series = series * square + 1.0 / odd
    return 2 * z * series + exponent * 0.6931471805599453
