"""The range of least squared error: what rounding adds within it, weighed against what clamping takes beyond it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...numerics import INTEGER_RANGE
from ...numerics.statistics.cumulative import CumulativeMoments, folded
from ...numerics.statistics.histogram_estimates import spans
from .estimator import QuantScheme, Range, TensorRange

Doubles = npt.NDArray[np.float64]
Sums = tuple[Doubles, Doubles, Doubles]

_STARTS = 20
"""Starts on each side of 0; the fixed point joins most of them."""
_ITERATIONS = 3
_CORE = 256
"""Integers beyond this are so large that a bin is wider than a step: rounding is uniform noise there."""
_WIDE = np.linspace(1.5, 0.5, 25).tolist()
_FINE = np.linspace(1.04, 0.96, 9).tolist()
_GAIN = 1 - 2.0**-7
"""A range that does not lower the error to this share of the observed range's is not worth it."""


@dataclass(frozen=True)
class Mse:
    """Takes the range of least squared error, rounding and clamping together.

    A symmetric range is that of OCTAV (Sakr et al., "Optimal Clipping and Magnitude-aware Differentiation for Improved
    Quantization-aware Training", 2022): the fixed point of

        high = sum of |x| beyond high / (values within / (12 qmax^2) + values beyond high)

    For other ranges both ends have such an equation, with high - low in place of high and qmax - qmin in place of qmax. There are
    several fixed points where values are far apart, so it starts from many ranges. Near the best of them the error of the
    integers themselves is computed from the histogram, values evenly spread within bins: few bits, or few different values, make
    no uniform noise.
    """

    def range_of(self, tensor: TensorRange, scheme: QuantScheme) -> Range:
        """Return the range, within the observed one."""
        minimum, maximum = float(tensor.minimum), float(tensor.maximum)
        if not tensor.histogram.total or minimum == maximum:
            return minimum, maximum
        outer = min(minimum, 0.0), max(maximum, 0.0)
        if scheme.symmetric:
            outer = 0.0, max(-outer[0], outer[1])
        values = _moments(tensor, symmetric=False)
        found = _fixed_point(_moments(tensor, symmetric=True) if scheme.symmetric else values, outer, scheme)
        for factors in (_WIDE, _FINE):
            found = _best(values, _around(found, outer, factors), scheme)
        low, high = -found[1] if scheme.symmetric else found[0], found[1]
        return min(max(low, minimum), maximum), max(min(high, maximum), minimum)


def _around(found: Range, outer: Range, factors: list[float]) -> list[Range]:
    """Return `outer`, and within it a range with both ends, or one of two, multiplied by each factor."""
    low, high = found
    tried = [found, *((low * each, high * each) for each in factors)]
    if low < 0 < high:
        tried += [(low * each, high) for each in factors[::2]] + [(low, high * each) for each in factors[::2]]
    return [outer, *((max(each[0], outer[0]), min(each[1], outer[1])) for each in tried)]


def _best(values: CumulativeMoments, ranges: list[Range], scheme: QuantScheme) -> Range:
    """Return the range of least error; the first, unless another is better by more than estimates err."""
    errors = _errors(values, [(-each[1], each[1]) for each in ranges] if scheme.symmetric else ranges, scheme)
    best = int(np.argmin(errors))
    return ranges[best if errors[best] < errors[0] * _GAIN else 0]


def _moments(tensor: TensorRange, *, symmetric: bool) -> CumulativeMoments:
    """Return the moments of the values, or of their magnitudes; an extreme alone in its bin is known exactly."""
    histogram = folded(tensor.histogram) if symmetric else tensor.histogram
    low = 0.0 if symmetric else tensor.minimum
    lower, upper = spans(histogram, low, max(-tensor.minimum, tensor.maximum) if symmetric else tensor.maximum)
    if histogram.counts[-1] == 1:
        lower[-1] = upper[-1]
    if histogram.counts[0] == 1 and not symmetric:
        upper[0] = lower[0]
    return CumulativeMoments(lower, upper, histogram.counts.astype(np.float64))


