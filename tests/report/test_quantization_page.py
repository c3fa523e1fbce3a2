"""The page of a quantized model: its numbers, and, in a headless Chromium, what it shows and how it answers to clicks."""

import base64
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Browser, fresh, inked
from PIL import Image
from tvm import relax

import octavo
from nets import model_of
from octavo.cli.main import main
from octavo.errors import ProfileError, QuantizationError
from octavo.ir.graph import Model
from octavo.ir.graph.dataflow import BodyWriter
from octavo.ir.identity import TensorId
from octavo.numerics import dequantize
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.plan.entries import Adjustment
from octavo.quantizer.programs import Programs
from octavo.report import QuantizationFigures, quantization_figures, quantization_page
from octavo.report.quantized_layers import float_ops_of
from octavo.report.thumbnail import thumbnail
from small_file import digits, write_small_net
from vendors import Vendor

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)
NASTY = '</script><img src=x onerror="document.body.dataset.hacked=1"><!--<script>&lt;\u2028'
SHOWN = "[...document.querySelectorAll('#rows .open-tensor')].map(e => e.textContent)"
PANEL = "document.getElementById('details')"
ROWS = "[...document.querySelectorAll('#rows tr')]"


def named(model: Model, name: str, source_name: str) -> Model:
    """Return a model one of whose tensors has another name in its source."""
    tensors = {key: replace(each, source_name=source_name) if key == name else each for key, each in model.tensors.items()}
    return replace(model, tensors=type(model.tensors)(tensors.values()))


@pytest.fixture(scope="module")
def net() -> tuple[octavo.Model, octavo.Profile, list[np.ndarray]]:
    """Return conv, relu, conv, relu, mean, dense; its profile; its samples. A tensor has a nasty name."""
    rng = np.random.default_rng(5)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 1, 1), "b2": (8,), "w3": (8, 5)}
    params = {name: (rng.normal(size=shape) / 3).astype(np.float32) for name, shape in shapes.items()}

    def body(writer: BodyWriter, **v: Any) -> Any:
        value = v["x"]
        for number, padding in ((1, 1), (2, 0)):
            value = writer.emit(f"c{number}", relax.op.nn.conv2d(value, v[f"w{number}"], padding=padding))
            shaped = writer.emit(f"_b{number}", relax.op.reshape(v[f"b{number}"], (1, -1, 1, 1)))
            value = writer.emit(f"r{number}", relax.op.nn.relu(writer.emit(f"s{number}", relax.op.add(value, shaped))))
        pooled = writer.emit("pooled", relax.op.mean(value, axis=[2, 3]))
        return writer.emit("y", relax.op.matmul(pooled, v["w3"]), is_output=True)

    model = named(model_of({"x": ((1, 3, 9, 9), "float32")}, params, body, ("y",)), "r1", NASTY)
    samples = [rng.normal(size=(1, 3, 9, 9)).astype(np.float32) for _ in range(12)]
    profile = octavo.profile(model, samples, keep_samples=12)
    return model, profile, [arrays[0] for arrays in profile.kept_samples]


@pytest.fixture(scope="module")
def figures(net: Any, tmp_path_factory: pytest.TempPathFactory) -> QuantizationFigures:
    """The figures of a model with a planted fault, and a search of it."""
    model, profile, _ = net
    quantized = octavo.quantize(model, profile, recipe=octavo.Recipe(min_sqnr=None))
    params = quantized.plan.activations[TensorId("r1")]
    plan = quantized.plan.with_params({TensorId("r1"): replace(params, scale=np.float32(params.scale * 4))})
    said = Adjustment(tensor=TensorId("r1"), message=f"because {NASTY}")
    folder = tmp_path_factory.mktemp("search")
    octavo.search(model, profile, recipe=PLAIN, candidates=3, folder=folder)
    faulty = octavo.quantize(model, plan=replace(plan, adjustments=(said,)))
    assert faulty.plan.journal == quantized.plan.journal
    return quantization_figures(model, faulty, profile, search=folder)


