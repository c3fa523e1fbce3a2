"""The same bytes however a data set is profiled, on a cluster too, and a search's; what a cluster's user may do wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import profile_bytes
from child_python import run_python
from octavo.cli.main import main
from octavo.errors import DataError, ProfileError
from octavo.profiling.cluster import profile_on_ray
from octavo.profiling.ray_cluster import connected
from small_file import digits, write_small_net

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    profile_bytes.small_network(path)
    return path


ELSEWHERE = """
import importlib.util, json, profile_bytes
from octavo.cli.main import main
if importlib.util.find_spec("ray") is not None:
    from ray._private.node import Node
    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        assert hasattr(Node, name)
        setattr(Node, name, lambda *_, **__: None)
model, *commands = sys.argv[1:]
sys.argv[1:] = ["--model", model, "--samples", "30"]
sys.exit(profile_bytes.main() or any(main(json.loads(words)) for words in commands))
"""


def commands(folder: Path) -> list[list[str]]:
    """The command lines of a profile and of a search, whose results are to be the same on a cluster."""
    model, samples, profile, metric = (str(folder / name) for name in ("m.onnx", "x.npy", "p.json", "worth.py"))
    write_small_net(Path(model))
    np.save(samples, digits(0, 6))
    Path(metric).write_text(
        "import numpy as np\n\n\ndef worth(executable):\n    x = np.ones((1, 1, 8, 8), np.float32)\n"
        "    return float(next(iter(executable(x).values())).max())\n"
    )
    search = ["search", model, "--profile", profile, "--candidates", "4", "--no-corrections"]
    return [
        ["profile", model, "--data", samples, "-o", profile],
        [*search, "--evaluate", f"{metric}:worth", "-o", str(folder / "search")],
    ]


@pytest.fixture(scope="module")
def elsewhere(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the benchmark prints, and the folder of what the command line makes, on the benchmark's cluster where Ray is.

    In a process of its own, as Ray's has warnings and threads that outlive it. What a cluster starts is Python without PyTorch,
    too: to import it would be most of the time. And it starts no scaling, no reading of logs and no dashboard's server, each a
    Python of its own that no task has to do with.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "torch.py").write_text('raise ImportError("left out")\n')
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = run_python(
        ELSEWHERE,
        *(model, *(json.dumps([*words, "--ray"]) for words in commands(folder) if HAS_RAY)),
        cwd=Path(profile_bytes.__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
    )
    return done.stdout, folder


def test_one_stream_shards_threads_and_a_cluster_give_the_same_bytes(elsewhere: Any) -> None:
    lines = elsewhere[0].splitlines()
    digests = re.findall("^([0-9a-f]{64})  ", elsewhere[0], re.MULTILINE)
    assert len(digests) == 3 + HAS_RAY
    assert len(set(digests)) == 1, lines
    assert any("Ray, two workers, one killed" in line for line in lines) == HAS_RAY


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (pip install 'octavo[ray]')")
def test_the_command_line_on_a_cluster(elsewhere: Any, tmp_path: Path) -> None:
    for words in commands(tmp_path):
        assert main(words) == 0
    found = ["p.json", "p.json.samples", *(f"search/{path.name}" for path in (tmp_path / "search").iterdir())]
    assert len(found) == 3 + 4, "the list of the search and the plans of four candidates"
    for name in found:
        assert (elsewhere[1] / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.parametrize("address", [None, "ray://elsewhere:1"])
def test_a_cluster_that_was_started_or_reached_ends_with_the_call(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for Ray notes what it is called with: to start one takes seconds. One started here has no dashboard."""
    calls: list[Any] = []
    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False  # pyright: ignore[reportAttributeAccessIssue]
    ray.init = lambda **options: calls.append(options)  # pyright: ignore[reportAttributeAccessIssue]
    ray.shutdown = lambda: calls.append("shutdown")  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with connected(address, what="profiling", error_of=ProfileError) as found:
        assert found is ray
    quiet = {"address": address, "log_to_driver": False, "configure_logging": False}
    assert calls == [{**quiet, **({} if address else {"include_dashboard": False})}, "shutdown"]


def test_a_cluster_that_is_not_to_be_reached_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError("no server at this port\nTraceback ...")

    ray = types.ModuleType("ray")
    ray.is_initialized = lambda: False  # pyright: ignore[reportAttributeAccessIssue]
    ray.init = init  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "ray", ray)
    said = r"cannot reach a Ray cluster at ray://elsewhere:1: no server at this port$"
    with pytest.raises(ProfileError, match=said), connected("ray://elsewhere:1", what="profiling", error_of=ProfileError):
        pass


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