def _fixed_point(moments: CumulativeMoments, outer: Range, scheme: QuantScheme) -> Range:
    """Return the range of least error by OCTAV's estimate, within `outer`."""
    qmin, qmax = INTEGER_RANGE[scheme.dtype]
    steps = qmax if scheme.symmetric else qmax - qmin
    lower, upper = moments.lower, moments.upper
    lows, highs = 0.0 - _thinned(-lower[lower < 0][::-1]), _thinned(upper[upper > 0])
    low, high = (each.reshape(-1) for each in np.meshgrid(lows, highs))
    tried: list[Sums] = []
    for _ in range(_ITERATIONS):
        error, next_low, next_high = _estimate(moments, low, high, steps)
        tried.append((error, low, high))
        low, high = np.clip(next_low, outer[0], 0.0), np.clip(next_high, 0.0, outer[1])
    error, low, high = (np.concatenate(each) for each in zip(*tried, strict=True))
    best = int(np.argmin(error))
    return float(low[best]), float(high[best])


def _estimate(moments: CumulativeMoments, low: Doubles, high: Doubles, steps: int) -> Sums:
    """Return the error of each range, and the ends of least error if no other values are beyond them.

    Values within have scale^2 / 12, those that become 0 their square.
    """
    scale = (high - low) / steps
    under, over = moments.below(low), moments.above(high)
    left, right = moments.below(-scale / 2), moments.below(scale / 2)
    within = np.maximum(moments.total[0] - under[0] - over[0] - (right[0] - left[0]), 0.0)
    error = right[2] - left[2] + within * scale * scale / 12 + _clamped(under, low) + _clamped(over, high)
    share = within / (12 * steps * steps)

    def end(beyond: Sums, other: Doubles) -> Doubles:
        weight = share + beyond[0]
        return (share * other + beyond[1]) / np.where(weight > 0, weight, 1.0)

    return error, end(under, high), end(over, low)


def _errors(moments: CumulativeMoments, ranges: list[Range], scheme: QuantScheme) -> Doubles:
    """Return the error of the parameters of each range.

    Over the values x that become the integer k it is sum x^2 - 2 k scale sum x + (k scale)^2 count.
    """
    made = [scheme.params(*each) for each in ranges]
    scale = np.array([[float(each.scale)] for each in made])
    least = np.array([[each.qmin - int(each.zero_point)] for each in made])
    most = np.array([[each.qmax - int(each.zero_point)] for each in made])
    size = min(made[0].qmax - made[0].qmin, 2 * _CORE) + 1
    integers = np.maximum(np.minimum(-_CORE, most - size + 1), least) + np.arange(size)
    value = integers * scale
    borders = np.concatenate([integers, integers[:, -1:] + 1], axis=1).astype(np.float64) - 0.5
    below = moments.below(borders * scale)
    count, first, second = (np.diff(each, axis=1) for each in below)
    error = (second - 2 * value * first + value * value * count).sum(axis=1, keepdims=True)
    under, over = moments.below((least - 0.5) * scale), moments.above((most + 0.5) * scale)
    noisy = moments.total[0] - under[0] - over[0] - (below[0][:, -1:] - below[0][:, :1])
    error = error + noisy * scale * scale / 12 + _clamped(under, least * scale) + _clamped(over, most * scale)
    return error[:, 0]


def _clamped(beyond: Sums, end: Doubles) -> Doubles:
    """Return the squared distance of values from the end that they are clamped to, from their count, sum and sum of squares."""
    return np.maximum(beyond[2] - 2 * end * beyond[1] + end * end * beyond[0], 0.0)


def _thinned(edges: Doubles) -> Doubles:
    """Return some of the ends of bins, the last among them; 0 where there are none."""
    return edges[::-1][:: -(-edges.size // _STARTS)] if edges.size else np.zeros(1)
