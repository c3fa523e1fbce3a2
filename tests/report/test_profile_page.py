"""The page of a profile: what is in it, and, in a headless Chromium, what it shows and how it answers to clicks and keys."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, fresh, inked

from octavo.cli.main import main
from octavo.ir.identity import TensorEntry, TensorId, TensorKind
from octavo.profiling import Profile, TensorStatistics
from octavo.profiling.buckets import BUCKETS
from octavo.profiling.statistics import constant_statistics
from octavo.report import profile_page
from small_file import digits, write_small_net

NASTY = '</script><img src=x onerror="document.body.dataset.hacked=1"><!--<script>&lt;\u2028\ud800'
NAMES = ["image", "stem/weight", "stem", NASTY, "dead", "broken", "empty", "scalar", "wide"]
CENTRES = "[...document.querySelectorAll('#rows tr')]"
SHOWN = "[...document.querySelectorAll('#rows .open-tensor')].map(e => e.textContent)"
PANEL = "document.getElementById('details')"


def statistics(
    name: str, values: np.ndarray, *, kind: TensorKind = "activation", op: str = "", axis: int | None = None
) -> TensorStatistics:
    entry = TensorEntry(
        id=TensorId(f"t_{NAMES.index(name)}"), source_name=name, kind=kind, op=op, layer=f"node of {name}",
        shape=values.shape, dtype="float32",
    )  # fmt: skip
    return constant_statistics(entry, values.astype(np.float32), axis)


@pytest.fixture(scope="module")
def profile() -> Profile:
    random = np.random.default_rng(3)
    spread = random.normal(0, 1, (8, 4, 3, 3)) * np.array([1, 1, 1, 1, 1, 1, 1, 40.0])[:, None, None, None]
    grows = np.random.default_rng(4).uniform(0.2, 1, BUCKETS).astype(np.float32)
    broken = random.normal(0, 1, (2, 3))
    broken[1, 1] = np.nan
    tensors = [
        statistics("image", random.uniform(-2, 2.5, (1, 3, 16, 16)), kind="input", axis=1),
        statistics("stem/weight", spread, kind="constant", axis=0),
        statistics("stem", random.standard_t(3, (1, 8, 14, 14)), op="Conv", axis=1),
        statistics(NASTY, np.maximum(random.normal(0, 1, (1, 8, 14, 14)), 0), op="<b>Relu</b>", axis=1),
        statistics("dead", np.zeros((1, 4)), op="Mul", axis=1),
        statistics("broken", broken, op="Div", axis=1),
        statistics("empty", np.zeros((0, 4)), op="Slice", axis=1),
        statistics("scalar", np.array(-3e-30), kind="constant"),
        statistics("wide", random.normal(0, 1e30, (3000, 2)), kind="constant", axis=0),
    ]
    # What the buckets say: the range of the one halves without one bucket of samples, that of the other does not change.
    image, stem = tensors[0], tensors[2]
    low, high = np.full(BUCKETS, image.minimum, np.float32), np.full(BUCKETS, image.maximum, np.float32)
    tensors[0] = replace(image, bucket_minimum=low, bucket_maximum=high)
    low, high = stem.minimum * grows / 3, stem.maximum * grows / 3
    low[4], high[4] = stem.minimum, stem.maximum
    tensors[2] = replace(stem, bucket_minimum=low, bucket_maximum=high)
    return Profile(
        fingerprint="sha256:" + "5" * 64,
        samples=12,
        preprocessing="resize <b>",
        tensors={tensor.id: tensor for tensor in tensors},
        bucket_samples=(12, *[0] * (BUCKETS - 1)),
        tools={"numpy": ("2.0",), "tvm": ("0.1", "0.2")},
        keep_samples=2,
        kept_samples=((np.zeros(3, np.float32),),),
    )


@pytest.fixture(scope="module")
def page(profile: Profile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_bytes(profile_page(profile, title=f"p {NASTY}.json").encode())
    return path


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Iterator[Browser]:
    with fresh(chromium, page) as found:
        yield found


def shown_names(browser: Browser) -> list[str]:
    # A lone surrogate does not survive the way from the browser.
    return [next(name for name in NAMES if name[:8] == shown[:8]) for shown in browser.evaluate(SHOWN)]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def content_of(page: Path) -> Any:
    [content] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text_of(page), re.DOTALL)
    assert not set("<>&") & set(content)
    assert content.isascii()
    return json.loads(content)


def gaps_of(tensor: Any) -> list[int]:
    """Gaps as they were: runs of ones behind the first gap stand as their length below 0."""
    return tensor["gaps"][:1] + [each for gap in tensor["gaps"][1:] for each in ([gap] if gap > 0 else [1] * -gap)]


def test_the_page_needs_nothing_else(page: Path) -> None:
    text = text_of(page)
    assert not re.search(r"https?://|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|<script[^>]* src", text)
    assert "default-src 'none'" in text


def test_the_data_cannot_leave_their_script(page: Path, profile: Profile) -> None:
    text = text_of(page)
    data = content_of(page)
    assert [tensor["name"] for tensor in data["tensors"]] == NAMES
    assert (data["samples"], data["kept"]) == (12, 1)
    assert data["title"] == f"p {NASTY}.json"
    assert text.count("</script>") == 3
    assert [tensor["name"] for tensor in data["tensors"] if tensor["unranked"]] == ["scalar"]
    bins = [np.cumsum(gaps_of(tensor)).tolist() for tensor in data["tensors"]]
    assert bins == [statistics.histogram.bins.tolist() for statistics in profile.values()]


def test_a_profile_of_no_tensor(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "none.html"
    path.write_text(profile_page(Profile(fingerprint="f", samples=1, tensors={}), title="none.json"))
    chromium.complaints.clear()
    chromium.open(path)
    chromium.wait("document.getElementById('shown').textContent === '0 tensors'")
    assert chromium.evaluate("document.getElementById('none').hidden") is False
    assert chromium.complaints == []


def test_every_tensor_in_the_order_of_the_graph(browser: Browser) -> None:
    assert shown_names(browser) == NAMES
    facts = browser.evaluate("document.getElementById('facts').textContent")
    said = ["preprocessing: resize <b>", "1 tensor with NaN or infinity", "1 range still growing"]
    said += ["2 tensors with channels that never fired", "made with numpy 2.0, tvm 0.1, 0.2"]
    assert facts.endswith("; ".join(said))
    assert browser.evaluate(inked("document.getElementById('ranges')")) > 1000
    browser.wait(f"{inked('document.querySelector(`#rows canvas`)')} > 200")


def test_columns_sort_both_ways_and_back(browser: Browser) -> None:
    browser.click("document.querySelector('#heads .c-spread button')")
    assert shown_names(browser)[0] == "stem/weight"
    assert browser.evaluate("document.querySelector('#heads .c-spread').getAttribute('aria-sort')") == "descending"
    browser.click("document.querySelector('#heads .c-name button')")
    assert shown_names(browser) == sorted(NAMES)
    browser.click("document.querySelector('#heads .c-name button')")
    assert shown_names(browser) == sorted(NAMES, reverse=True)
    browser.click("document.getElementById('graph-order')")
    assert shown_names(browser) == NAMES


def test_a_narrow_page_sorts_by_columns_it_has_no_room_for(browser: Browser) -> None:
    assert browser.evaluate("document.getElementById('sorting').offsetWidth") == 0
    browser.size(400, 800)
    assert browser.evaluate("document.querySelector('#heads .c-spread').offsetWidth") == 0
    browser.evaluate("document.getElementById('sort').focus()")
    for letter in "spr":
        browser.key(letter, ord(letter.upper()), letter)
    browser.wait(f"{SHOWN}[0] === 'stem/weight'")


@pytest.mark.parametrize("ascending", [True, False])
def test_tensors_without_a_figure_sort_last(browser: Browser, ascending: bool) -> None:
    for _ in range(1 if ascending else 2):
        browser.click("document.querySelector('#heads .c-max button')")
    assert shown_names(browser)[-1] == "empty"
    assert shown_names(browser)[0 if ascending else -2] == "scalar"


def test_search_takes_names_ops_and_shapes(browser: Browser) -> None:
    browser.key("/", 191)
    browser.type("conv 14")
    browser.wait(f"{SHOWN}.length === 1")
    assert shown_names(browser) == ["stem"]
    browser.type(" nothing")
    browser.wait("!document.getElementById('none').hidden")
    assert browser.evaluate("document.getElementById('shown').textContent") == "0 of 9 tensors"


def test_kinds_filter(browser: Browser) -> None:
    browser.click("document.querySelectorAll('#kinds button')[2]")
    assert shown_names(browser) == ["stem/weight", "scalar", "wide"]
    # What was out of the list when it was drawn for is drawn when it comes back.
    browser.click("document.querySelectorAll('#kinds button')[0]")
    browser.wait(f"{inked('document.querySelectorAll(`#rows canvas`)[3]')} > 100")


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_each_tensor_opens(browser: Browser, name: str) -> None:
    place = NAMES.index(name)
    browser.click(f"{CENTRES}[{place}]")
    assert browser.evaluate(f"{PANEL}.hidden") is False
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent.slice(0, 20)") == name[:20]
    if name != "empty":
        assert browser.evaluate(inked("document.getElementById('histogram')")) > 300
    if name not in ("empty", "scalar"):
        assert browser.evaluate(inked("document.getElementById('channels')")) > 50


def test_details_hold_the_figures(browser: Browser, profile: Profile) -> None:
    browser.click(f"{CENTRES}[1]")
    text = browser.evaluate(f"{PANEL}.innerText")
    assert "float32 [8, 4, 3, 3]" in text
    assert "Widest is channel 7" in text
    rows = browser.evaluate(f"[...{PANEL}.querySelectorAll('.previews tbody tr')].map(r => r.innerText.split('\\t'))")
    assert [row[0].strip() for row in rows] == [
        "min_max by channel",
        "min_max",
        "percentile:99.99",
        "percentile:99.9",
        "percentile:99",
        "mse",
        "entropy",
        "mean",
        "global_scale",
    ]
    weight = profile[TensorId("t_1")]
    assert float(rows[1][1]) == pytest.approx(max(-weight.minimum, weight.maximum) / 127, rel=1e-3)


def test_a_tensor_with_nan_says_where(browser: Browser) -> None:
    browser.click(f"{CENTRES}[5]")
    assert (
        browser.evaluate(f"{PANEL}.querySelector('.warning').textContent")
        == "Div output broken held 1 values that are NaN or infinite"
    )


def test_a_range_that_grows_is_said_to(browser: Browser) -> None:
    browser.click("document.querySelector('#heads .c-growth button')")
    assert shown_names(browser)[:2] == ["stem", "image"]
    assert browser.evaluate("[...document.querySelectorAll('.c-growth.high')].length") == 1
    browser.click(f"{CENTRES}[0]")
    assert "still grows" in browser.evaluate(f"{PANEL}.querySelector('.warning').textContent")
    assert browser.evaluate(inked("document.getElementById('convergence')")) > 300
    browser.click(f"{CENTRES}[1]")
    assert browser.evaluate(f"{PANEL}.querySelector('.warning')") is None
    text = browser.evaluate(f"{PANEL}.innerText")
    assert "half of the samples give 100.0% of the range" in text
    browser.click("document.getElementById('graph-order')")
    browser.click(f"{CENTRES}[3]")
    assert "Too few samples" in browser.evaluate(f"{PANEL}.innerText")
    assert browser.evaluate("document.getElementById('convergence')") is None


def test_choosing_a_range_redraws_the_histogram(browser: Browser) -> None:
    browser.click(f"{CENTRES}[2]")
    drawn = "document.getElementById('histogram').toDataURL()"
    before = browser.evaluate(drawn)
    browser.click(f"{PANEL}.querySelectorAll('.previews button')[3]")
    assert browser.evaluate(f"{PANEL}.querySelectorAll('.previews button')[3].getAttribute('aria-pressed')") == "true"
    assert browser.evaluate(drawn) != before


def test_the_counts_are_logarithmic_or_not(browser: Browser) -> None:
    browser.click(f"{CENTRES}[2]")
    drawn = inked("document.getElementById('histogram')")
    before = browser.evaluate(drawn)
    browser.click("document.getElementById('log')")
    assert browser.evaluate("document.getElementById('log').getAttribute('aria-pressed')") == "false"
    assert browser.evaluate(drawn) < before, "heavy tails are lower in plain counts"


def test_by_the_keyboard_alone(browser: Browser) -> None:
    browser.evaluate("document.querySelector('.open-tensor').focus()")
    browser.key("ArrowDown", 40)
    browser.key("ArrowDown", 40)
    browser.key("Enter", 13, "\r")
    browser.wait(f"!{PANEL}.hidden")
    assert browser.evaluate("document.activeElement.textContent") == "stem"
    browser.key("Escape", 27)
    browser.wait(f"{PANEL}.hidden")
    assert browser.evaluate("document.activeElement.className") == "open-tensor"


def test_arrows_walk_from_wherever_the_keyboard_is(browser: Browser) -> None:
    focused = "document.activeElement.textContent"
    browser.key("ArrowDown", 40)
    assert browser.evaluate(focused) == "image", "the first row in sight"
    browser.key("End", 35)
    assert browser.evaluate(focused) == "wide"
    browser.click(f"{CENTRES}[1]")
    for key, code, name in (("ArrowDown", 40, "stem"), ("ArrowUp", 38, "stem/weight"), ("ArrowUp", 38, "image")):
        browser.key(key, code)
        assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == name
    browser.key("/", 191)
    browser.type("stem")
    browser.wait(f"{SHOWN}.length === 2")
    browser.key("Escape", 27)
    assert browser.evaluate(f"{PANEL}.hidden") is False, "Escape in a search that is not empty clears it"


def test_the_overview_is_walked_with_arrows(browser: Browser) -> None:
    browser.evaluate("document.getElementById('ranges').focus()")
    browser.key("Tab", 9)
    browser.evaluate("document.getElementById('ranges').focus()")
    for _ in range(2):
        browser.key("ArrowRight", 39)
    said = browser.evaluate("document.getElementById('pointed').textContent")
    assert said.startswith("stem: ")
    assert browser.evaluate("document.getElementById('ranges').getAttribute('aria-valuetext')") == said
    browser.key("Enter", 13, "\r")
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == "stem"


def test_every_column_says_what_it_is(browser: Browser) -> None:
    heads = browser.evaluate("[...document.querySelectorAll('#heads button')].map(e => e.dataset.hint)")
    assert len(heads) == 12
    assert all(len(hint) > 20 for hint in heads)
    for index in (5, 11):
        x, y = browser.evaluate(
            f"(() => {{ const b = document.querySelectorAll('#heads button')[{index}].getBoundingClientRect();"
            " return [b.left + 5, b.top + 5]; })()"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert browser.evaluate("document.getElementById('tip').textContent") == heads[index]
        box = "document.getElementById('tip').getBoundingClientRect()"
        assert browser.evaluate(f"{box}.width > 50 && {box}.right <= innerWidth && {box}.bottom <= innerHeight")
    browser.key("Escape", 27)
    assert browser.evaluate("document.getElementById('tip').hidden")


def test_what_gets_no_scale_is_not_ranked(browser: Browser) -> None:
    browser.click("document.querySelector('#heads .c-sqnr button')")
    shown = shown_names(browser)
    # Among those without a figure, behind all others; by a figure that is no rank it has its place.
    assert set(shown[-2:]) == {"empty", "scalar"}
    browser.click("document.querySelector('#heads .c-min button')")
    assert shown_names(browser)[-2:] != shown[-2:]


def test_a_model_tells_what_is_quantized(tmp_path: Path) -> None:
    path, data, profiled, page = (tmp_path / name for name in ("m.onnx", "x.npz", "p.json", "report.html"))
    write_small_net(path)
    np.savez(data, x=digits(0, 4))
    assert main(["profile", str(path), "--data", str(data), "-o", str(profiled)]) == 0
    by_ranges = {"stem/conv", "block/add"}
    for more, title, fused in (
        ([], "p.json", by_ranges),
        (["--model", str(path)], "m.onnx", by_ranges | {"block/conv", "logits"}),
    ):
        assert main(["report", str(profiled), *more, "-o", str(page)]) == 0
        content = content_of(page)
        unranked = {each["name"] for each in content["tensors"] if each["unranked"]}
        assert content["title"] == title
        assert unranked == fused | {"stem/conv.bias", "block/conv.bias", "head/dense.bias"}


def test_next_and_previous_walk_the_list(browser: Browser) -> None:
    browser.click(f"{CENTRES}[0]")
    for button, name in (("Next", "stem/weight"), ("Next", "stem"), ("Previous", "stem/weight")):
        browser.click(f"[...{PANEL}.querySelectorAll('.step')].find(b => b.textContent === '{button}')")
        assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == name


def test_a_click_on_the_overview_opens_a_tensor(browser: Browser) -> None:
    browser.click("document.getElementById('ranges')")
    assert browser.evaluate(f"{PANEL}.hidden") is False


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, width: int, scheme: str) -> None:
    browser.scheme(scheme)
    browser.size(width, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.click(f"{CENTRES}[3]")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    assert browser.evaluate(f"{PANEL}.scrollWidth <= {PANEL}.clientWidth")
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 3 * 128) == (scheme == "light")


def test_the_panel_of_each_tensor_fits(browser: Browser) -> None:
    browser.size(1280, 800)
    for place in range(browser.evaluate(f"{CENTRES}.length")):
        browser.click(f"{CENTRES}[{place}]")
        assert browser.evaluate(f"{PANEL}.scrollWidth <= {PANEL}.clientWidth"), place
