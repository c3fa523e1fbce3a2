"""`octavo evaluate` as people and continuous integration call it."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from octavo.cli.main import main


def command(line: str) -> int:
    return main(["evaluate", *shlex.split(line)])


def test_it_prints_figures_and_a_verdict(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("m.onnx m.int8.onnx --data x.npz") == 0
    said = capsys.readouterr().out
    assert "m.int8.onnx against m.onnx, 20 samples" in said
    assert "| logits |" in said
    assert "verdict: " in said


def test_demands_decide_the_exit_code(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savetxt("y.txt", np.zeros(20), fmt="%d")
    met = "m.onnx m.so --data x.npz --labels y.txt --min-agreement 0.5 --min-sqnr 10 --max-drop 0.5"
    assert command(met) == 0
    capsys.readouterr()
    assert command(f"{met} --min-sqnr 99 --json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["missed"] == [f"SQNR {found['sqnr_db']:.1f} dB is below 99 dB"]
    assert found["samples"] == 20


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("m.onnx m.so --data x.npz --max-drop 0.1", 2, "give --labels FILE"),
        ("m.onnx gone.onnx --data x.npz", 1, "gone.onnx"),
        ("m.onnx litert:gone.tflite --data x.npz", 1, "gone.tflite: no such file"),
        ("m.so profile.json --data x.npz", 1, "give that model file first"),
        ("m.onnx m.so --data y.npz", 1, "y.npz"),
        ("m.onnx m.so --data x.npz --labels calib.npz", 1, "labels must be whole numbers, one for each of the 20 samples"),
    ],
)
def test_errors_are_one_line(workplace: Path, capsys: pytest.CaptureFixture[str], line: str, code: int, said: str) -> None:
    assert command(line) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("octavo: error: ")
    assert said in err
