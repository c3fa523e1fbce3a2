"""The default loses nothing against plain min-max on samples that it never saw: of many ops, and where it saw outliers."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import octavo
from nets import residual_net
from octavo.compiler.target_choice import resolve_target
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer import steps
from octavo.quantizer.choices import Choices
from octavo.quantizer.planner import Planned
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.ranges import range_of
from octavo.quantizer.steps import Evidence, Step, register_step
from random_networks import MOST_LOST_DB, looked_at

SEEDS = 5
"""In one test, which the processes of a run share."""


class Clip(Step):
    """A step that does harm: it cuts all ranges to a third. Whoever keeps what was not found to gain keeps this."""

    name: ClassVar = "clip"

    @classmethod
    def of(cls, recipe: octavo.Recipe) -> list[Step]:
        return [cls()] if recipe.corrects else []

    def propose(self, planned: Planned, evidence: Evidence) -> Choices | None:
        ends = {name: range_of(params) for name, params in planned.plan.activations.items()}
        return planned.choices.with_more(Choices(ranges={name: (low / 3, high / 3) for name, (low, high) in ends.items()}))


@pytest.mark.parametrize("first", range(0, 40, SEEDS))
def test_the_default_is_not_below_plain_min_max(shared: Path, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setenv("OCTAVO_SHARED", str(shared))
    monkeypatch.setattr(steps, "_ORDER", [*steps._ORDER])
    register_step(Clip)
    found = [looked_at(seed, samples=24) for seed in range(first, first + SEEDS)]
    known = [each for each in found if each is not None]
    assert len(known) >= SEEDS - 1, "one seed makes no network"
    assert [each.said for each in known if each.lost_db > MOST_LOST_DB] == []
    assert max(each.default_db - each.plain_db for each in known) > MOST_LOST_DB, "what gains is kept"


@pytest.mark.parametrize("outliers", [(), (7,), (7, 30)], ids=["none", "one", "two"])
def test_samples_unlike_all_others_take_no_gain_away(outliers: tuple[int, ...]) -> None:
    """Ordinary samples gain as much, whether those that decide errors and ranges are held back or fitted to."""
    model, rng = residual_net(), np.random.default_rng(0)
    samples = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(40)]
    for place in outliers:
        samples[place] *= 3
    fresh = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(32)]
    profile = octavo.profile(model, samples, keep_samples=40)
    plain = quantize_graph(model, profile, target=resolve_target("cpu"))
    run, *others = map(octavo.compile, (model, plain, octavo.quantize(model, profile)))
    exact, bare, quantized = (np.concatenate([next(iter(each(x).values())) for x in fresh]) for each in (run, *others))
    assert sqnr_db(exact, quantized) > sqnr_db(exact, bare) + 2
