"""The figures of one tensor that a report shows: derived from its statistics, without the model and without any samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..numerics.statistics.histogram_estimates import Moments, estimated_sqnr_db, moments, share_outside
from ..profiling import TensorStatistics
from ..quantizer.ranges import Percentile, QuantScheme, RangeEstimator, range_previews

CENTRE = 99.99
"""The range that keeps so many percent of the values is a tensor's centre; what lies outside are its outliers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preview:
    """What one range would make of a tensor in int8.

    Parameters
    ----------
    range_estimator
        What chose the range, as a recipe spells it.
    low, high
        The range.
    scale, zero_point
        Asymmetric of an activation, symmetric of a constant. By channel, the largest scale.
    least_scale
        The smallest scale by channel; None where all of the tensor has one.
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
    least_scale: float | None = None


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
        One for each of `range_previews`, min-max first; empty where there are no finite values. Of a weight, before them that of
        min-max by channel, which is how weights are quantized unless a recipe says otherwise.
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
        previews=(
            *_by_channel(statistics, scheme),
            *(_preview(statistics, scheme, name, estimator) for name, estimator in range_previews().items()),
        ),
    )


def _by_channel(statistics: TensorStatistics, scheme: QuantScheme) -> tuple[Preview, ...]:
    """Return what a scale of its own makes of each channel of a weight; () of anything else.

    How values are spread within a channel is not known, and need not be: rounding to int8 leaves the power scale^2 / 12 to each
    value but zero, whose rounding is exact.
    """
    low, high = statistics.channel_minimum, statistics.channel_maximum
    seen = np.isfinite(low)
    if statistics.kind != "constant" or statistics.channel_axis is None or not seen.any():
        return ()
    # Symmetric: a scale is proportional to the largest magnitude.
    scales = np.maximum(np.abs(low[seen]), np.abs(high[seen])).astype(np.float64) * float(scheme.params(-1.0, 1.0).scale)
    loud = scales > 0
    found = moments(statistics.histogram, statistics.minimum, statistics.maximum)
    signal = found.mean**2 + found.deviation**2
    # Of the values of channels that are not silent.
    rounded = (1 - statistics.zeros / statistics.count) / max(float(np.mean(loud)), 1e-30)
    noise = rounded * float(np.mean(scales**2)) / 12
    # The scale of a silent channel says nothing.
    shown = scales[loud] if loud.any() else scales
    return (
        Preview(
            range_estimator="min_max by channel",
            low=statistics.minimum,
            high=statistics.maximum,
            scale=float(shown.max()),
            least_scale=float(shown.min()),
            zero_point=0,
            sqnr_db=10 * math.log10(signal / noise) if noise and signal else None,
            saturated=0.0,
        ),
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
