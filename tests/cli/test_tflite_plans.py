"""What `octavo quantize m.tflite` decided is read by the other commands; bench gives LiteRT the integers."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

import octavo
from float_networks import FloatNetwork
from octavo.cli.main import main


def command(line: str) -> int:
    return main(shlex.split(line))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with m.tflite, calib.npy and the profile of it."""
    monkeypatch.chdir(tmp_path)
    net = FloatNetwork(rng=np.random.default_rng(6))
    Path("m.tflite").write_bytes(net.write(net.dense(net.mean(net.conv(net.input((1, 8, 8, 3)), 8)), 10)))
    samples = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype(np.float32)
    np.save("calib.npy", samples)
    octavo.profile(octavo.load("m.tflite"), [samples], keep_samples=8).save("profile.json")
    return tmp_path


@pytest.mark.parametrize("activation", ["int8", "int16"])
def test_a_plan_for_litert_is_a_plan(place: Path, activation: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"--profile profile.json --activation {activation} --preset fast"
    assert command(f"quantize m.tflite {given} --save-plan plan.json -o first.tflite") == 0
    for line in (
        "quantize m.tflite --plan plan.json -o again.tflite",
        "explain m.tflite --plan plan.json",
        "compile m.tflite --plan plan.json -o m.so",
        "causes m.tflite --profile profile.json --plan plan.json",
        "report m.tflite --profile profile.json --plan plan.json -o page.html",
        "evaluate m.tflite plan.json --data calib.npy",
        "bench m.tflite --plan plan.json --against litert --seconds 0.05",
    ):
        assert command(line) == 0, f"{line}: {capsys.readouterr().err}"
    assert Path("again.tflite").read_bytes() == Path("first.tflite").read_bytes()


def test_bench_times_litert_on_the_integers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("bench m.tflite --profile profile.json --against litert --seconds 0.05") == 0
    shown = capsys.readouterr().out
    assert shown.startswith("m.int8.tflite on ")
    assert [line.split("|")[6].strip() for line in shown.splitlines() if line.startswith("| LiteRT")] == ["0"]
