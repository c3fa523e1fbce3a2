"""A profile as one HTML page that needs nothing but itself. What the figures mean is `tensor_figures`' business."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..ir.graph import Model
from ..ir.identity import TensorId
from ..numerics.statistics.histogram import MANTISSA_BITS
from ..profiling import Profile, TensorStatistics, adequacy_of
from ..quantizer.quantize import quantize
from ..quantizer.recipe import Recipe
from .html import LIST_PARTS, filled, rounded
from .tensor_figures import CENTRE, figures_of

_PARTS = {"/*STYLE*/": "page.css", **LIST_PARTS, "/*DETAILS*/": "details.js", "/*SCRIPT*/": "page.js"}
_PLACEMENT = Recipe(equalization="none", weight_rounding="nearest", bias_correction=False, min_sqnr=None)
"""Says which tensors have scales, and takes no time about them."""


def profile_page(profile: Profile, *, title: str, model: Model | None = None) -> str:
    """Return the page, ASCII but for the template's own characters.

    Parameters
    ----------
    title
        What the page calls the profile, e.g. the file's name.
    model
        The model that was profiled: tells which of its tensors are quantized at all. Without it the page goes by their ranges.

    Raises
    ------
    ProfileError
        `model` is not the one that was profiled.
    """
    unranked = _never_seen(profile) if model is None else _without_scale(profile, model)
    return filled("page.html", _PARTS, _page_data(profile, title, unranked))


def _without_scale(profile: Profile, model: Model) -> dict[TensorId, str]:
    """Return why tensors get no 8-bit scale, as `quantize` places them."""
    plan = quantize(model, profile, recipe=_PLACEMENT).plan
    scaled = {*plan.activations, *plan.weights}
    why = {"activation": "it is computed within a kernel, or stays float", "constant": "a bias is int32, others are folded"}
    others = {name: why.get(each.kind, "it stays float") for name, each in profile.items() if name not in scaled}
    return {name: f"It gets no 8-bit scale: {reason}." for name, reason in others.items()}


def _never_seen(profile: Profile) -> dict[TensorId, str]:
    """Return why tensors get no 8-bit scale where nothing but their ranges tells."""
    constants = [each.id for each in profile.values() if each.kind == "constant" and each.channel_axis is None]
    found = dict.fromkeys(constants, "No layer reads it as its weights: a bias is int32, others are folded.")
    made = [each for each in profile.values() if each.kind == "activation"]
    for each, after in pairwise(made):
        if _is_clamped(each, after):
            found[each.id] = f"Its range, clamped, is that of {after.source_name}: one kernel computes both."
    return found


def _is_clamped(before: TensorStatistics, after: TensorStatistics) -> bool:
    """Return whether a tensor has the other's values where these are not negative, or above a bound (ReLU, ReLU6)."""
    if before.shape != after.shape or not (before.finite and after.finite):
        return False
    top = after.maximum == before.maximum or (before.maximum > after.maximum and float(after.maximum).is_integer())
    return before.minimum < after.minimum == 0 < after.maximum and top


def _page_data(profile: Profile, title: str, unranked: dict[TensorId, str]) -> dict[str, Any]:
    return {
        "title": title,
        "fingerprint": profile.fingerprint,
        "samples": profile.samples,
        "kept": len(profile.kept_samples),
        "preprocessing": profile.preprocessing,
        "tools": {name: ", ".join(versions) for name, versions in profile.tools.items()},
        "mantissaBits": MANTISSA_BITS,
        "centre": CENTRE,
        "tensors": [_tensor_data(statistics, unranked.get(name, "")) for name, statistics in profile.items()],
    }


def _tensor_data(statistics: TensorStatistics, unranked: str) -> dict[str, Any]:
    figures = figures_of(statistics)
    found = figures.moments
    adequacy = adequacy_of(statistics)
    how = adequacy.convergence
    return {
        "id": statistics.id,
        "name": statistics.source_name,
        "unranked": unranked,
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
        "gaps": _short(np.diff(statistics.histogram.bins, prepend=0)),
        "counts": statistics.histogram.counts.tolist(),
        "mean": None if found is None else rounded(found.mean),
        "deviation": None if found is None else rounded(found.deviation),
        "kurtosis": None if found is None else rounded(found.kurtosis),
        "centre": None if figures.centre is None else [rounded(end) for end in figures.centre],
        "tail": rounded(figures.tail),
        "outliers": rounded(figures.outliers),
        "spread": rounded(figures.spread),
        "silent": list(adequacy.silent_channels),
        "growth": None if how is None else rounded(how.growth),
        "growing": adequacy.growing,
        "curve": [] if how is None else [[rounded(share) for share in point] for point in how.curve],
        "minInterval": None if how is None else [rounded(end) for end in how.minimum_interval],
        "maxInterval": None if how is None else [rounded(end) for end in how.maximum_interval],
        "previews": [
            {
                "estimator": preview.range_estimator,
                "low": rounded(preview.low),
                "high": rounded(preview.high),
                "scale": _decimal(preview.scale),
                "leastScale": rounded(preview.least_scale),
                "zeroPoint": preview.zero_point,
                "sqnr": rounded(preview.sqnr_db),
                "saturated": rounded(preview.saturated),
            }
            for preview in figures.previews
        ],
    }


def _short(gaps: npt.NDArray[np.int64]) -> list[int]:
    """Return gaps with each run of ones behind the first gap, of which most consist, as its length below 0."""
    found: list[int] = gaps[:1].tolist()
    for gap, run in groupby(gaps[1:].tolist()):
        count = len(list(run))
        found += [-count] if gap == 1 and count > 1 else [gap] * count
    return found


def _decimal(value: float) -> float:
    """Return the float64 that prints as the shortest decimal of a float32."""
    return float(str(np.float32(value)))


def _decimals(values: npt.NDArray[np.float32]) -> list[float | None]:
    """Return each value's decimal, None for the bound of a channel without values."""
    return [_decimal(value) if np.isfinite(value) else None for value in values]
