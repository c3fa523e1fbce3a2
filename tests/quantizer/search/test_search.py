"""The search: the same front each time, after a kill too; Ctrl-C returns what there is; candidates are files that compile."""

import json
import signal
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

import octavo
from nets import model_of
from octavo.cli.main import main
from octavo.errors import ProfileError, QuantizationError
from octavo.ir.graph.dataflow import BodyWriter
from octavo.quantizer.search import Candidate, SearchResult
from small_file import digits, write_small_net

RNG = np.random.default_rng(0)
PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none")
"""Corrections and equalization would be most of the time of these tests."""
SAMPLES = [RNG.normal(size=(1, 3, 8, 8)).astype(np.float32) * (6 if number % 5 == 0 else 1) for number in range(24)]


def plain(result: SearchResult) -> str:
    return json.dumps({**result.to_json(), "candidates": [{**each, "plan": ""} for each in result.to_json()["candidates"]]})


def test_the_front_trades_cost_for_accuracy(found: SearchResult) -> None:
    assert found.finished
    front = found.front
    assert len(front) >= 2
    assert [each.cost for each in front] == sorted({each.cost for each in front})
    assert all(found.rank(a) < found.rank(b) for a, b in pairwise(front))
    for each in found.candidates:  # whatever is not on the front, something on it is as good for as little
        assert any(other.cost <= each.cost and found.rank(other) >= found.rank(each) for other in front)
    assert front[-1].sqnr_db is not None
    assert found.candidates[0].sqnr_db is not None
    assert front[-1].sqnr_db > found.candidates[0].sqnr_db + 2
    assert found.best is front[-1]


def test_every_candidate_is_a_file_that_compiles(model: octavo.Model, profile: octavo.Profile, tmp_path: Path) -> None:
    seen: list[Candidate] = []
    measured: list[dict[str, np.ndarray]] = []

    def outputs(executable: octavo.Executable) -> float:
        measured.append(executable(SAMPLES[0]))
        return 1.0

    options: dict[str, Any] = {"folder": tmp_path / "s", "progress": seen.append, "candidates": 4}
    result = octavo.search(model, profile, recipe=PLAIN, evaluate=outputs, **options)
    assert [each.name for each in seen] == [each.name for each in result.candidates] == [f"c00{number}" for number in range(4)]
    for each, here in zip(result.candidates, measured[1:], strict=True):  # the float model comes first
        assert each.path is not None
        from_file = octavo.compile(octavo.quantize(model, plan=each.path))(SAMPLES[0])
        assert all(np.array_equal(from_file[name], here[name]) for name in here)


def test_the_best_is_the_cheapest_that_is_enough(model: octavo.Model, profile: octavo.Profile, closeness: Any) -> None:
    all_of_them = octavo.search(model, profile, recipe=PLAIN, evaluate=closeness, seconds=None)
    drops = {each.name: all_of_them.drop(each) or 0.0 for each in all_of_them.candidates}
    of_integers = min(drops[each.name] for each in all_of_them.candidates if not each.float_tensors)
    limit = (min(drops.values()) + of_integers) / 2
    result = octavo.search(model, profile, recipe=PLAIN, evaluate=closeness, max_drop=limit, seconds=None)
    assert result.float_metric == 0
    assert result.is_enough(result.best)
    assert result.best.float_tensors
    assert all(each.cost >= result.best.cost for each in result.candidates if result.is_enough(each))
    assert not result.is_enough(result.candidates[0])


def test_a_limit_that_plain_quantization_keeps_ends_the_search_at_once(
    model: octavo.Model, profile: octavo.Profile, closeness: Any
) -> None:
    result = octavo.search(model, profile, recipe=PLAIN, evaluate=closeness, max_drop=1.0)
    assert result.finished
    assert len(result.candidates) <= 3
    assert not result.best.float_tensors


