"""The demonstration as a user runs it, and what it leaves behind."""

import json
import os
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo.cli.demo import DATA
from octavo.cli.main import main
from reference_sessions import reference_session

FILES = {"digits.profile.json", "digits.int8.onnx", "digits.int8.so", "digits.float.so"}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("demo")
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = main(["demo", "-o", str(folder / "out"), "--json"])
    assert code == 0, err.getvalue()
    assert err.getvalue() == "", "nothing is written to standard error unless it is a terminal"
    return folder / "out", json.loads(out.getvalue())


@pytest.fixture(scope="module")
def held_out() -> tuple[np.ndarray, np.ndarray]:
    with np.load(DATA / "digits.npz") as digits:
        chosen = digits["held_out"]
        return digits["images"][chosen][:, None].astype(np.float32) / 16, digits["labels"][chosen]


def top1(run, pixels: np.ndarray) -> np.ndarray:
    return np.array([int(run(pixels[i : i + 1]).argmax()) for i in range(len(pixels))])


def test_int8_is_within_a_point_of_float(demo: tuple[Path, dict]) -> None:
    report = demo[1]
    assert report["held_out"] == 449
    assert report["profiled"] == 1348
    assert report["top1_float"] > 0.97
    assert report["top1_int8"] >= report["top1_float"] - 0.01
    assert report["agreement"] >= 0.99


def test_float_accuracy_is_what_onnx_runtime_finds(demo: tuple[Path, dict], held_out: tuple[np.ndarray, np.ndarray]) -> None:
    pixels, labels = held_out
    session = reference_session(DATA / "digits.onnx")
    answers = top1(lambda x: session.run(None, {"pixels": x})[0], pixels)
    assert np.mean(answers == labels) == demo[1]["top1_float"]


def test_the_int8_executable_runs_everything_in_integers_and_faster_than_float(demo: tuple[Path, dict]) -> None:
    integer, total = map(int, re.match(r"(\d+)/(\d+) ops integer", demo[1]["int8_summary"]).groups())
    assert integer == total > 0
    assert demo[1]["float_summary"].startswith("0/")
    assert demo[1]["int8_ms"] < demo[1]["float_ms"]


def test_the_saved_executable_gives_the_reported_accuracy(
    demo: tuple[Path, dict], held_out: tuple[np.ndarray, np.ndarray]
) -> None:
    folder, report = demo
    executable = octavo.load_executable(folder / "digits.int8.so")
    assert np.mean(top1(lambda x: executable(x)["logits"], held_out[0]) == held_out[1]) == report["top1_int8"]


def test_the_int8_onnx_file_agrees_with_the_executable_in_onnx_runtime(
    demo: tuple[Path, dict], held_out: tuple[np.ndarray, np.ndarray]
) -> None:
    pixels, _ = held_out
    session = reference_session(demo[0] / "digits.int8.onnx")
    executable = octavo.load_executable(demo[0] / "digits.int8.so")
    theirs = top1(lambda x: session.run(None, {"pixels": x})[0], pixels)
    ours = top1(lambda x: executable(x)["logits"], pixels)
    assert np.mean(theirs == ours) >= 0.98


def test_it_leaves_the_files_it_names_and_no_others(demo: tuple[Path, dict]) -> None:
    folder, report = demo
    assert set(os.listdir(folder)) == FILES
    for name, path in report["files"].items():
        assert Path(path).stat().st_size == report["sizes"][name]
    assert report["sizes"]["int8 executable"] < report["sizes"]["float executable"]


def test_int8_that_is_worse_by_more_than_a_point_fails(
    demo: tuple[Path, dict], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from octavo.cli import demo as command
    from octavo.report import DemoReport

    worse = DemoReport(**{**demo[1], "top1_int8": demo[1]["top1_float"] - 0.011})
    monkeypatch.setattr(command, "run_demo", lambda *_, **__: worse)
    assert main(["demo", "-o", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "| top-1 on 449 held-out digits |" in captured.out
    assert captured.err.startswith("octavo: error: int8 top-1 ")
