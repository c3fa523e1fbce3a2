"""A bench as one HTML page that needs nothing but itself: runtimes side by side, layers against the machine's peaks."""

from __future__ import annotations

from typing import Any

from ..evaluation.bench.bench import OURS, BenchReport, BenchRow
from ..evaluation.bench.roofline import LayerTime, Roofline
from .html import LIST_PARTS, filled, rounded

_PARTS = {
    "/*STYLE*/": "page.css",
    "/*PARTS_STYLE*/": "parts.css",
    "/*MORE_STYLE*/": "bench.css",
    **LIST_PARTS,
    "/*DETAILS*/": "roofline.js",
    "/*SCRIPT*/": "bench.js",
}


def bench_page(title: str, *, report: BenchReport | None = None, layers: Roofline | None = None, note: str = "") -> str:
    """Return the page, ASCII but for the template's own characters.

    Parameters
    ----------
    title
        What the page calls the model, e.g. the file's name.
    report
        Times of runtimes; None where none were compared.
    layers
        Times of the calls of Octavo's build; None where they cannot be timed.
    note
        Why something is missing.
    """
    return filled("bench.html", _PARTS, _page_data(title, report, layers, note))


def _page_data(title: str, report: BenchReport | None, layers: Roofline | None, note: str) -> dict[str, Any]:
    measured = report or layers
    return {
        "title": title,
        "processor": "" if measured is None else measured.processor,
        "seconds": None if report is None else report.seconds,
        "note": note,
        "rows": [] if report is None else [_row(each) for each in report.rows],
        "integerPeak": None if layers is None else rounded(layers.integer_peak),
        "floatPeak": None if layers is None else rounded(layers.float_peak),
        "memoryPeak": None if layers is None else rounded(layers.memory_peak),
        "weightedShare": None if layers is None else rounded(layers.weighted_share),
        "layers": [] if layers is None else [_layer(place, each) for place, each in enumerate(layers.layers)],
    }


def _row(row: BenchRow) -> dict[str, Any]:
    return {
        "runtime": row.runtime,
        "isOurs": row.runtime == OURS,
        "version": row.version,
        "threads": row.threads,
        "median": rounded(row.median_ms),
        "ratio": rounded(row.ratio),
        "difference": rounded(row.max_abs_error),
        "note": row.note,
    }


def _layer(place: int, layer: LayerTime) -> dict[str, Any]:
    return {
        "id": f"{place} {layer.kernel}",
        "name": layer.source_name or layer.tensor or layer.kernel,
        "kernel": layer.kernel,
        "isInteger": layer.integer,
        "macs": layer.macs,
        "size": layer.size,
        "time": rounded(layer.microseconds),
        "peakShare": rounded(layer.share),
    }
