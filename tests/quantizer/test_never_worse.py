"""On random networks of many ops the default loses nothing against plain min-max, nor against itself without a step: on other samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from random_networks import MOST_LOST_DB, looked_at


@pytest.mark.parametrize(
    "seeds", [range(start, start + 5) for start in range(0, 40, 5)], ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}"
)
def test_the_default_is_not_below_plain_min_max(shared: Path, monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    found = {seed: looked_at(seed, samples=24) for seed in seeds}
    known = {seed: each for seed, each in found.items() if each is not None}
    assert len(known) >= len(found) - 1
    assert {seed: each.said for seed, each in known.items() if each.lost_db > MOST_LOST_DB} == {}
