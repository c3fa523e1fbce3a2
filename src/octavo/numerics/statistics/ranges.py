"""From statistics to quantization parameters: range estimators, and the formulas for scale and zero point.

Nothing here knows a graph or a file: numbers in, numbers out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..quant_params import INTEGER_RANGE, PerAxis, PerTensor, QuantParams
from .histogram import Histogram

SMALLEST_RANGE = 2.0**-100
"""Widths below this are taken as zero: the scale and its reciprocal must be normal float32 numbers, products of scales too."""
DEAD_CHANNEL = 2.0**-24
"""A channel whose weights are all smaller than this fraction of the tensor's largest is dead: below float32's own resolution."""


def min_max_range(minimum: float, maximum: float) -> tuple[float, float]:
    """Return the observed range itself."""
    return float(minimum), float(maximum)


def percentile_range(histogram: Histogram, minimum: float, maximum: float, percentile: float) -> tuple[float, float]:
    """Return the range that keeps `percentile` percent of the values, half of the rest cut on each side.

    Within the bin that an end falls into, values are taken as evenly spread. Never wider than [minimum; maximum].

    Parameters
    ----------
    percentile
        In (0; 100], e.g. 99.99 cuts 0.005% of the values on each side.
    """
    total = histogram.total
    if not total:
        return min_max_range(minimum, maximum)
    cut = total * (100.0 - percentile) / 200.0
    lower, upper = histogram.edges()
    first, below = _bin_beyond(histogram.counts, cut)
    last, above = _bin_beyond(histogram.counts[::-1], cut)
    last = histogram.counts.size - 1 - last
    if first > last:
        return min_max_range(minimum, maximum)
    low = float(lower[first] + below * (upper[first] - lower[first]))
    high = float(upper[last] - above * (upper[last] - lower[last]))
    if low > high:  # both in one bin
        return min_max_range(minimum, maximum)
    return min(max(float(minimum), low), float(maximum)), max(min(float(maximum), high), float(minimum))


def _bin_beyond(counts: npt.NDArray[np.int64], cut: float) -> tuple[int, float]:
    """Return the first bin up to which more than `cut` values lie, and the part of its own values that `cut` takes, in [0; 1)."""
    below = np.cumsum(counts)
    index = int(np.searchsorted(below, cut, side="right"))
    if index == counts.size:
        return index, 0.0
    return index, float(cut - (below[index] - counts[index])) / float(counts[index])


def asymmetric_params(low: float, high: float, dtype: str) -> QuantParams:
    """Return per-tensor parameters of a range: scale = (high - low) / (qmax - qmin), zero_point = rint(qmin - low / scale).

    The range is first extended to include 0, so that 0 is exact. A range without width (all zeros) gets the scale
    1 / (qmax - qmin).

    Parameters
    ----------
    low, high
        Finite, low <= high.
    dtype
        "uint8", "int8", ...
    """
    qmin, qmax = INTEGER_RANGE[dtype]
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    width = high - low if high - low >= SMALLEST_RANGE else 1.0
    scale = np.float32(width / (qmax - qmin))
    zero_point = int(np.clip(np.rint(qmin - low / float(scale)), qmin, qmax))
    return QuantParams.per_tensor(dtype, float(scale), zero_point)


def symmetric_params(
    weight: npt.NDArray[np.float32], dtype: str, *, axis: int | None, floor: npt.NDArray[np.float64] | None = None
) -> QuantParams:
    """Return symmetric parameters of a weight: scale = max|w| / qmax, zero point 0, integers in [-qmax; qmax].

    A dead channel (DEAD_CHANNEL) gets the scale of the tensor's largest weight, an all-zero tensor 1 / qmax.

    Parameters
    ----------
    axis
        Channel axis of per-axis parameters, or None for per-tensor.
    floor
        Smallest scale allowed, (channels,) or (), or None.
    """
    qmax = INTEGER_RANGE[dtype][1]
    axes = tuple(index for index in range(weight.ndim) if index != axis)
    magnitude = np.abs(weight.astype(np.float64))
    largest = np.asarray(magnitude.max(axis=axes) if magnitude.size else np.zeros(()), np.float64)
    overall = float(largest.max(initial=0.0))
    if overall < SMALLEST_RANGE:
        overall = 1.0
    scale = np.where(largest < overall * DEAD_CHANNEL, overall, largest) / qmax
    if floor is not None:
        scale = np.maximum(scale, floor)
    scale = scale.astype(np.float32)
    return QuantParams(
        dtype=dtype,
        scale=scale,
        zero_point=np.zeros(scale.shape, np.int32),
        granularity=PerTensor() if axis is None else PerAxis(axis),
        qmin=-qmax,
        qmax=qmax,
    )
