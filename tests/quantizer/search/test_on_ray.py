"""Candidates measured elsewhere, ahead of time: the same result as here, whatever is measured for nothing.

On Ray itself: tests/e2e/test_profile_bytes.py, on the one cluster that is started.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_search import PLAIN, plain

import octavo
import profile_bytes
from octavo.errors import QuantizationError
from octavo.quantizer.search import Candidate, SearchResult, search_on_ray
from octavo.quantizer.search.bench import Bench
from octavo.quantizer.search.search import Halving
from octavo.quantizer.tune import Steps


@dataclass(kw_only=True, eq=False)
class Ahead(Bench):
    """What is begun, and what of that was asked for, is noted."""

    width = 3
    begun: list[Steps]
    asked: list[Steps]

    def start(self, float_metric: float | None = None) -> None:
        super().start(float_metric)
        self.elsewhere = Bench(model=self.model, **self.options)
        self.elsewhere.start(self.float_metric)

    def begin(self, candidates: Sequence[Steps]) -> None:
        self.begun += [steps for steps in candidates if steps not in self.begun]

    def measure(self, steps: Steps) -> Candidate:
        self.asked.append(steps)
        return self.elsewhere.measure(steps)


@pytest.mark.parametrize("share", [None, 0.5])
def test_what_is_measured_elsewhere_is_begun_ahead_and_the_result_is_the_same(
    share: float | None, model: octavo.Model, profile: octavo.Profile, closeness: Any, tmp_path: Path
) -> None:
    given: dict[str, Any] = {"recipe": PLAIN, "seconds": None, "evaluate": closeness, "candidates": 8}

    def found(folder: Path | None = None, **other: Any) -> SearchResult:
        return octavo.search(model, profile, folder=folder, **{**given, **other})

    def found_ahead(folder: Path | None = None, **other: Any) -> tuple[SearchResult, list[Steps], list[Steps]]:
        begun, asked = list[Steps](), list[Steps]()
        return found(folder, measuring=partial(Ahead, begun=begun, asked=asked), **other), begun, asked

    if share is not None:
        first = found(candidates=1).candidates[0]
        assert first.metric is not None
        given["max_drop"] = -share * first.metric

    here, (ahead, begun, asked) = found(), found_ahead()
    assert len(here.candidates) >= 3
    assert plain(ahead) == plain(here)
    assert len(begun) >= len(asked) - 2, "with what may be asked for, more or less is begun"
    # A search that was cut off goes on: what its folder has is not begun again.
    found_ahead(tmp_path / "search", candidates=2)
    rest, begun_then, asked_then = found_ahead(tmp_path / "search")
    assert plain(rest) == plain(here)
    assert asked_then == asked[2:]
    assert not set(begun_then) & set(asked[:2])


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


def test_without_ray_there_is_one_error(profile: octavo.Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    profile_bytes.small_network(tmp_path / "m.onnx")
    with pytest.raises(QuantizationError, match=r"a search on a cluster needs Ray: pip install 'octavo\[ray\]'"):
        search_on_ray(tmp_path / "m.onnx", profile)