def test_a_search_goes_on_after_it_was_killed(
    model: octavo.Model, profile: octavo.Profile, found: SearchResult, tmp_path: Path
) -> None:
    class Killed(Exception):
        pass

    def kill(candidate: Candidate) -> None:
        if candidate.name == "c003":
            raise Killed

    with pytest.raises(Killed):
        octavo.search(model, profile, recipe=PLAIN, seconds=None, folder=tmp_path, progress=kill)
    measured = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("c*.json")}
    assert sorted(measured) == [f"c00{number}.plan.json" for number in range(4)]
    result = octavo.search(model, profile, recipe=PLAIN, seconds=None, folder=tmp_path)
    assert plain(result) == plain(found)
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in measured.items())
    again = octavo.search(model, profile, recipe=PLAIN, seconds=None, folder=tmp_path)
    assert plain(again) == plain(found)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["search.json", *(f"{each.name}.plan.json" for each in found.candidates)]
    )


@pytest.mark.parametrize("number", [0, 2])
def test_an_interruption_returns_what_there_is(number: int, model: octavo.Model, profile: octavo.Profile, closeness: Any) -> None:
    calls: list[int] = []

    def interrupted(executable: octavo.Executable) -> float:
        calls.append(1)
        if len(calls) == number + 2:  # the first call is about the float model
            signal.raise_signal(signal.SIGINT)
        return closeness(executable)

    before = signal.getsignal(signal.SIGINT)
    result = octavo.search(model, profile, recipe=PLAIN, evaluate=interrupted, seconds=None)
    assert signal.getsignal(signal.SIGINT) is before
    assert not result.finished
    assert len([each for each in result.candidates if each.metric is not None]) == number
    assert octavo.compile(octavo.quantize(model, plan=result.best.plan))(SAMPLES[0])


def test_an_interruption_before_anything_is_made_waits_for_the_first(model: octavo.Model, profile: octavo.Profile) -> None:
    class Data:
        def __iter__(self):
            signal.raise_signal(signal.SIGINT)
            return iter(SAMPLES)

    result = octavo.search(model, profile, Data(), recipe=PLAIN, seconds=None)
    assert not result.finished
    assert [each.metric for each in result.candidates] == [None]
    assert octavo.quantize(model, plan=result.best.plan).plan.activations == result.best.plan.activations


def test_an_interruption_while_the_result_is_made_loses_nothing(
    model: octavo.Model, profile: octavo.Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = sys.modules["octavo.quantizer.search.search"]._Search
    made = running.result

    def interrupted(run: Any) -> SearchResult:
        if not run.interruption.ready:  # the last time
            signal.raise_signal(signal.SIGINT)
        return made(run)

    monkeypatch.setattr(running, "result", interrupted)
    result = octavo.search(model, profile, recipe=PLAIN, candidates=1)
    assert result.finished
    assert result.best.metric is not None


def test_a_search_runs_in_a_thread_that_gets_no_signals(model: octavo.Model, profile: octavo.Profile) -> None:
    results: list[SearchResult] = []
    thread = threading.Thread(target=lambda: results.append(octavo.search(model, profile, recipe=PLAIN, candidates=2)))
    thread.start()
    thread.join()
    assert len(results[0].candidates) == 2


def test_time_that_runs_out_is_said(model: octavo.Model, profile: octavo.Profile) -> None:
    result = octavo.search(model, profile, recipe=PLAIN, seconds=0)
    assert not result.finished
    assert len(result.candidates) == 1


@pytest.mark.parametrize("value", [float("nan"), "good", None, [1, 2], float("inf")])
def test_what_evaluate_must_return_is_said(value: object, model: octavo.Model, profile: octavo.Profile) -> None:
    with pytest.raises(QuantizationError, match="evaluate must return"):
        octavo.search(model, profile, recipe=PLAIN, evaluate=lambda _: value)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"max_drop": -1}, {"max_drop": float("nan")}, {"seconds": "10"}, {"candidates": 0}])
def test_limits_are_checked(options: dict[str, object], model: octavo.Model, profile: octavo.Profile) -> None:
    with pytest.raises(QuantizationError, match=f"{next(iter(options))} must be"):
        octavo.search(model, profile, recipe=PLAIN, **options)  # type: ignore[arg-type]


def test_a_profile_without_samples_is_refused(model: octavo.Model) -> None:
    with pytest.raises(ProfileError, match="keep_samples"):
        octavo.search(model, octavo.profile(model, SAMPLES[:2], keep_samples=0))


