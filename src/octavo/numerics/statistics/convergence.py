"""Convergence of a range over groups of samples: its curve, intervals of its ends, and whether it still grows.

The samples fall into groups by chance, so any k of the groups stand for a smaller data set. All is computed from the sorted
extremes, over every choice of groups at once: nothing is drawn, and no order of the samples enters. Nothing here needs TVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
"""Of the bootstrap interval."""
MIN_GROUPS = 8
"""Groups below which nothing is said: the interval of fewer would rest on one or two extremes."""
GROWING = 0.05
"""A range still grows where the second half of the samples widens it by more than this share of it."""
UNCOVERED = 0.1
"""A range is hardly covered where an end may lie further out by more than this share of it: what saturates there is 20 dB off."""

Floats = npt.NDArray[np.floating]


def expected_maximum(values: Floats, drawn: int) -> float:
    """Return the mean, over every choice of `drawn` of the values, of the largest one chosen.

    With values sorted, the i-th of n (from 1 on) is the largest of k chosen in C(i - 1, k - 1) of C(n, k) choices.
    """
    n = values.size
    if not 1 <= drawn <= n:
        raise ValueError(f"cannot choose {drawn} of {n} values")
    # From the largest down: its share is k / n; each next one's is that of the one above times (i - k) / (i - 1).
    ranks = np.arange(n, 1, -1, dtype=np.float64)
    shares = (drawn / n) * np.concatenate([[1.0], np.cumprod(np.maximum(ranks - drawn, 0.0) / (ranks - 1))])
    return float(np.sort(values.astype(np.float64))[::-1] @ shares)


def bootstrap_reach(values: Floats) -> float:
    """Return how far the true maximum may lie above the largest value, at CONFIDENCE, by the basic bootstrap.

    Of n values drawn with replacement the largest is at most the i-th with probability (i / n)^n; the basic bootstrap mirrors its
    lower quantile at the largest value (Davison and Hinkley, Bootstrap Methods and their Application, 1997, section 5.2). The
    upper quantile is the largest value itself, so the true maximum is placed in [max; max + reach].
    """
    n = values.size
    in_order = np.sort(values.astype(np.float64))
    low = (1 - CONFIDENCE) / 2
    rank = int(np.ceil(n * low ** (1 / n)))
    return float(in_order[-1] - in_order[rank - 1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Convergence:
    """How a range came about over the samples.

    Parameters
    ----------
    groups
        Groups of samples that it is seen in.
    curve
        (share of the samples, share of the range's final width that so many samples give on average), both in (0; 1], rising.
    minimum_interval, maximum_interval
        Where the true ends lie at CONFIDENCE, by the basic bootstrap: (lowest, observed) and (observed, highest).
    growth
        Share of the final width that the second half of the samples adds, on average, in [0; 1].
    """

    groups: int
    curve: tuple[tuple[float, float], ...]
    minimum_interval: tuple[float, float]
    maximum_interval: tuple[float, float]
    growth: float

    @property
    def growing(self) -> bool:
        """Whether the range still grows: more samples would widen it, so it is no good estimate yet."""
        return self.growth > GROWING

    @property
    def reach(self) -> float:
        """Share of the final width by which an end may lie further out at CONFIDENCE, the larger of both."""
        (lowest, low), (high, highest) = self.minimum_interval, self.maximum_interval
        return max(low - lowest, highest - high) / (high - low) if high > low else 0.0

    @property
    def covered(self) -> bool:
        """Whether the samples show about as far as the values go."""
        return self.reach <= UNCOVERED


def convergence_of(minima: Floats, maxima: Floats) -> Convergence | None:
    """Return how the range of all groups came about from theirs; None for fewer than MIN_GROUPS.

    Parameters
    ----------
    minima, maxima
        (n,), finite, of each group of samples.
    """
    n = minima.size
    if n < MIN_GROUPS:
        return None
    low, high = float(minima.min()), float(maxima.max())

    def share(drawn: int) -> float:
        width = expected_maximum(maxima, drawn) + expected_maximum(-minima, drawn)
        return min(width / (high - low), 1.0) if high > low else 1.0

    steps = sorted({*_doublings(n), n // 2, n})
    curve = tuple((step / n, max(share(step), 0.0)) for step in steps)
    return Convergence(
        groups=n,
        curve=curve,
        minimum_interval=(low - bootstrap_reach(-minima), low),
        maximum_interval=(high, high + bootstrap_reach(maxima)),
        growth=1.0 - share(n // 2),
    )


def _doublings(n: int) -> Sequence[int]:
    return [1 << power for power in range(n.bit_length())]
