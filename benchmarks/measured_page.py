"""The page of measured figures, docs/measured.md, from what the benchmarks wrote.

    python benchmarks/speed.py networks --json speed.json
    python benchmarks/quantization_quality.py --json quality.json
    python benchmarks/measured_page.py --speed speed.json --quality quality.json

Date, processor and versions are those of the machine that writes the page: write it where the figures were measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from octavo.report.bench import OURS, processor_name
from octavo.report.table import markdown_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured.md"
PACKAGES = ("apache-tvm", "ai-edge-litert", "onnxruntime", "openvino", "nncf")
RIVALS = ("litert", "openvino", "onnxruntime")
INT8 = ("int8", "quantized")
QUANTIZERS = {
    "octavo": "Octavo",
    "octavo_best": "Octavo, best",
    "octavo_best_wide": "Octavo, best, five tensors of 16 bits",
}
PEERS = ("onnxruntime_", "nncf")

HEAD = """\
# Measured

Written on {date} by `benchmarks/measured_page.py`, on {processor} ({versions}).
Another machine gives other times; ratios move less.
"""
SPEED = """\
## Speed

One inference in ms, on one thread and on two: medians of alternating rounds in one process. All run the same quantized file;
"from float" is what each runtime's own quantizer made of a float network. Ratio is the best peer's time over
Octavo's, on one thread.
"""
QUALITY = """\
## Quality of quantization

All calibrate on the same samples and are evaluated on others, exactly. Each cell: the metric (top-1, or AP at 50% overlap, in %),
agreement with the float model's decisions in %, and SQNR of the outputs in dB. "Best peer" is, cell by cell, the best of ONNX
Runtime's three methods and NNCF's four presets.
"""


def page(speed: Sequence[Mapping[str, Any]], quality: Sequence[Mapping[str, Any]]) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    parts = [HEAD.format(date=datetime.date.today().isoformat(), processor=processor_name(), versions=versions)]
    if speed:
        parts += [SPEED, _speed_table(speed)]
    if quality:
        parts += [QUALITY, _quality_table(quality)]
    return "\n".join(parts) + "\n"


def _speed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    table: list[list[str]] = []
    for name, kind in dict.fromkeys((row["model"], row["kind"]) for row in rows if row["kind"] in INT8):
        same = sorted((row for row in rows if (row["model"], row["kind"]) == (name, kind)), key=lambda row: row["threads"])
        cells = [", ".join(f"{row['times'][who]:.3g}" for row in same if who in row["times"]) or "-" for who in (OURS, *RIVALS)]
        ratio = same[0]["ratio"]
        table.append([name + (", from float" if kind == "quantized" else ""), *cells, "-" if ratio is None else f"{ratio:.2f}"])
    return markdown_table(["model", "Octavo", "LiteRT", "OpenVINO", "ONNX Runtime", "ratio"], table, numbers=range(1, 6))


def _quality_table(rows: Sequence[Mapping[str, Any]]) -> str:
    table: list[list[str]] = []
    for network in dict.fromkeys(row["network"] for row in rows):
        of = {row["quantizer"]: row for row in rows if row["network"] == network and not row["failed"]}
        peers = [row for name, row in of.items() if name.startswith(PEERS)]
        best = {
            key: max((row[key] for row in peers if row[key] is not None), default=None)
            for key in ("worth", "agreement", "sqnr_db")
        }
        floats = of["float"]["worth"]
        table.append(
            [network, "-" if floats is None else f"{floats:.1f}", *(_cell(of.get(each)) for each in QUANTIZERS), _cell(best)]
        )
    heads = ["network", "float", *QUANTIZERS.values(), "best peer"]
    return markdown_table(heads, table, numbers=range(1, len(heads)))


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    digits = {"worth": 1, "agreement": 1, "sqnr_db": 2}
    return " / ".join(f"{row[key]:.{count}f}" for key, count in digits.items() if row[key] is not None) or "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", type=Path, action="append", default=[], help="what speed.py --json wrote")
    parser.add_argument("--quality", type=Path, action="append", default=[], help="what quantization_quality.py --json wrote")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args()
    speed, quality = (
        [row for file in files for row in json.loads(file.read_text("utf-8"))] for files in (options.speed, options.quality)
    )
    options.output.write_text(page(speed, quality), encoding="utf-8")


if __name__ == "__main__":
    main()
