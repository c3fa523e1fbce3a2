"""Everything a user can get wrong: exit code 1, one line that says what, where and what to do, and nothing half-written."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from child_python import OCTAVO
from octavo.cli import explain
from octavo.cli.main import main

Prepare = Callable[[], object]


def command(line: str) -> int:
    return main(shlex.split(line))


def calibration(change: Callable[[np.ndarray], np.ndarray]) -> Prepare:
    def prepare() -> None:
        with np.load("calib.npz") as archive:
            samples = archive["x"]
        np.savez("bad.npz", x=change(samples))

    return prepare


def with_nan(samples: np.ndarray) -> np.ndarray:
    samples = samples.copy()
    samples[17, 0, 3, 4] = np.nan
    return samples


def truncate(source: str, target: str, share: float) -> Prepare:
    def prepare() -> None:
        content = Path(source).read_bytes()
        Path(target).write_bytes(content[: int(len(content) * share)])

    return prepare


def other_model() -> None:
    proto = onnx.load("m.onnx")
    weight = proto.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    onnx.save(proto, "other.onnx")


def unsupported_op() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["y"], ["volume"], name="head/det")],
        "unsupported",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4])],
        [helper.make_tensor_value_info("volume", TensorProto.FLOAT, [1])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "bad.onnx")


def nothing() -> None:
    pass


def text(path: str) -> Prepare:
    return lambda: Path(path).write_text("hello\n")


CASES = {
    "no model": (nothing, "compile none.onnx -o new.so", ["none.onnx", "no such file"]),
    "text as onnx": (text("bad.onnx"), "compile bad.onnx -o new.so", ["bad.onnx"]),
    "empty onnx": (lambda: Path("bad.onnx").touch(), "compile bad.onnx -o new.so", ["bad.onnx", "empty"]),
    "truncated onnx": (truncate("m.onnx", "bad.onnx", 0.5), "compile bad.onnx -o new.so", ["bad.onnx"]),
    "text as tflite": (text("bad.tflite"), "compile bad.tflite -o new.so", ["bad.tflite"]),
    "forged tflite": (
        lambda: Path("bad.tflite").write_bytes(b"\x1c\0\0\0TFL3" + b"\xff" * 500),
        "compile bad.tflite -o new.so",
        ["bad.tflite"],
    ),
    "unsupported op": (unsupported_op, "compile bad.onnx -o new.so", ["Det", "volume"]),
    "wrong shape": (
        calibration(lambda x: x[:, :, :, :7]),
        "profile m.onnx --data bad.npz -o new.json",
        ["bad.npz", "pixels", "[1,1,8,8]", "[100,1,8,7]"],
    ),
    "wrong dtype": (
        calibration(lambda x: x.astype(np.float64)),
        "profile m.onnx --data bad.npz -o new.json",
        ["bad.npz", "pixels", "float32", "float64"],
    ),
    "pattern of nothing": (nothing, "profile m.onnx --data calib.npz -o new.json --tensors Nope", ["'Nope'", "Conv"]),
    "no place to profile": (
        nothing,
        "profile m.onnx --data calib.npz -o new.json --target generic",
        ["'generic'", "profiles are made on this machine ('cpu') or on a GPU"],
    ),
    "empty data set": (calibration(lambda x: x[:0]), "profile m.onnx --data bad.npz -o new.json", ["bad.npz", "empty"]),
    "wrong input name": (
        lambda: np.savez("bad.npz", a=np.zeros(1), b=np.zeros(1)),
        "profile m.onnx --data bad.npz -o new.json",
        ["bad.npz", "pixels"],
    ),
    "no data": (nothing, "profile m.onnx --data none.npz -o new.json", ["none.npz", "No such file"]),
    "text as data": (text("bad.npz"), "profile m.onnx --data bad.npz -o new.json", ["bad.npz", "numpy.savez"]),
    "profile of another model": (
        other_model,
        "quantize other.onnx --profile profile.json -o new.onnx",
        ["profile", "another model", "sha256:"],
    ),
    "text as profile": (text("bad.json"), "quantize m.onnx --profile bad.json -o new.onnx", ["bad.json"]),
    "truncated profile": (
        truncate("profile.json", "bad.json", 0.7),
        "quantize m.onnx --profile bad.json -o new.onnx",
        ["bad.json"],
    ),
    "no profile": (nothing, "quantize m.onnx --profile none.json -o new.onnx", ["none.json"]),
    "no profile to report": (nothing, "report none.json -o new.html", ["none.json", "No such file"]),
    "a model to report": (nothing, "report m.onnx -o new.html", ["m.onnx", "it is not text"]),
    "truncated profile to report": (truncate("profile.json", "bad.json", 0.7), "report bad.json -o new.html", ["bad.json"]),
    "the profile as the report": (nothing, "report profile.json -o profile.json", ["profile.json", "input"]),
    "quantized already": (nothing, "quantize m.int8.onnx --profile profile.json -o new.onnx", []),
    "no folder for the output": (nothing, "compile m.int8.onnx -o none/new.so", ["none/new.so", "no folder"]),
    "a folder as the output": (nothing, "compile m.int8.onnx -o .", ["it is a folder"]),
    "the input as the output": (nothing, "quantize m.onnx --profile profile.json -o m.onnx", ["m.onnx", "input"]),
    "unknown target": (nothing, "compile m.int8.onnx -o new.so --target gpu", ["gpu", "x86.avx512_vnni"]),
    "no tuning": (nothing, "compile m.int8.onnx --tuning none.json -o new.so", ["none.json", "No such file"]),
    "text as tuning": (text("bad.json"), "compile m.int8.onnx --tuning bad.json -o new.so", ["bad.json", "not a tuning file"]),
    "profile as tuning": (nothing, "compile m.int8.onnx --tuning profile.json -o new.so", ["profile.json", "octavo-tuning"]),
    "no folder for the tuning": (nothing, "tune m.int8.onnx --seconds 1 -o none/new.json", ["none/new.json", "no folder"]),
    "unknown cpu": (nothing, "compile m.int8.onnx -o new.so --target 'llvm -mcpu=abacus'", ["abacus"]),
    "too many threads": (nothing, "compile m.int8.onnx -o new.so --threads 9999", ["threads", "9999"]),
    "shape that does not fit": (nothing, "compile m.onnx -o new.so --shape pixels=1,3,8,8", ["m.onnx", "stem/conv"]),
    "shape of no input": (nothing, "compile m.onnx -o new.so --shape image=1,1,8,8", ["image"]),
    "no executable": (nothing, "run none.so --input x.npz -o new.npz", ["none.so"]),
    "truncated executable": (truncate("m.so", "bad.so", 0.9), "run bad.so --input x.npz -o new.npz", ["bad.so"]),
    "a model as executable": (nothing, "run m.onnx --input x.npz -o new.npz", ["m.onnx", "octavo compile"]),
    "wrong samples to run": (
        calibration(lambda x: x[:, 0]),
        "run m.so --input bad.npz -o new.npz",
        ["bad.npz", "pixels", "[1,1,8,8]"],
    ),
    "NaN to run": (calibration(with_nan), "run m.so --input bad.npz -o new.npz", ["bad.npz", "nan"]),
    "no samples to run": (calibration(lambda x: x[:0]), "run m.so --input bad.npz -o new.npz", ["bad.npz", "empty"]),
    "endless samples": (nothing, "run m.so --input /dev/zero -o new.npz", ["/dev/zero", "device"]),
    "endless model": (nothing, "compile /dev/zero -o new.so", ["/dev/zero", "device"]),
    "excluded name of nothing": (
        nothing,
        "quantize m.onnx --profile profile.json -o new.onnx --exclude Nope",
        ["'Nope'", "no such op or result"],
    ),
    "demo folder is a file": (nothing, "demo -o m.onnx", ["m.onnx"]),
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "_"))
def test_bad_input_is_one_line(case: str, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, line, said = CASES[case]
    prepare()
    before = {path: path.read_bytes() for path in workplace.iterdir()}
    code = command(line)
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out == ""
    assert captured.err.startswith("octavo: error: ")
    assert captured.err.count("\n") == 1
    assert "bug in Octavo" not in captured.err
    assert [word for word in said if word not in captured.err] == []
    assert {path: path.read_bytes() for path in workplace.iterdir()} == before


def test_a_truncated_tflite_of_any_length(shared: Path, workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = (shared / "models" / "tflite" / "resnet8_cifar10_int8.tflite").read_bytes()
    for share in (0.01, 0.3, 0.9, 0.999):
        Path("bad.tflite").write_bytes(content[: int(len(content) * share)])
        assert command("compile bad.tflite -o new.so") == 1
        error = capsys.readouterr().err
        assert error.startswith("octavo: error: bad.tflite")
        assert error.count("\n") == 1
        assert not Path("new.so").exists()


def test_a_peer_that_is_not_installed_names_the_extra(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)  # makes the import fail
    assert command("bench m.int8.onnx --against openvino") == 1
    assert "pip install 'octavo[bench]'" in capsys.readouterr().err


def test_an_unexpected_failure_is_one_line_and_says_how_to_see_more(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("first line\n\nlast line")

    monkeypatch.setattr(explain, "load_to_compile", fail)
    assert command("explain m.onnx") == 1
    error = capsys.readouterr().err
    assert error.startswith("octavo: error: unexpected RuntimeError: last line; this is a bug in Octavo")
    assert error.count("\n") == 1
    monkeypatch.setenv("OCTAVO_DEBUG", "1")
    assert command("explain m.onnx") == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_interrupt_leaves_with_130(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explain, "load_to_compile", interrupt)
    assert command("explain m.onnx") == 130
    assert capsys.readouterr().err == "octavo: interrupted\n"


def test_a_reader_that_leaves_early_sees_no_traceback(finished: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [*OCTAVO, "explain", str(finished / "m.so")]
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == ""
