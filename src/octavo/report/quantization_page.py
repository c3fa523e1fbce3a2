"""A quantized model as one HTML page that needs nothing but itself. What the figures mean is `quantization_figures`' business."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..evaluation.evaluate import LAYER_SAMPLES
from ..evaluation.layer_errors import LayerError
from ..ir.identity import TensorId
from ..numerics import QuantParams
from ..numerics.statistics.histogram_estimates import spans
from ..profiling import TensorStatistics
from ..quantizer.causes import RootCause
from ..quantizer.plan.journal import Journal
from ..quantizer.plan.plan import QuantizationPlan
from ..quantizer.search import SearchResult
from .html import LIST_PARTS, filled, rounded
from .quantization_figures import QuantizationFigures, VariantFigures
from .quantized_layers import WeightFigures

_CELLS = 120
"""Bars of a histogram."""
_PARTS = {
    "/*STYLE*/": "page.css",
    "/*PARTS_STYLE*/": "parts.css",
    "/*MORE_STYLE*/": "quantization.css",
    **LIST_PARTS,
    "/*FRONT*/": "front.js",
    "/*DETAILS*/": "quantization_details.js",
    "/*SCRIPT*/": "quantization.js",
}


def quantization_page(figures: QuantizationFigures, *, title: str) -> str:
    """Return the page, ASCII but for the template's own characters.

    Parameters
    ----------
    title
        What the page calls the model, e.g. the file's name.
    """
    return filled("quantization.html", _PARTS, _page_data(figures, title))


def _page_data(figures: QuantizationFigures, title: str) -> dict[str, Any]:
    plan = figures.quantized.plan
    return {
        "title": title,
        "fingerprint": figures.model.fingerprint,
        "samples": figures.samples,
        "layerSamples": min(LAYER_SAMPLES, figures.samples),
        "summary": figures.summary,
        "notes": list(figures.notes),
        "journal": _journal(plan.journal),
        "variants": [_variant(each) for each in figures.variants],
        "tensors": list(_tensors(figures)),
        "causes": [{"id": row.id, "name": row.source_name or row.id, **_cause(row)} for row in figures.causes if row.cause],
        "adjustments": [
            {"id": each.tensor, "name": _name(figures, each.tensor), "said": each.message} for each in plan.adjustments
        ],
        "floatOps": [
            {
                "id": each.tensor,
                "name": each.name,
                "op": each.op,
                "reason": each.reason,
                "macs": each.macs,
                "share": rounded(each.share),
                "saving": rounded(each.saving),
            }
            for each in figures.float_ops
        ],
        "worst": [
            {
                "number": each.number,
                "sqnr": _decibels(each.sqnr_db),
                "floatClass": each.float_class,
                "quantizedClass": each.quantized_class,
                "picture": each.picture,
            }
            for each in figures.worst
        ],
        "search": None if figures.search is None else _search(figures.search),
    }


def _journal(journal: Journal) -> dict[str, Any]:
    return {
        "heldBack": journal.held_back,
        "plain": _decibels(journal.plain_db),
        "sqnr": _decibels(journal.sqnr_db),
        "entries": [
            {
                "step": each.step,
                "proposal": each.proposal,
                "gain": _decibels(each.gain_db),
                "error": _decibels(each.standard_error_db),
                "kept": each.kept,
                "seconds": each.seconds,
            }
            for each in journal.entries
            if each.proposal
        ],
    }


def _variant(variant: VariantFigures) -> dict[str, Any]:
    return {
        "name": variant.name,
        "sqnr": _decibels(variant.sqnr_db),
        "bytes": variant.weight_bytes,
        "packed": variant.packed_bytes,
        "time": rounded(variant.time),
        "outputs": [
            {
                "name": each.name,
                "shape": list(each.shape),
                "sqnr": _decibels(each.sqnr_db),
                "agreement": rounded(each.agreement),
            }
            for each in variant.outputs
        ],
    }


def _tensors(figures: QuantizationFigures) -> Iterator[dict[str, Any]]:
    """Yield the tensors of which something is known, in the order of the graph; others behind them."""
    plan = figures.quantized.plan
    layers = {row.id: row for row in figures.layers}
    causes: dict[TensorId, list[RootCause]] = {}
    for row in figures.causes:
        causes.setdefault(row.id, []).append(row)
    reasons = {op.tensor: op for op in plan.float_ops}
    made = {layer.output: layer.op for layer in plan.layers}
    known = dict.fromkeys((*layers, *causes, *reasons, *made))
    order = {name: place for place, name in enumerate(figures.model.tensors)}
    for name in sorted(known, key=lambda name: order.get(name, len(order))):
        entry = figures.model.tensors.get(name)
        float_op = reasons.get(name)
        yield {
            "id": name,
            "name": _name(figures, name),
            "op": (entry.op if entry is not None else "") or made.get(name) or ("" if float_op is None else float_op.op),
            "shape": None if entry is None else list(entry.shape),
            "dtype": _dtype(plan, name),
            "params": _params(plan.activations.get(name)),
            "weights": _weights(figures.weights.get(name)),
            "time": rounded(figures.times.get(name)),
            "histogram": _histogram(figures.profile.tensors.get(name)),
            "reason": "" if float_op is None else float_op.reason,
            "adjustments": [each.message for each in plan.adjustments if each.tensor == name],
            "causes": [_cause(row) for row in causes.get(name, ())],
            **_layer(layers.get(name)),
        }


def _name(figures: QuantizationFigures, name: TensorId) -> str:
    entry = figures.model.tensors.get(name)
    return (entry.source_name if entry is not None else "") or str(name)


def _dtype(plan: QuantizationPlan, name: TensorId) -> str:
    params = plan.activations.get(name)
    return "float32" if params is None else params.dtype


def _params(params: QuantParams | None) -> dict[str, Any] | None:
    """Return scale, zero point and the range that they stand for, of an activation; of several scales the greatest."""
    if params is None:
        return None
    place = int(np.argmax(params.scale))
    scale, zero_point = float(params.scale.reshape(-1)[place]), int(params.zero_point.reshape(-1)[place])
    return {
        "scale": rounded(scale),
        "zeroPoint": zero_point,
        "scales": params.scale.size,
        "low": rounded((params.qmin - zero_point) * scale),
        "high": rounded((params.qmax - zero_point) * scale),
    }


def _weights(weights: WeightFigures | None) -> dict[str, Any] | None:
    if weights is None:
        return None
    return {
        "name": weights.name,
        "bits": weights.bits,
        "scales": weights.scales,
        "least": rounded(weights.least_scale),
        "greatest": rounded(weights.greatest_scale),
        "sqnr": _decibels(weights.sqnr_db),
    }


def _histogram(statistics: TensorStatistics | None) -> dict[str, Any] | None:
    """Return the values of the float tensor in equal parts of their range."""
    if statistics is None or not statistics.histogram.total or statistics.minimum == statistics.maximum:
        return None
    minimum, maximum = statistics.minimum, statistics.maximum
    low, high = spans(statistics.histogram, minimum, maximum)
    edges = np.linspace(minimum, maximum, _CELLS + 1)
    # Of each bin its values are evenly spread: how many lie below each edge is a line between its ends.
    width = np.where(high > low, high - low, 1.0)
    below = np.where(high > low, np.clip((edges[:, None] - low) / width, 0, 1), edges[:, None] >= high)
    below[0] = 0  # a span without width may lie at the very minimum
    counts = np.diff(below @ statistics.histogram.counts)
    return {"min": rounded(minimum), "max": rounded(maximum), "counts": [round(float(count)) for count in counts]}


def _layer(row: LayerError | None) -> dict[str, Any]:
    if row is None:
        return {"sqnr": None, "local": None, "inherited": None, "excess": None, "block": None, "blockShare": None, "channels": []}
    return {
        "sqnr": _decibels(row.sqnr_db),
        "local": _decibels(row.local_sqnr_db),
        "inherited": rounded(row.inherited),
        "excess": rounded(row.scale_excess_db),
        "block": row.block if row.is_inner else None,
        "blockShare": rounded(row.block_share),
        "channels": [rounded(each) for each in row.channel_errors],
    }


def _cause(row: RootCause) -> dict[str, Any]:
    return {
        "part": row.part,
        "alone": _decibels(row.sqnr_db),
        "share": rounded(row.share),
        "cause": row.cause,
        "remedy": row.remedy,
        "gain": rounded(row.gain_db),
    }


def _search(search: SearchResult) -> dict[str, Any]:
    front = {each.name for each in search.front}
    metrics = {each.metric for each in search.front}
    return {
        "float": rounded(search.float_metric),
        # All on the front may decide as the float model does, and differ in how near they come to it.
        "isByMetric": len(metrics) > 1,
        "candidates": [
            {
                "name": each.name,
                "cost": rounded(each.cost),
                "metric": rounded(each.metric),
                "sqnr": _decibels(each.sqnr_db),
                "floats": len(each.float_tensors),
                "isFront": each.name in front,
            }
            for each in search.candidates
            if each.metric is not None
        ],
    }


def _decibels(value: float | None) -> float | str | None:
    """Return a figure, or a word for one that JSON has not: "exact" without an error, "lost" where nothing is left."""
    if value is None or math.isfinite(value):
        return rounded(value)
    return "exact" if value > 0 else "lost"
