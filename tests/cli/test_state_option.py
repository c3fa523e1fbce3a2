"""`octavo run --state`: what goes from step to step is not in the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from octavo.cli.main import main
from open_decoder import CARRY, HEADS, SIZE, decoder

SUMS = """<ir_version: 8, opset_import: ["" : 13]> sums (float[2,3] x, float rate, float[2,3] total) =>
    (float[2,3] y, float[2,3] next) {
    scaled = Mul(x, rate)
    next = Add(total, scaled)
    y = Mul(next, next)
}"""
STATES = "--state key=past_key --state value=past_value"


def run(line: str) -> int:
    return main(line.split())


@pytest.fixture
def folder(rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hold a decoder of open sizes, decoder.so, five steps for it in x.npy, and sums of fixed sizes, sums.onnx."""
    monkeypatch.chdir(tmp_path)
    octavo.compile(decoder()).save("decoder.so")
    np.save("x.npy", rng.normal(size=(5, 3, 2, HEADS * SIZE)).astype(np.float32))
    onnx.save(onnx.parser.parse_model(SUMS), "sums.onnx")
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_steps_give_what_a_session_gives() -> None:
    assert run(f"run decoder.so --input x.npy {STATES} --capacity past=10 -o y.npz") == 0
    with octavo.load_executable("decoder.so").session(carry=CARRY, capacity={"past": 10}) as step:
        expected = np.stack([step(x)["y"] for x in np.load("x.npy")])
    results = np.load("y.npz")
    assert list(results) == ["y"]
    assert results["y"].tobytes() == expected.tobytes()


@pytest.mark.usefixtures("folder")
def test_steps_of_a_fixed_batch_are_its_samples(rng: np.random.Generator) -> None:
    assert run("compile sums.onnx -o sums.so") == 0
    x, rate = rng.normal(size=(8, 3)).astype(np.float32), np.float32(0.5)
    np.savez("x.npz", x=x, rate=rate)
    assert run("run sums.so --input x.npz --state next=total -o y.npz") == 0
    expected = np.square(np.cumsum(x.reshape(4, 2, 3) * rate, axis=0))
    np.testing.assert_array_equal(np.load("y.npz")["y"], expected.reshape(8, 3))
    np.savez("x.npz", x=x.reshape(4, 2, 3), rate=np.full(4, rate))
    assert run("run sums.so --input x.npz --state next=total -o y.npz") == 0
    np.testing.assert_array_equal(np.load("y.npz")["y"], expected)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (f"{STATES} --capacity past=9", "value would have 10 rows along past (8 are there), the capacity is 9"),
        (STATES, "say for how many rows there is to be room"),
        (f"{STATES} --capacity rows=9", "no state is written in place along 'rows'"),
        ("--state nosuch=past_key", "there is no output 'nosuch'"),
        ("--capacity past=9", "--capacity is of states: name them by --state OUT=IN, too"),
    ],
)
def test_what_does_not_fit_is_one_line(options: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"run decoder.so --input x.npy {options} -o y.npz") in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("y.npz").exists()


@pytest.mark.usefixtures("folder")
def test_arrays_of_different_numbers_of_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile sums.onnx -o sums.so") == 0
    np.savez("x.npz", x=np.ones((4, 2, 3), np.float32), rate=np.ones(5, np.float32))
    assert run("run sums.so --input x.npz --state next=total -o y.npz") == 1
    assert "different numbers of steps: x 4, rate 5" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_an_executable_is_told_of_state_where_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compile sums.onnx --state next=total -o sums.so") == 2
    assert "--state is of a C library: give --emit c, too" in capsys.readouterr().err
