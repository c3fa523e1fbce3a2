"""The same bytes however a data set is profiled, on a cluster too; and what a cluster's user may do wrong."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import profile_bytes
from child_python import OCTAVO, run_python
from octavo.cli.main import main
from octavo.cluster import profile_on_ray
from octavo.errors import DataError, ProfileError

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    profile_bytes.small_network(path)
    return path


def test_one_stream_shards_threads_and_a_cluster_give_the_same_bytes(model: Path) -> None:
    # In a process of its own: Ray's has warnings, and threads that outlive it.
    program = "import profile_bytes; sys.exit(profile_bytes.main())"
    done = run_python(program, "--model", model, "--samples", 30, cwd=Path(profile_bytes.__file__).parent, check=True)
    lines = done.stdout.splitlines()
    digests = [line.split("  ")[0] for line in lines if "  " in line]
    assert len(digests) == 3 + HAS_RAY
    assert len(set(digests)) == 1, lines
    assert any("Ray, two workers, one killed" in line for line in lines) == HAS_RAY


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (pip install 'octavo[ray]')")
def test_the_command_line_on_a_cluster_of_its_own(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((5, 3, 16, 16)).astype(np.float32))
    words = ["profile", str(model), "--data", str(tmp_path / "x.npy"), "-o"]
    assert main([*words, str(tmp_path / "here.json")]) == 0
    subprocess.run([*OCTAVO, *words, str(tmp_path / "there.json"), "--ray"], check=True, capture_output=True)
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()


def test_without_ray_there_is_one_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ProfileError, match=r"needs Ray: pip install 'octavo\[ray\]'"):
        profile_on_ray(model, np.zeros((2, 3, 16, 16), np.float32))


def test_what_does_not_fit_is_found_before_a_cluster_is_asked_for(model: Path) -> None:
    with pytest.raises(ProfileError, match="samples_per_task must be"):
        profile_on_ray(model, [], samples_per_task=0)
    with pytest.raises(DataError, match="names no tensor of the model"):
        profile_on_ray(model, [], tensors="nothing")


def test_a_checkpoint_does_not_go_with_a_cluster(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros((2, 3, 16, 16), np.float32))
    assert main(["profile", str(model), "--data", "x.npy", "-o", "p.json", "--ray", "--checkpoint", "1"]) == 2
    assert "--checkpoint and --resume go with one stream" in capsys.readouterr().err
