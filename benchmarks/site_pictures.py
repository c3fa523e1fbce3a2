"""The site's pictures of Octavo's pages, docs/images/*.png: the demo's network, in a headless Chromium.

    python benchmarks/site_pictures.py

Times on the bench's page are those of the machine that it runs on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path

import numpy as np
from PIL import Image

import octavo
from octavo.evaluation.bench.bench import bench
from octavo.evaluation.bench.roofline import roofline
from octavo.report import bench_page, profile_page, quantization_figures, quantization_page

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "report")]

from browser import Browser, browser, find_chromium  # noqa: E402  # files of the tests

IMAGES = ROOT / "docs" / "images"
DEMO = Path(str(resources.files("octavo.cli"))) / "demo_data"
SAMPLES = 64
COLOURS = 96
"""Of a picture: text and bars need no more, and the files are a third as large."""
PEERS = ("onnxruntime", "openvino", "tvm")
OPEN = "document.querySelectorAll('#rows tr')[{}].click(); document.activeElement.blur(); scrollTo(0, {})"
PICTURES = {
    # name: page, width, height, scheme, what is done before
    "profile": ("profile", 1200, 760, "light", OPEN.format(8, 0)),
    "quantization": ("quantization", 1200, 860, "light", ""),
    "layer": ("quantization", 1200, 760, "dark", OPEN.format(6, 99999)),
    "phone": ("quantization", 390, 760, "light", ""),
    "bench": ("bench", 1200, 860, "light", ""),
}


def write_pages(folder: Path) -> None:
    """Write the pages of the demo's network."""
    model = octavo.load(DEMO / "digits.onnx")
    with np.load(DEMO / "digits.npz") as digits:
        pixels = digits["images"][:, None].astype(np.float32)[~digits["held_out"]][:SAMPLES] / 16
    profile = octavo.profile(model, [pixels])
    quantized = octavo.quantize(model, profile)
    path = folder / "digits.int8.onnx"
    octavo.export_onnx(quantized, path)
    figures = quantization_figures(model, quantized, profile)
    report = bench(quantized, path, against=PEERS, threads=(1, 2), seconds=1.0)
    pages = {
        "profile": profile_page(profile, title="digits.onnx", model=model),
        "quantization": quantization_page(figures, title="digits.onnx"),
        "bench": bench_page(path.name, report=report, layers=roofline(quantized, path.name)),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")


def picture(chromium: Browser, name: str, folder: Path) -> Path:
    """Write one picture."""
    page, width, height, scheme, before = PICTURES[name]
    chromium.size(width, height)
    chromium.scheme(scheme)
    chromium.open(folder / f"{page}.html")
    chromium.wait("document.querySelector('#rows tr')")
    if before:
        chromium.evaluate(before)
    time.sleep(0.5)  # figures are drawn when they come near
    assert chromium.complaints == [], chromium.complaints
    target = IMAGES / f"{name}.png"
    chromium.screenshot(target)
    Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)
    return target


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    program = find_chromium()
    if program is None:
        print("octavo: error: no Chromium: apt-get install chromium, or set OCTAVO_CHROMIUM to its path", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        write_pages(Path(folder))
        with browser(program, Path(folder) / "chromium") as chromium:
            for name in PICTURES:
                target = picture(chromium, name, Path(folder))
                print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
