"""Estimates from a histogram: moments, values beyond a range, and the error that a quantization would make.

Values are taken as evenly spread within their bin, whose width is at most 1/64 of them: these are estimates, of all values and
without any of them at hand. They judge a range; choosing one is `ranges`' business.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..quant_params import QuantParams
from .histogram import Histogram

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Moments of a histogram's values.

    Parameters
    ----------
    mean, deviation
        Mean and standard deviation.
    kurtosis
        Fourth central moment over the squared variance, less 3: 0 of a normal distribution, large where few values lie far out.
        None where all values are one.
    """

    mean: float
    deviation: float
    kurtosis: float | None


def spans(histogram: Histogram, minimum: float, maximum: float) -> tuple[Doubles, Doubles]:
    """Return the lower and upper end of each bin's values, float64 (n,): bin 0 holds zeros, the outermost end at the extremes."""
    low, high = (np.where(histogram.bins == 0, 0.0, np.clip(ends, minimum, maximum)) for ends in histogram.edges())
    return low, high


def moments(histogram: Histogram, minimum: float, maximum: float) -> Moments:
    """Return the moments of the values, [minimum; maximum] being the exact extremes. ValueError for an empty histogram."""
    total = histogram.total
    if not total:
        raise ValueError("a histogram without values has no moments")
    low, high = spans(histogram, minimum, maximum)
    weights, middles = histogram.counts / total, (low + high) / 2
    mean = float(weights @ middles)
    # In units of the largest magnitude, so that the fourth power of a tiny value stays above 0.
    unit = max(abs(minimum), abs(maximum)) or 1.0
    squares = ((middles - mean) / unit) ** 2
    variance = float(weights @ squares)
    # What rounding alone leaves of a single value is no spread.
    kurtosis = float(weights @ squares**2) / variance**2 - 3 if variance > 2.0**-96 else None
    return Moments(mean=mean, deviation=math.sqrt(variance) * unit, kurtosis=kurtosis)


def share_outside(histogram: Histogram, minimum: float, maximum: float, low: float, high: float) -> float:
    """Return the share of the values outside [low; high], in [0; 1]; 0 for an empty histogram."""
    if not histogram.total:
        return 0.0
    lower, upper = spans(histogram, minimum, maximum)
    width = upper - lower
    kept = np.clip(np.minimum(upper, high) - np.maximum(lower, low), 0.0, width)
    within = np.where(width > 0, kept / np.where(width > 0, width, 1.0), (lower >= low) & (lower <= high))
    return float(min(max(1.0 - float(within @ histogram.counts) / histogram.total, 0.0), 1.0))


def estimated_sqnr_db(histogram: Histogram, minimum: float, maximum: float, params: QuantParams) -> float:
    """Return the signal to quantization noise ratio that per-tensor parameters would give the values, in dB; inf without noise.

    Over a bin the squared error of y = saturate(rint(x / scale) + zero_point) is integrated exactly: with u = x / scale, and k
    the integer that u becomes (less the zero point), its integral is k / 12 + (u - k)^3 / 3, across roundings and saturation.
    """
    low, high = spans(histogram, minimum, maximum)
    scale, zero_point = float(params.scale), int(params.zero_point)

    def to_integer(u: Doubles) -> Doubles:
        return np.clip(np.rint(u), params.qmin - zero_point, params.qmax - zero_point)

    def integral(u: Doubles) -> Doubles:
        k = to_integer(u)
        return k / 12 + (u - k) ** 3 / 3

    first, last = low / scale, high / scale
    width = last - first
    spread = np.maximum(integral(last) - integral(first), 0.0) / np.where(width > 0, width, 1.0)
    error = np.where(width > 0, spread, (first - to_integer(first)) ** 2)
    noise = float(histogram.counts @ error)
    signal = float(histogram.counts @ ((first * first + first * last + last * last) / 3))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
