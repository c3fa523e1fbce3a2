"""The figures of one tensor that a report shows: derived from its statistics, without the model and without any samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numerics.statistics.histogram_estimates import Moments, estimated_sqnr_db, moments, share_outside
from ..profile import TensorStatistics
from ..quantize.ranges import Percentile, QuantScheme, RangeEstimator, range_previews

CENTRE = 99.99
"""The range that keeps so many percent of the values is a tensor's centre; what lies outside are its outliers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What one range would make of a tensor in int8, one scale for all of it.

    Parameters
    ----------
    range_estimator
        What chose the range, as a recipe spells it.
    low, high
        The range.
    scale, zero_point
        Asymmetric of an activation, symmetric of a constant.
    sqnr_db
        Estimate, dB; None where nothing is lost.
    saturated
        Share of the values that saturation moves further than rounding would, in [0; 1].
    """

    range_estimator: str
    low: float
    high: float
    scale: float
    zero_point: int
    sqnr_db: float | None
    saturated: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFigures:
    """Figures derived from one tensor's statistics; None where the tensor has no value, or no channels, to derive them from.

    Parameters
    ----------
    moments
        Mean, standard deviation, kurtosis.
    centre
        The range that keeps CENTRE percent of the values.
    tail
        Width of the whole range over the width of the centre's (`CENTRE`); 1 without outliers.
    outliers
        Share of the values outside the centre, in [0; 1].
    spread
        Largest magnitude of a channel over that of the median channel, among the channels that are not silent.
    previews
        One for each of `range_previews`, min-max first; empty where there are no finite values.
    """

    moments: Moments | None
    centre: tuple[float, float] | None
    tail: float | None
    outliers: float
    spread: float | None
    previews: tuple[Preview, ...]


def figures_of(statistics: TensorStatistics) -> TensorFigures:
    """Derive a tensor's figures."""
    spread = _spread(statistics)
    if not statistics.finite:
        return TensorFigures(moments=None, centre=None, tail=None, outliers=0.0, spread=spread, previews=())
    histogram, minimum, maximum = statistics.histogram, statistics.minimum, statistics.maximum
    scheme = QuantScheme(dtype="int8", symmetric=statistics.kind == "constant", narrow=True)
    low, high = Percentile(CENTRE).range_of(statistics, scheme)
    return TensorFigures(
        moments=moments(histogram, minimum, maximum),
        centre=(low, high),
        tail=(maximum - minimum) / (high - low) if high > low else None,
        outliers=share_outside(histogram, minimum, maximum, low, high),
        spread=spread,
        previews=tuple(_preview(statistics, scheme, name, estimator) for name, estimator in range_previews().items()),
    )


def _spread(statistics: TensorStatistics) -> float | None:
    if statistics.channel_axis is None:
        return None
    low, high = statistics.channel_minimum, statistics.channel_maximum
    seen = np.isfinite(low)
    magnitudes = np.where(seen, np.maximum(np.abs(low), np.abs(high)), 0.0)
    loud: npt.NDArray[np.floating] = magnitudes[magnitudes > 0]
    return float(loud.max()) / float(np.median(loud)) if loud.size else None


def _preview(statistics: TensorStatistics, scheme: QuantScheme, name: str, estimator: RangeEstimator) -> Preview:
    histogram, minimum, maximum = statistics.histogram, statistics.minimum, statistics.maximum
    low, high = estimator.range_of(statistics, scheme)
    params = scheme.params(low, high)
    scale, zero_point = float(params.scale), int(params.zero_point)
    sqnr = estimated_sqnr_db(histogram, minimum, maximum, params)
    # Half a quantization step beyond the ends is what rounding brings back.
    first, last = ((integer - zero_point) * scale for integer in (params.qmin - 0.5, params.qmax + 0.5))
    return Preview(
        range_estimator=name,
        low=low,
        high=high,
        scale=scale,
        zero_point=zero_point,
        sqnr_db=sqnr if math.isfinite(sqnr) else None,
        saturated=share_outside(histogram, minimum, maximum, first, last),
    )