@pytest.fixture(scope="module")
def page(figures: QuantizationFigures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "quantization.html"
    path.write_bytes(quantization_page(figures, title=f"m {NASTY}.onnx").encode())
    return path


@pytest.fixture(scope="module")
def content(page: Path) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert not set("<>&") & set(text)
    assert text.isascii()
    return json.loads(text)


def test_the_page_needs_nothing_else(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")|<script[^>]* src", text)
    assert "default-src 'none'" in text
    assert text.count("</script>") == 3
    assert text.count(NASTY) == 0


def test_layers_are_those_of_layer_errors(figures: QuantizationFigures, content: dict[str, Any], net: Any) -> None:
    expected = {row.id: row for row in octavo.layer_errors(figures.model, figures.quantized, net[2][::3])}
    shown = {TensorId(each["id"]): each for each in content["tensors"]}
    assert {name for name, each in shown.items() if each["sqnr"] is not None} == set(expected)
    for name, row in expected.items():
        for key, value in (("sqnr", row.sqnr_db), ("local", row.local_sqnr_db), ("inherited", row.inherited)):
            assert shown[name][key] == ("exact" if value == np.inf else pytest.approx(value, rel=1e-5))
        assert shown[name]["channels"] == pytest.approx(row.channel_errors, rel=1e-5)
    assert [each["name"] for each in content["tensors"] if each["id"] == "r1"] == [NASTY]
    order = list(figures.model.tensors)
    places = [order.index(each["id"]) for each in content["tensors"] if each["id"] in order]
    assert places == sorted(places)


def test_channel_errors_add_up(figures: QuantizationFigures) -> None:
    checked = [row for row in figures.layers if len(row.channel_errors) > 1 and np.isfinite(row.sqnr_db)]
    assert checked
    for row in checked:
        assert -10 * np.log10(np.mean(np.square(row.channel_errors))) == pytest.approx(row.sqnr_db)


def test_causes_are_those_of_root_causes(figures: QuantizationFigures, content: dict[str, Any], net: Any) -> None:
    expected = [row for row in octavo.root_causes(figures.model, figures.quantized, net[2]) if row.cause]
    assert [(each["id"], each["part"], each["cause"], each["remedy"]) for each in content["causes"]] == [
        (row.id, row.part, row.cause, row.remedy) for row in expected
    ]
    for each, row in zip(content["causes"], expected, strict=True):
        assert (each["share"], each["gain"]) == (pytest.approx(row.share, rel=1e-5), pytest.approx(row.gain_db, rel=1e-5))
    assert content["causes"][0]["cause"] == "coarse scale"
    assert content["adjustments"] == [{"id": "r1", "name": NASTY, "said": f"because {NASTY}"}]


def test_outputs_are_those_of_the_executables(figures: QuantizationFigures, content: dict[str, Any], net: Any) -> None:
    model, _, samples = net
    real, made = (
        np.concatenate([next(iter(executable(x).values())) for x in samples])
        for executable in map(octavo.compile, (model, figures.quantized))
    )
    first, last = content["variants"]
    assert (first["name"], first["outputs"], first["time"]) == ("float", [], 1)
    [output] = last["outputs"]
    assert output["sqnr"] == pytest.approx(sqnr_db(real, made), rel=1e-5)
    assert output["agreement"] == pytest.approx(np.mean(real.argmax(axis=1) == made.argmax(axis=1)))
    assert first["bytes"] == sum(value.nbytes for value in model.params.values())
    weights = sum(
        values.nbytes for name, values in figures.quantized.plan.weight_values.items() if name in figures.quantized.plan.weights
    )
    assert weights < last["bytes"] < weights * 1.5, "with biases, and nothing that only kernels need"
    assert last["packed"] == octavo.compile(figures.quantized).weight_bytes
    assert 0 < last["time"] < 1
    ratios = {number: sqnr_db(a, b) for number, (a, b) in enumerate(zip(real, made, strict=True))}
    assert len(content["worst"]) == len(samples)
    for sample in content["worst"]:
        assert sample["sqnr"] == pytest.approx(ratios[sample["number"]], rel=1e-5)
        assert (sample["floatClass"], sample["quantizedClass"]) == (
            real[sample["number"]].argmax(),
            made[sample["number"]].argmax(),
        )
    wrong = [sample["floatClass"] != sample["quantizedClass"] for sample in content["worst"]]
    assert wrong == sorted(wrong, reverse=True)


def test_the_journal_is_the_plans(figures: QuantizationFigures, content: dict[str, Any]) -> None:
    journal, shown = figures.quantized.plan.journal, content["journal"]
    assert (shown["heldBack"], shown["plain"]) == (journal.held_back, pytest.approx(journal.plain_db, rel=1e-5))
    entries = [each for each in journal.entries if each.proposal]
    assert [(each["step"], each["proposal"], each["kept"]) for each in shown["entries"]] == [
        (each.step, each.proposal, each.kept) for each in entries
    ]
    assert [each["gain"] for each in shown["entries"]] == [pytest.approx(each.gain_db, rel=1e-4) for each in entries]
    assert entries


def test_the_front_is_that_of_the_search(figures: QuantizationFigures, content: dict[str, Any]) -> None:
    assert figures.search is not None
    shown = content["search"]["candidates"]
    assert [each["name"] for each in shown] == [each.name for each in figures.search.candidates]
    assert {each["name"] for each in shown if each["isFront"]} == {each.name for each in figures.search.front}
    metrics = {each["metric"] for each in shown if each["isFront"]}
    assert content["search"]["isByMetric"] == (len(metrics) > 1)
    assert all(
        each["cost"] == pytest.approx(other.cost, rel=1e-5) for each, other in zip(shown, figures.search.candidates, strict=True)
    )


def test_weights_are_scored_with_the_scales_that_they_have(figures: QuantizationFigures, content: dict[str, Any]) -> None:
    shown = {each["id"]: each["weights"] for each in content["tensors"] if each["weights"]}
    plan = figures.quantized.plan
    floats = Programs.of_model(figures.model).equalized(plan)[0].params
    assert set(shown) == {layer.output for layer in plan.layers if layer.weight is not None}
    for layer in plan.layers:
        if layer.weight is None:
            continue
        params = plan.weights[layer.weight]
        made = dequantize(plan.weight_values[layer.weight], params)
        expected = sqnr_db(floats[layer.weight], made)
        assert expected > 40
        assert shown[layer.output]["sqnr"] == pytest.approx(expected, rel=1e-5)
        assert (shown[layer.output]["bits"], shown[layer.output]["scales"]) == (8, params.scale.size)


def test_each_layer_has_its_range_and_its_time(content: dict[str, Any], figures: QuantizationFigures) -> None:
    by_id = {each["id"]: each for each in content["tensors"]}
    params = figures.quantized.plan.activations[TensorId("r1")]
    low = (0 - int(params.zero_point)) * float(params.scale)
    assert by_id["r1"]["params"]["low"] == pytest.approx(low, abs=1e-6)
    assert by_id["r1"]["params"]["high"] == pytest.approx(low + 255 * float(params.scale), rel=1e-5)
    assert sum(by_id["r1"]["histogram"]["counts"]) == pytest.approx(figures.profile[TensorId("r1")].count, abs=60)
    assert sum(each["time"] or 0 for each in by_id.values()) == pytest.approx(1, abs=0.1)


def test_what_stays_float_has_its_cost(net: Any) -> None:
    model, profile, _ = net
    quantized = octavo.quantize(model, profile, recipe=replace(PLAIN, exclude=("c2",)))
    found = float_ops_of(octavo.explain(quantized))
    assert found[0].op == "nn.conv2d"
    assert all(each.reason and 0 < each.saving < each.share < 1 for each in found)
    assert sum(each.share for each in found) == pytest.approx(octavo.explain(quantized).float_share)
    assert found[0].macs == 8 * 8 * 81


def test_pictures_are_those_of_the_samples(content: dict[str, Any], net: Any) -> None:
    _, _, samples = net
    for sample in content["worst"][:3]:
        kind, _, text = sample["picture"].partition(",")
        assert kind == "data:image/png;base64"
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        values = samples[sample["number"]][0].transpose(1, 2, 0)
        expected = np.rint((values - values.min()) / (values.max() - values.min()) * 255)
        assert np.abs(pixels.astype(int) - expected).max() <= 1
    assert thumbnail(np.zeros((1, 500), np.float32)) == thumbnail(np.full((1, 3, 9, 9), np.nan)) == ""
    assert thumbnail(np.zeros((1, 96, 96, 1), np.uint8)).startswith("data:image/png")


def test_what_cannot_be_shown_is_one_error(net: Any, tmp_path: Path) -> None:
    model, profile, _ = net
    quantized = octavo.quantize(model, profile, recipe=PLAIN)
    with pytest.raises(ProfileError, match="keeps no samples to compare on"):
        quantization_figures(model, quantized, replace(profile, kept_samples=()))
    with pytest.raises(QuantizationError, match="it holds no search"):
        quantization_figures(model, quantized, profile, search=tmp_path)


def test_other_samples_can_be_given(net: Any) -> None:
    model, profile, samples = net
    quantized = octavo.quantize(model, profile, recipe=PLAIN)
    found = quantization_figures(model, quantized, replace(profile, kept_samples=()), data=np.concatenate(samples[:4]))
    assert found.samples == len(found.worst) == 4


def test_a_back_ends_own_code_runs(net: Any) -> None:
    model, profile, samples = net
    target = Vendor("own", "nn.conv2d")
    quantized = octavo.quantize(model, profile, recipe=PLAIN, target=target)
    found = quantization_figures(model, quantized, profile, target=target)
    executable = octavo.compile(quantized, target=target)
    assert {op.taker for op in octavo.explain(executable).ops} >= {"own", "cpu"}
    made = np.concatenate([next(iter(executable(x).values())) for x in samples])
    real = np.concatenate([arrays[0] for arrays in profile.kept_results])
    assert found.variants[1].sqnr_db == pytest.approx(sqnr_db(real, made), rel=1e-5)
    assert found.variants[1].packed_bytes == executable.weight_bytes


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_small_net(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=digits(0, 20))
    model, profile, output = str(tmp_path / "m.onnx"), str(tmp_path / "p.json"), tmp_path / "page.html"
    assert main(["profile", model, "--data", str(tmp_path / "x.npz"), "-o", profile]) == 0
    assert main(["report", model, "--profile", profile, "--no-corrections", "-o", str(output)]) == 0
    assert "roundings" in capsys.readouterr().out
    assert "<title>Octavo quantization</title>" in output.read_text()
    assert main(["report", profile, "-o", str(output)]) == 0
    assert "<title>Octavo profile</title>" in output.read_text()
    for code, given in ((1, [model]), (2, [profile, "--no-corrections"]), (2, [profile, "--search", str(tmp_path)])):
        assert main(["report", *given, "-o", str(output)]) == code
        assert "give --profile FILE too" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------- in a browser


@pytest.fixture
def browser(chromium: Browser, page: Path) -> Iterator[Browser]:
    with fresh(chromium, page) as found:
        yield found


def test_all_parts_are_shown(browser: Browser, content: dict[str, Any]) -> None:
    assert browser.evaluate(SHOWN) == [each["name"] for each in content["tensors"]]
    for table, count in (
        ("causes", len(content["causes"])),
        ("float-ops", len(content["floatOps"])),
        ("adjustments", 1),
        ("journal", len(content["journal"]["entries"])),
    ):
        assert browser.evaluate(f"document.querySelectorAll('#{table} tbody tr').length") == count
    assert browser.evaluate("[...document.querySelectorAll('#worst img')].filter(e => e.naturalWidth === 9).length") == 12
    assert browser.evaluate("document.querySelectorAll('#variants tbody tr').length") == len(content["variants"])
    assert f"because {NASTY}" in browser.evaluate("document.getElementById('adjustments').textContent")
    assert browser.evaluate("document.querySelector('#facts b').textContent") == "1 parameter does not fit"
    assert browser.evaluate(inked("document.getElementById('ranges')")) > 500
    assert browser.evaluate(inked("document.getElementById('front')")) > 100
    worst = content["variants"][-1]["sqnr"]
    assert browser.evaluate("document.querySelector('.card b').textContent") == f"{worst:.1f} dB"


def test_columns_sort_and_what_has_no_figure_comes_last(browser: Browser, content: dict[str, Any]) -> None:
    browser.click("document.querySelector('#heads .c-sqnr button')")
    shown = browser.evaluate(SHOWN)
    # What is fused has no scale to choose: it is not ranked.
    by_name = {each["name"]: None if each["block"] else each["sqnr"] for each in content["tensors"]}
    found = [by_name[name] for name in shown if isinstance(by_name[name], float)]
    assert found == sorted(found)
    missing = sum(value is None for value in by_name.values())
    assert all(by_name[name] is None for name in shown[len(shown) - missing :])


def test_a_cause_opens_its_tensor(browser: Browser, content: dict[str, Any]) -> None:
    browser.click("document.querySelector('#causes .open-tensor')")
    assert browser.evaluate(f"{PANEL}.hidden") is False
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == NASTY
    assert content["causes"][0]["remedy"] in browser.evaluate(f"{PANEL}.textContent")
    assert browser.evaluate(f"{PANEL}.querySelector('.warning').textContent") == content["causes"][0]["remedy"]
    assert browser.evaluate(inked("document.getElementById('channels')")) > 300
    browser.key("Escape", 27)
    browser.wait(f"{PANEL}.hidden")


def test_each_tensor_opens(browser: Browser, content: dict[str, Any]) -> None:
    for place, tensor in enumerate(content["tensors"]):
        browser.click(f"{ROWS}[{place}]")
        assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == tensor["name"]
        assert (browser.evaluate(f"{PANEL}.querySelector('#channels')") is not None) == (len(tensor["channels"]) > 1)


def test_search_and_kinds(browser: Browser, content: dict[str, Any]) -> None:
    browser.click("document.querySelectorAll('#kinds button')[4]")
    caused = {each["id"] for each in content["causes"]}
    assert browser.evaluate("document.querySelectorAll('#rows tr').length") == len(caused)
    browser.key("/", 191)
    browser.type("coarse")
    browser.wait("document.querySelectorAll('#rows tr').length === 1")
    browser.type(" nothing")
    browser.wait("!document.getElementById('none').hidden")


def test_fused_tensors_are_a_kind(browser: Browser, content: dict[str, Any]) -> None:
    fused = {each["name"] for each in content["tensors"] if each["block"] is not None}
    assert fused
    browser.click("document.querySelectorAll('#kinds button')[3]")
    assert set(browser.evaluate(SHOWN)) == fused


def test_every_head_of_the_list_says_what_it_is(browser: Browser) -> None:
    heads = browser.evaluate("[...document.querySelectorAll('#heads button')].map(e => e.dataset.hint)")
    assert len(heads) == 12
    assert all(len(hint) > 20 for hint in heads)


def test_arrows_walk_the_open_panel(browser: Browser, content: dict[str, Any]) -> None:
    browser.click(f"{ROWS}[0]")
    browser.key("ArrowDown", 40)
    assert browser.evaluate(f"{PANEL}.querySelector('h2').textContent") == content["tensors"][1]["name"]


def test_the_histogram_says_its_values_under_the_pointer(browser: Browser, content: dict[str, Any]) -> None:
    place = next(index for index, each in enumerate(content["tensors"]) if each["histogram"] and each["params"])
    browser.click(f"{ROWS}[{place}]")
    x, y = browser.evaluate(
        "(() => { const e = document.getElementById('histogram'); e.scrollIntoView(); const b = e.getBoundingClientRect();"
        " return [b.left + b.width / 2, b.top + b.height / 2]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert re.fullmatch(r"about \S+: [\d,]+ values", browser.evaluate(f"{PANEL}.querySelector('.hint').textContent"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, width: int, scheme: str) -> None:
    browser.scheme(scheme)
    browser.size(width, 800)
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    browser.click(f"{ROWS}[1]")
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 3 * 128) == (scheme == "light")
