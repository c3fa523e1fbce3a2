"""The page of a bench: its numbers, and, in a headless Chromium, what it shows and how it answers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, fresh, inked

from octavo.evaluation.bench.bench import BenchReport, BenchRow
from octavo.evaluation.bench.roofline import LayerTime, Roofline
from octavo.report import bench_page

NASTY = '</script><img src=x onerror="document.body.dataset.hacked=1"><!--<script>&lt;\u2028'
PANEL = "document.getElementById('details')"
SHOWN = "[...document.querySelectorAll('#rows .open-tensor')].map(e => e.textContent)"
ROWS = tuple(
    row
    for threads in (1, 2)
    for row in (
        BenchRow(runtime="Octavo", version="0.1", threads=threads, median_ms=2.0 / threads, ratio=1.0),
        BenchRow(runtime="peer", version="7", threads=threads, median_ms=3.0 / threads, ratio=1.5, max_abs_error=0.25),
        BenchRow(runtime="slow", version="2", threads=threads, median_ms=90.0, ratio=45.0),
        BenchRow(runtime="blind", version="1", threads=threads, note="reads no .onnx file"),
    )
)
LAYERS = (
    LayerTime(kernel="relabel", tensor="x", integer=True, macs=0, microseconds=0.5, share=None, size=2000, source_name="image"),
    LayerTime(
        kernel="conv2d", tensor="a", integer=True, macs=2 * 10**6, microseconds=20, share=0.5, size=40_000, source_name=NASTY
    ),
    LayerTime(kernel="dense", tensor="b", integer=True, macs=90_000, microseconds=9, share=0.05, size=91_000, source_name=""),
    LayerTime(kernel="softmax", tensor="", integer=False, macs=0, microseconds=4, share=None),
)
REPORT = BenchReport(model="m.onnx", processor="some core", seconds=0.5, rows=ROWS)
ROOFLINE = Roofline(model="m", processor="some core", integer_peak=200.0, float_peak=50.0, layers=LAYERS, memory_peak=10.0)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_bytes(bench_page(f"m {NASTY}.onnx", report=REPORT, layers=ROOFLINE).encode())
    return path


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Iterator[Browser]:
    with fresh(chromium, page) as found:
        yield found


def test_the_page_needs_nothing_else_and_keeps_its_data(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|<script[^>]* src", text)
    assert text.count("</script>") == 3
    [content] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert not set("<>&") & set(content)
    data = json.loads(content)
    assert [row["median"] for row in data["rows"]] == [row.median_ms for row in ROWS]
    assert [layer["name"] for layer in data["layers"]] == ["image", NASTY, "b", "softmax"]
    assert (data["integerPeak"], data["floatPeak"], data["memoryPeak"]) == (200, 50, 10)


def test_bars_are_as_long_as_their_times(browser: Browser) -> None:
    lengths = browser.evaluate("[...document.querySelectorAll('#bars .length')].map(e => e.getBoundingClientRect().width)")
    assert [length / lengths[1] for length in lengths] == pytest.approx([2 / 3, 1, 1, 1 / 3, 1 / 2, 1], abs=0.01)
    assert browser.evaluate("[...document.querySelectorAll('#bars .cut')].length") == 2, "too slow to be drawn to scale"
    text = browser.evaluate("document.getElementById('bars').innerText")
    assert text.count("reads no .onnx file") == 2
    assert "1.50\u00d7" in text
    assert browser.evaluate("document.querySelector('.card b').textContent") == "2.00 ms"


def test_the_roofline_opens_what_is_under_the_pointer(browser: Browser) -> None:
    assert browser.evaluate(inked("document.getElementById('roofline')")) > 1000
    x, y = browser.evaluate(
        "(() => { const c = document.getElementById('roofline'); c.scrollIntoView(); const b = c.getBoundingClientRect();"
        " const r = roofs(c); const l = data.layers[2]; return [b.left + r.x(intensityOf(l)), b.top + r.y(rateOf(l))]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert browser.evaluate("document.getElementById('tip').textContent").startswith("b: 9 µs, 10 GMAC/s, 5.00% of the peak")
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == "b"
    assert "roof" in browser.evaluate(f"{PANEL}.innerText")
    browser.key("ArrowDown", 40)
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == "softmax"


def test_layers_sort_and_say_what_columns_are(browser: Browser) -> None:
    assert browser.evaluate(inked("document.getElementById('ranges')")) > 500
    browser.click("document.querySelector('#heads .c-time button')")
    assert browser.evaluate(SHOWN) == [NASTY, "b", "softmax", "image"]
    assert all(
        len(hint) > 20 for hint in browser.evaluate("[...document.querySelectorAll('#heads button')].map(e => e.dataset.hint)")
    )
    browser.click("document.querySelectorAll('#kinds button')[3]")
    assert browser.evaluate(SHOWN) == [NASTY, "b"]


PARTS: list[dict[str, Any]] = [{"report": REPORT, "note": "its layers cannot be timed"}, {"layers": ROOFLINE}]


@pytest.mark.parametrize("given", PARTS, ids=["peers", "layers"])
def test_a_page_of_one_part(given: dict[str, Any], chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "part.html"
    path.write_text(bench_page("m.onnx", **given), encoding="utf-8")
    with fresh(chromium, path) as browser:
        for name, shown in (("peers", "report" in given), ("roofs", "layers" in given), ("tools", "layers" in given)):
            assert browser.evaluate(f"document.getElementById('{name}').offsetHeight > 0") == shown
        assert ("cannot be timed" in browser.evaluate("document.getElementById('facts').textContent")) == ("note" in given)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, width: int, scheme: str) -> None:
    browser.scheme(scheme)
    browser.size(width, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.click("document.querySelectorAll('#rows tr')[1]")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate("document.getElementById('tools').inert") == (width < 1000)
