"""Commands on a model whose batch and length are open: they take it, its file and its executable at any size."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from octavo.cli.main import main

LINES = """<ir_version: 8, opset_import: ["" : 13]> lines (float[N,T,24] x) => (float[N,T,5] y) {
    d = MatMul(x, w)
    r = Relu(d)
    y = MatMul(r, m)
}"""
SIZES = ((1, 8, 24), (1, 23, 24), (3, 40, 24))


@pytest.fixture
def folder(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hold a network that reads lines of text of any length, m.onnx, and lines, one file each."""
    monkeypatch.chdir(tmp_path)
    proto = onnx.parser.parse_model(LINES)
    for name, shape in (("w", (24, 16)), ("m", (16, 5))):
        values = rng.normal(0, 0.3, shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    onnx.save(proto, "m.onnx")
    Path("lines").mkdir()
    for number, shape in enumerate(SIZES):
        np.savez(f"lines/{number}.npz", x=rng.normal(0, 1, shape).astype(np.float32))
    return tmp_path


def run(line: str) -> int:
    return main(line.split())


@pytest.mark.usefixtures("folder")
def test_one_executable_runs_at_every_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("profile m.onnx --data lines -o profile.json") == 0
    assert run("quantize m.onnx --profile profile.json -o m.int8.onnx") == 0
    assert run("compile m.int8.onnx -o m.so") == 0
    assert run("run m.so --input lines -o results") == 0
    for number, shape in enumerate(SIZES):
        x = np.load(f"lines/{number}.npz")["x"]
        expected = octavo.compile(octavo.load("m.int8.onnx", shapes={"x": shape}))(x)["y"]
        assert np.load(f"results/{number}.npz")["y"].tobytes() == expected.tobytes()
    capsys.readouterr()
    assert run("explain m.so") == 0
    assert "N,T,24" in capsys.readouterr().out
    assert run("evaluate m.onnx m.so --data lines --json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == len(SIZES)


@pytest.mark.usefixtures("folder")
def test_sizes_are_fixed_and_bounded_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile m.onnx --size N=2 --size T=8..32 -o m.so") == 0
    assert [str(dim) for dim in octavo.load_executable("m.so").inputs[0].shape] == ["2", "T", "24"]
    np.save("x.npy", np.ones((6, 32, 24), np.float32))
    assert run("run m.so --input x.npy -o y.npz") == 0
    assert np.load("y.npz")["y"].shape == (6, 32, 5)
    capsys.readouterr()
    np.save("x.npy", np.ones((2, 33, 24), np.float32))
    assert run("run m.so --input x.npy -o y.npz") == 1
    assert "input x has 33 along axis 1, dimension T takes 8 to 32" in capsys.readouterr().err
    assert run("explain m.so --size T=8") == 2
    assert "an executable keeps its sizes" in capsys.readouterr().err
    assert run("compile m.onnx --size H=8 -o m.so") == 1
    assert "there is no dimension 'H' to give a size; the open ones are N, T" in capsys.readouterr().err
    for size in ("W", "W=", "W=..", "W=a", "=3", "W=-1"):
        with pytest.raises(SystemExit):
            main(["compile", "m.onnx", "--size", size, "-o", "m.so"])
        assert "expected NAME=N or NAME=LOW..HIGH" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_folder_without_samples_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile m.onnx -o m.so") == 0
    Path("none").mkdir()
    assert run("run m.so --input none -o results") == 1
    assert "none: holds no .npz or .npy file" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_what_needs_fixed_sizes_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("bench m.onnx", "bench m.onnx --layers", "tune m.onnx -o t.json"):
        assert run(line) == 1
        said = capsys.readouterr().err
        assert "of fixed sizes, and this model leaves N, T open" in said or "on a model of fixed sizes" in said
        assert "--size N=N --size T=N on the command line" in said
    assert run("bench m.onnx --size N=2 --size T=9 --against onnxruntime --seconds 0.01 --json") == 0
    ours, theirs = json.loads(capsys.readouterr().out)["rows"]
    assert ours["runtime"] == "Octavo"
    assert theirs["max_abs_error"] < 1e-5


RATES = """<ir_version: 8, opset_import: ["" : 13]> rates (float[1,N] x, int64 sr) => (float[1,N] y)
    <int64 k = {16000}> {
    is_16k = Equal(sr, k)
    y = If (is_16k) <then_branch = a () => (float[1,N] u) { u = Abs(x) }, else_branch = b () => (float[1,N] v) { v = Neg(x) }>
}"""


def test_a_value_that_decides(tmp_path, monkeypatch, capsys):
    """What an If asks for is said on the command line; without it commands say so, and a wrong one is named."""
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(RATES), "r.onnx")
    assert run("compile r.onnx -o r.so") == 1
    assert "--value sr=..." in capsys.readouterr().err
    assert run("compile r.onnx --value sr=8000 -o r.so") == 0
    x = np.float32([[1, -2, 3]])
    np.testing.assert_array_equal(octavo.load_executable("r.so")(x)["y"], -x)
    assert run("explain r.onnx --value rate=1") == 1
    assert "there is no input 'rate' to give a value" in capsys.readouterr().err
