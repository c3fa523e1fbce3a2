"""A profile as one HTML page that needs nothing but itself. What the figures mean is `tensor_figures`' business."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..numerics.statistics.histogram import MANTISSA_BITS
from ..profile import Profile, TensorStatistics, adequacy_of
from .html import filled, rounded
from .tensor_figures import CENTRE, figures_of

_PARTS = {"/*STYLE*/": "page.css", "/*MAKERS*/": "makers.js", "/*DETAILS*/": "details.js", "/*SCRIPT*/": "page.js"}


def profile_page(profile: Profile, *, title: str) -> str:
    """Return the page, ASCII but for the template's own characters.

    Parameters
    ----------
    title
        What the page calls the profile, e.g. the file's name.
    """
    return filled("page.html", _PARTS, _page_data(profile, title))


def _page_data(profile: Profile, title: str) -> dict[str, Any]:
    return {
        "title": title,
        "fingerprint": profile.fingerprint,
        "samples": profile.samples,
        "kept": len(profile.kept_samples),
        "preprocessing": profile.preprocessing,
        "tools": {name: ", ".join(versions) for name, versions in profile.tools.items()},
        "mantissaBits": MANTISSA_BITS,
        "centre": CENTRE,
        "tensors": [_tensor_data(statistics) for statistics in profile.values()],
    }


def _tensor_data(statistics: TensorStatistics) -> dict[str, Any]:
    figures = figures_of(statistics)
    found = figures.moments
    judged = adequacy_of(statistics)
    how = judged.convergence
    return {
        "id": statistics.id,
        "name": statistics.source_name,
        "kind": statistics.kind,
        "op": statistics.op,
        "layer": statistics.layer,
        "shape": list(statistics.shape),
        "dtype": statistics.dtype,
        "count": statistics.count,
        "zeros": statistics.zeros,
        "nonFinite": statistics.non_finite,
        "note": statistics.non_finite_note,
        "min": _decimal(statistics.minimum) if statistics.finite else None,
        "max": _decimal(statistics.maximum) if statistics.finite else None,
        "axis": statistics.channel_axis,
        "channelMin": _decimals(statistics.channel_minimum),
        "channelMax": _decimals(statistics.channel_maximum),
        "gaps": np.diff(statistics.histogram.bins, prepend=0).tolist(),
        "counts": statistics.histogram.counts.tolist(),
        "mean": None if found is None else rounded(found.mean),
        "deviation": None if found is None else rounded(found.deviation),
        "kurtosis": None if found is None else rounded(found.kurtosis),
        "centre": None if figures.centre is None else [rounded(end) for end in figures.centre],
        "tail": rounded(figures.tail),
        "outliers": rounded(figures.outliers),
        "spread": rounded(figures.spread),
        "silent": list(judged.silent_channels),
        "growth": None if how is None else rounded(how.growth),
        "growing": judged.growing,
        "curve": [] if how is None else [[rounded(share) for share in point] for point in how.curve],
        "minInterval": None if how is None else [rounded(end) for end in how.minimum_interval],
        "maxInterval": None if how is None else [rounded(end) for end in how.maximum_interval],
        "previews": [
            {
                "estimator": preview.range_estimator,
                "low": rounded(preview.low),
                "high": rounded(preview.high),
                "scale": _decimal(preview.scale),
                "zeroPoint": preview.zero_point,
                "sqnr": rounded(preview.sqnr_db),
                "saturated": rounded(preview.saturated),
            }
            for preview in figures.previews
        ],
    }


def _decimal(value: float) -> float:
    """Return the float64 that prints as the shortest decimal of a float32."""
    return float(str(np.float32(value)))


def _decimals(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Return each value's decimal, None for the bound of a channel without values."""
    return [_decimal(value) if np.isfinite(value) else None for value in values]
