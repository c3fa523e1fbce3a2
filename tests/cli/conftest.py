"""A folder in which the command line has something to work on: a small network under the names that the README uses."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from octavo.cli.main import main
from small_file import digits, write_small_net


def make_workplace(folder: Path) -> Path:
    """Put the float model m.onnx, calibration samples calib.npz (100) and other samples x.npz (20) into `folder`."""
    write_small_net(folder / "m.onnx")
    np.savez(folder / "calib.npz", x=digits(0, 100))
    np.savez(folder / "x.npz", x=digits(100, 120))
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder after profile, quantize, compile and run, each by its command line. Tests read it and change nothing.

    The profile keeps no samples, so no command on it corrects weights and biases, which would be most of its time.
    """
    folder = make_workplace(tmp_path_factory.mktemp("finished"))
    for line in (
        "profile {0}/m.onnx --data {0}/calib.npz --keep-samples 0 -o {0}/profile.json",
        "quantize {0}/m.onnx --profile {0}/profile.json -o {0}/m.int8.onnx",
        "compile {0}/m.int8.onnx -o {0}/m.so",
        "run {0}/m.so --input {0}/x.npz -o {0}/y.npz",
    ):
        assert main(line.format(folder).split()) == 0, line
    return folder


@pytest.fixture(scope="session")
def with_samples(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile of the same model and samples as the command line writes it by default: it keeps samples."""
    path = tmp_path_factory.mktemp("with_samples") / "profile.json"
    assert main(f"profile {finished}/m.onnx --data {finished}/calib.npz -o {path}".split()) == 0
    return path


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path) -> Path:
    """Fresh copy of that folder, which is also the current one."""
    folder = tmp_path / "workplace"
    shutil.copytree(finished, folder)
    monkeypatch.chdir(folder)
    return folder
