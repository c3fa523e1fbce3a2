"""The page of figures: rows of benchmarks become its tables."""

from __future__ import annotations

import measured_page


def test_cells_hold_what_the_benchmarks_measured() -> None:
    times = {measured_page.OURS: 1.0, "litert": 2.0, "openvino": 1.5}
    speed = [
        {"model": "net", "kind": "int8", "threads": threads, "times": {k: t / threads for k, t in times.items()}, "ratio": 1.5}
        for threads in (2, 1)
    ]
    speed.append({"model": "net", "kind": "float32", "threads": 1, "times": times, "ratio": 1.5})
    of = {
        "float": (60.0, None, None),
        "octavo": (59.0, 97.0, 30.0),
        "nncf": (58.0, 95.0, 21.0),
        "onnxruntime_min_max": (57.0, 96.0, 20.0),
    }
    quality = [
        {"network": "net", "quantizer": name, "worth": worth, "agreement": agreement, "sqnr_db": sqnr, "failed": False}
        for name, (worth, agreement, sqnr) in of.items()
    ]
    libraries = [
        {"model": "net", "library": 71080, "weights": 28800, "workspace": 16000, "different": 0, "peer": peer, **times}
        for peer, times in (
            ("litert", {"octavo_ms": 0.91, "peer_ms": 2.6}),
            ("onnxruntime", {"octavo_ms": 1.0, "peer_ms": 45.22}),
        )
    ]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in measured_page.page({"AVX2": speed}, quality, libraries).splitlines()
        if line.startswith("| net ")
    ]
    assert rows == [
        ["net", "1, 0.5", "2, 1", "1.5, 0.75", "1.50"],
        ["net", "60.0", "59.0 / 97.0 / 30.00", "-", "-", "58.0 / 96.0 / 21.00"],
        ["net", "71,080", "28,800", "16,000", "0.9", "2.6", "-"],
        ["net", "71,080", "28,800", "16,000", "1.0", "-", "45.2"],
    ]
