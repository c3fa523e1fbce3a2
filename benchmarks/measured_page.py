"""The page of measured figures, docs/measured.md, from what the benchmarks wrote.

    python benchmarks/speed.py networks --json speed.json
    python benchmarks/quantization_quality.py --json quality.json
    python benchmarks/c_libraries.py --json libraries.json
    python benchmarks/measured_page.py --speed "AVX-512 VNNI=speed.json" --quality quality.json --libraries libraries.json

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

from octavo.compiler.text_table import markdown_table
from octavo.evaluation.bench.bench import OURS, processor_name

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured.md"
PACKAGES = ("apache-tvm", "ai-edge-litert", "onnxruntime", "openvino", "nncf")
RIVALS = {"litert": "LiteRT", "openvino": "OpenVINO", "onnxruntime": "ONNX Runtime"}
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
LIBRARIES = """\
## C libraries

Bytes of each library, of the weights in it and of the workspace of a call, and ms from a program's start to its end after one
result, on one core: medians of programs of the C APIs by turns, which read an input file and write the output. All of Octavo's
outputs are Python's bytes. LiteRT looks for no GPU.
"""


def page(
    speed: Mapping[str, Sequence[Mapping[str, Any]]],
    quality: Sequence[Mapping[str, Any]],
    libraries: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the page; `speed` by what the processor was limited to."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES)
    parts = [HEAD.format(date=datetime.date.today().isoformat(), processor=processor_name(), versions=versions)]
    if speed:
        parts.append(SPEED)
    for title, rows in speed.items():
        parts += [f"### {title}\n", _speed_table(rows), ""]
    if quality:
        parts += [QUALITY, _quality_table(quality), ""]
    if libraries:
        assert not any(row["different"] for row in libraries), "the page says that all bytes are Python's"
        parts += [LIBRARIES, _library_table(libraries)]
    return "\n".join(parts).rstrip("\n") + "\n"


def _speed_table(rows: Sequence[Mapping[str, Any]]) -> str:
    rows = [row for row in rows if row["kind"] in INT8]
    names = {OURS: "Octavo", **{name: title for name, title in RIVALS.items() if any(name in row["times"] for row in rows)}}
    table: list[list[str]] = []
    for name, kind in dict.fromkeys((row["model"], row["kind"]) for row in rows):
        same = sorted((row for row in rows if (row["model"], row["kind"]) == (name, kind)), key=lambda row: row["threads"])
        cells = [", ".join(f"{row['times'][who]:.3g}" for row in same if who in row["times"]) or "-" for who in names]
        ratio = same[0]["ratio"]
        table.append([name + (", from float" if kind == "quantized" else ""), *cells, "-" if ratio is None else f"{ratio:.2f}"])
    headers = ["model", *names.values(), "ratio"]
    return markdown_table(headers, table, numbers=range(1, len(headers)))


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
    headers = ["network", "float", *QUANTIZERS.values(), "best peer"]
    return markdown_table(headers, table, numbers=range(1, len(headers)))


def _library_table(rows: Sequence[Mapping[str, Any]]) -> str:
    peers = {name: title for name, title in RIVALS.items() if any(row["peer"] == name for row in rows)}
    table = [
        [
            row["model"],
            *(f"{row[key]:,}" for key in ("library", "weights", "workspace")),
            f"{row['octavo_ms']:.1f}",
            *(f"{row['peer_ms']:.1f}" if row["peer"] == name else "-" for name in peers),
        ]
        for row in rows
    ]
    headers = ["model", "`.so`", "weights", "workspace", "Octavo", *peers.values()]
    return markdown_table(headers, table, numbers=range(1, len(headers)))


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    digits = {"worth": 1, "agreement": 1, "sqnr_db": 2}
    return " / ".join(f"{row[key]:.{count}f}" for key, count in digits.items() if row[key] is not None) or "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="append", default=[], metavar="TITLE=FILE", help="what speed.py --json wrote")
    parser.add_argument("--quality", type=Path, action="append", default=[], help="what quantization_quality.py --json wrote")
    parser.add_argument("--libraries", type=Path, help="what c_libraries.py --json wrote")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args()
    speed = {title: _rows(Path(file)) for title, _, file in (each.partition("=") for each in options.speed)}
    quality = [row for file in options.quality for row in _rows(file)]
    libraries = [] if options.libraries is None else _rows(options.libraries)
    options.output.write_text(page(speed, quality, libraries), encoding="utf-8")


def _rows(file: Path) -> list[dict[str, Any]]:
    return json.loads(file.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
