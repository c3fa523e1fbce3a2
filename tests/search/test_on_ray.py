"""Candidates measured elsewhere, ahead of time: the same result as here, whatever is measured for nothing; and on Ray itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_search import PLAIN, SAMPLES, closeness, plain

import octavo
import profile_bytes
from child_python import OCTAVO
from nets import residual_net
from octavo.cli.main import main
from octavo.errors import QuantizationError
from octavo.search import SearchResult, search_on_ray
from octavo.search.bench import Bench, Measurement
from octavo.search.halving import Halving
from octavo.search.result import Change
from octavo.search.search import search_with
from small_file import digits, write_small_net

HAS_RAY = importlib.util.find_spec("ray") is not None
REST: dict[str, Any] = {"seconds": None, "target": "cpu", "recipe": PLAIN, "cost": None, "progress": None}


class Ahead:
    """Measures in this process; what is begun, and what of that was asked for, is noted."""

    width = 3

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.asked: list[str] = []

    def start(self, bench: Bench, float_metric: float) -> None:
        self.bench = Bench(**{name: getattr(bench, name) for name in Bench.__slots__ if not name.startswith("_")})
        self.bench.compare_with_float(float_metric)

    def begin(self, changes: Sequence[Change]) -> None:
        self.begun += [key for change in changes if (key := repr(change.to_json())) not in self.begun]

    def measure(self, change: Change, check: Callable[[], None]) -> Measurement:
        self.asked.append(repr(change.to_json()))
        return self.bench.measure(self.bench.quantized(change), check)


@pytest.fixture(scope="module", name="profiled")
def fixture_profiled() -> tuple[octavo.Model, octavo.Profile]:
    model = residual_net()
    return model, octavo.profile(model, SAMPLES, keep_samples=16)


@pytest.mark.parametrize("share", [None, 0.5])
def test_what_is_measured_elsewhere_is_begun_ahead_and_the_result_is_the_same(
    share: float | None, profiled: tuple[octavo.Model, octavo.Profile], tmp_path: Path
) -> None:
    model, profile = profiled
    given = {**REST, "evaluate": closeness(model), "candidates": 8}
    first = search_with(None, model, profile, None, folder=None, max_drop=None, **{**given, "candidates": 1}).candidates[0]
    assert first.score is not None
    given["max_drop"] = None if share is None else -share * first.score.metric

    def found(elsewhere: Ahead | None, folder: Path | None = None, **other: Any) -> SearchResult:
        return search_with(elsewhere, model, profile, None, folder=folder, **{**given, **other})

    here, ahead = found(None), Ahead()
    assert len(here.candidates) >= 4
    assert plain(found(ahead)) == plain(here)
    assert set(ahead.asked) <= set(ahead.begun), "with what may be asked for, more or less is begun"
    # A search that was cut off goes on: what its folder has is not begun again.
    found(Ahead(), tmp_path / "search", candidates=2)
    rest = Ahead()
    assert plain(found(rest, tmp_path / "search")) == plain(here)
    assert rest.asked == ahead.asked[2:]
    assert not set(rest.begun) & set(ahead.asked[:2])


@pytest.mark.parametrize("enough_from", [1, 5, 17, 39])
def test_halving_says_ahead_what_it_tries(enough_from: int) -> None:
    stage = Halving(low=0, high=40, count=6)
    tried: list[int] = []
    while not stage.is_over:
        ahead = list(stage.ahead())
        assert ahead[0] == stage.count
        tried.append(stage.count)
        stage = stage.after(stage.count >= enough_from)
        assert stage.is_over or stage.count in ahead[1:3]
    assert min([count for count in tried if count >= enough_from], default=stage.high) - enough_from <= 2
    assert len(tried) <= 8


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed (pip install 'octavo[ray]')")
def test_the_command_line_on_a_cluster_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, samples = tmp_path / "m.onnx", digits(0, 20)
    write_small_net(file)
    octavo.profile(octavo.load(file), samples, keep_samples=6).save(tmp_path / "p.json")
    (tmp_path / "worth.py").write_text(
        "import numpy as np\n\n\n"
        f"def worth(executable):\n    x = np.ones({(1, *samples.shape[1:])}, np.float32)\n"
        "    return float(next(iter(executable(x).values())).max())\n"
    )
    words = ["search", str(file), "--profile", str(tmp_path / "p.json"), "--candidates", "4", "--json", "--no-corrections"]
    words += ["--evaluate", f"{tmp_path / 'worth.py'}:worth", "-o"]
    assert main([*words, str(tmp_path / "here")]) == 0
    here = json.loads(capsys.readouterr().out)
    run = subprocess.run([*OCTAVO, *words, str(tmp_path / "there"), "--ray"], check=True, capture_output=True, text=True)
    there = json.loads(run.stdout[run.stdout.index("{") :])
    for each in (here, there):
        assert len(each["candidates"]) == 4
        for candidate in each["candidates"]:
            candidate["plan"] = Path(candidate["plan"]).name
    assert there == here
    plans = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert all((tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes() for name in plans)


def test_without_ray_there_is_one_error(
    profiled: tuple[octavo.Model, octavo.Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    profile_bytes.small_network(tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match=r"a search on a cluster needs Ray: pip install 'octavo\[ray\]'"):
        search_on_ray(tmp_path / "m.onnx", profiled[1])
