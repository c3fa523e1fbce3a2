"""The benchmark of GPUs, against a driver whose GPU is the emulator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fake_driver import FakeDriver

import gpu as benchmark
from octavo.compiler.backends.cuda import driver
from octavo.compiler.backends.cuda.plan_file import unpacked
from octavo.errors import ExecutableError


@pytest.fixture
def folder(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one network that is prepared, and a GPU that runs it."""
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    (plan,) = benchmark.prepare(tmp_path, ["cuda.sm_80"], "autoencoder")
    stored = unpacked(plan.read_bytes(), np.zeros(0, np.uint8))
    fake = FakeDriver(stored.plan.kernels)
    monkeypatch.setattr(driver, "driver", lambda: fake)
    return tmp_path


def test_bytes_are_compared_and_memory_watched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["run", str(folder), "--seconds", "0", "--calls", "1"]) == 0
    (row,) = json.loads((folder / "gpu.json").read_text())
    assert (row["differing"], row["values"], row["leaked"]) == (0, 3 * 640, 0)
    assert "autoencoder_ad01_int8 | cuda.sm_80 | 10 | 0 of 1920" in capsys.readouterr().out


def test_bytes_that_differ_are_a_failure(folder: Path) -> None:
    arrays_path = next(folder.glob("*.npz"))
    arrays = dict(np.load(arrays_path))
    arrays["expected1_0"][0, 3] ^= 1
    np.savez(arrays_path, **arrays)
    assert benchmark.main(["run", str(folder), "--seconds", "0", "--calls", "0"]) == 1
    (row,) = json.loads((folder / "gpu.json").read_text())
    assert row["differing"] == 1


def test_no_gpu_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> None:
        raise ExecutableError("this machine has no driver for NVIDIA GPUs")

    monkeypatch.setattr(driver, "driver", none)
    assert benchmark.main(["run", str(folder)]) == 2
    assert "gpu.py: error: target 'cuda' is this machine's GPU: this machine has no driver" in capsys.readouterr().err