def test_a_folder_of_another_search_is_refused(model: octavo.Model, profile: octavo.Profile, tmp_path: Path) -> None:
    octavo.search(model, profile, recipe=PLAIN, candidates=1, folder=tmp_path)
    kept = (tmp_path / "search.json").read_text()
    with pytest.raises(QuantizationError, match="another recipe"):
        octavo.search(model, profile, folder=tmp_path)
    with pytest.raises(QuantizationError, match="another metric"):
        octavo.search(model, profile, recipe=PLAIN, folder=tmp_path, evaluate=lambda _: 1.0)
    assert (tmp_path / "search.json").read_text() == kept
    for text in (kept[: len(kept) // 2], "[]", kept.replace('"plan": "c000.plan.json"', '"plan": "../c000.plan.json"')):
        (tmp_path / "search.json").write_text(text)
        with pytest.raises(QuantizationError, match=r"search\.json: no list of a search"):
            octavo.search(model, profile, recipe=PLAIN, folder=tmp_path)


def test_a_model_that_gives_no_scores_is_scored_by_its_error() -> None:
    rng = np.random.default_rng(1)
    params = {"w": rng.normal(size=(8, 4, 3, 3)).astype(np.float32), "v": rng.normal(size=(2, 8, 1, 1)).astype(np.float32)}

    def body(writer: BodyWriter, **v: Any) -> Any:
        hidden = writer.emit("h", relax.op.nn.relu(writer.emit("c", relax.op.nn.conv2d(v["x"], v["w"], padding=1))))
        return writer.emit("y", relax.op.nn.conv2d(hidden, v["v"]), is_output=True)

    model = model_of({"x": ((1, 4, 6, 6), "float32")}, params, body, ("y",))
    batches = [rng.normal(size=(1, 4, 6, 6)).astype(np.float32) for _ in range(8)]
    result = octavo.search(model, octavo.profile(model, batches, keep_samples=8), candidates=3)
    assert all(
        each.sqnr_db is not None and each.metric == pytest.approx(1 - 10 ** (-each.sqnr_db / 10)) for each in result.candidates
    )


def test_the_command_searches_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(tmp_path / "m.onnx")
    write_small_net(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=digits(0, 20))
    profile, metric, folder = tmp_path / "profile.json", tmp_path / "metric.py", tmp_path / "search"
    assert main(["profile", model, "--data", str(tmp_path / "x.npz"), "-o", str(profile)]) == 0
    metric.write_text("def size(executable):\n    return -executable.description.weight_bytes\n")
    line = ["search", model, "--profile", str(profile), "-o", str(folder)]
    capsys.readouterr()
    assert main([*line, "--no-corrections", "--candidates", "1", "--data", str(tmp_path / "x.npz")]) == 0
    shown = capsys.readouterr().out
    assert f"best: {folder}/c00" in shown
    assert main([*line, "--no-corrections", "--candidates", "2", "--data", str(tmp_path / "x.npz"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in result["candidates"]] == ["c000", "c001"]
    best = folder / f"{result['best']}.plan.json"
    assert main(["quantize", model, "--plan", str(best), "-o", str(tmp_path / "q.onnx")]) == 0
    capsys.readouterr()
    measured = [*line[:-1], str(tmp_path / "sizes"), "--no-corrections", "--candidates", "1", "--json"]
    assert main([*measured, "--evaluate", f"{metric}:size"]) == 0
    assert json.loads(capsys.readouterr().out)["candidates"][0]["metric"] < 0
    metric.write_text("calls = []\ndef falling(executable):\n    calls.append(1)\n    return -len(calls)\n")
    lost = [*line[:-1], str(tmp_path / "lost"), "--no-corrections", "--candidates", "1", "--max-drop", "0.5"]
    assert main([*lost, "--evaluate", f"{metric}:falling"]) == 0
    assert "none is within --max-drop 0.5; the most accurate: " in capsys.readouterr().out
    assert main([*measured, "--evaluate", f"{metric}:nothing"]) == 2
    assert "no function 'nothing'" in capsys.readouterr().err
    assert main([*measured, "--evaluate", "nowhere.py:f"]) == 2
    assert "give FILE.py:FUNCTION" in capsys.readouterr().err
