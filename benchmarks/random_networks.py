"""Random networks of many ops (shared/probes/fuzz): does the default of quantization ever lose against plain min-max?

    python benchmarks/random_networks.py                          200 networks
    python benchmarks/random_networks.py --seeds 0 40 --without   and against the default without any one of the steps it keeps
    python benchmarks/random_networks.py --seeds 0 40 --compiled  and whether the compiled model has what the referee says

Each network is profiled on 64 random samples, and plans are scored on 32 others by the referee, whose scores are those of
compiled models (tests/quantizer/referee). One line a network, and a summary: how many are more than half a dB below.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import datasets
import octavo
from octavo.ir.graph.dataflow import DataflowView
from octavo.quantizer import steps
from octavo.quantizer.price import slower
from octavo.quantizer.programs import Programs
from octavo.quantizer.quantize_graph import quantize_graph
from octavo.quantizer.referee import Referee, sqnr_by_result

MOST_LOST_DB = 0.5
MOST_APART_DB, EXACT_DB = 0.3, 100.0
"""By which the referee's score may be off; beyond so much, sums of float32 are all that is compared."""
CALIBRATION, FRESH = 64, 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Signal to noise ratios of one network's worst output in dB: plain, by default, and without each step that was kept.

    `times` are those that the latter are modelled to take, in shares of the default's; `compiled_db` is the default's, by the
    compiled model, None where it was not asked.
    """

    plain_db: float
    default_db: float
    without_db: dict[str, float]
    times: dict[str, float]
    compiled_db: float | None = None

    @property
    def is_apart(self) -> bool:
        """Whether the compiled model has something else than the referee says."""
        found = self.compiled_db
        return found is not None and min(found, self.default_db) < EXACT_DB and not abs(found - self.default_db) <= MOST_APART_DB

    @property
    def lost_db(self) -> float:
        """How far the default is below plain min-max, or what is lost by a step."""
        best = max(self.plain_db, *self.without_db.values()) if self.without_db else self.plain_db
        return 0.0 if best == self.default_db else best - self.default_db

    @property
    def said(self) -> str:
        """One line."""
        without = ", ".join(
            f"{db:.2f} without {name} ({self.times[name]:.2f} of the time)" for name, db in self.without_db.items()
        )
        said = f"plain {self.plain_db:.2f} dB, default {self.default_db:.2f}" + (f", {without}" if without else "")
        return f"{said}, but compiled {self.compiled_db:.2f}" if self.is_apart else said


def looked_at(seed: int, *, without: bool = False, compiled: bool = False, samples: int = CALIBRATION) -> Found | None:
    """Return what quantization makes of a random network; None where there is none, or Octavo does not run it."""
    network = random_network(seed)
    if network is None:
        return None
    made, shapes = network
    rng = np.random.default_rng(seed)
    feeds = normal_feeds(shapes, rng, samples + FRESH)
    try:
        model = octavo.load(made)
    except octavo.OctavoError:
        return None
    profile = octavo.profile(model, feeds[:samples], keep_samples=samples)
    quantized = octavo.quantize(model, profile)
    plans = {"plain": quantize_graph(model, profile).plan, "default": quantized.plan}
    if without:
        plans |= {name: _without(name, model, profile) for name in dict.fromkeys(plans["default"].journal.kept)}
    programs, fresh = Programs.of_model(model), [list(feed.values()) for feed in feeds[samples:]]
    try:
        scores = {name: Referee(programs.of(plan), fresh).score(plan).sqnr_db for name, plan in plans.items()}
    except NotImplementedError:
        return None
    view, default = DataflowView(programs.simple.module["main"]), plans["default"]
    times = {name: 1 + slower(view, default, plan) for name, plan in plans.items()}
    own = compiled_db(programs.simple, quantized, feeds[samples:]) if compiled else None
    by_name = {"plain_db": scores.pop("plain"), "default_db": scores.pop("default")}
    return Found(**by_name, without_db=scores, times=times, compiled_db=own)


def compiled_db(simple: octavo.Model, quantized: octavo.QuantizedModel, feeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Return the signal to noise ratio in dB of the worst output of a compiled quantized model."""
    floats, made = ([[*run(feed).values()] for feed in feeds] for run in map(octavo.compile, (simple, quantized)))
    found = sqnr_by_result(DataflowView(simple.module["main"]), floats, made)
    return min(each for each in found if each is not None)


def random_network(seed: int, ops: int = 12) -> tuple[Any, dict[str, tuple[int, ...]]] | None:
    """Return a random ONNX model of so many ops, and the shapes of its inputs; None of a seed that makes none."""
    folder = str(datasets.shared_folder() / "probes/fuzz")
    if folder not in sys.path:
        sys.path.append(folder)
    import graphs

    try:
        return graphs.make(seed, ops)
    except ValueError:
        return None


def normal_feeds(shapes: Mapping[str, Sequence[int]], rng: np.random.Generator, count: int) -> list[dict[str, np.ndarray]]:
    """Return so many samples of normal numbers."""
    return [{name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(count)]


def _without(name: str, model: octavo.Model, profile: octavo.Profile) -> octavo.QuantizationPlan:
    known = steps._ORDER[:]
    steps._ORDER[:] = [kind for kind in known if kind.name != name]
    try:
        return octavo.quantize(model, profile).plan
    finally:
        steps._ORDER[:] = known


def _networks(first: int, last: int, *, without: bool, compiled: bool) -> Iterator[Found]:
    for seed in range(first, last):
        found = looked_at(seed, without=without, compiled=compiled)
        print(f"{seed}: {'not looked at' if found is None else found.said}", flush=True)
        if found is not None:
            yield found


def main() -> None:
    """Look at all, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 200), metavar=("FIRST", "END"))
    parser.add_argument("--without", action="store_true", help="leave out each step that was kept, too")
    parser.add_argument("--compiled", action="store_true", help="compare the default's score with the compiled model's")
    chosen = parser.parse_args()
    found = [*_networks(*chosen.seeds, without=chosen.without, compiled=chosen.compiled)]
    gains = np.array([each.default_db - each.plain_db for each in found if np.isfinite(each.plain_db)])
    lost = sum(each.lost_db > MOST_LOST_DB for each in found)
    print(
        f"{len(found)} networks: {lost} lose more than {MOST_LOST_DB} dB; default over plain min-max: {gains.min():+.2f} to "
        f"{gains.max():+.2f} dB, median {np.median(gains):+.2f}, {(gains > MOST_LOST_DB).sum()} gain more than {MOST_LOST_DB}"
    )
    apart = sum(each.is_apart for each in found)
    if chosen.compiled:
        print(f"{apart} compiled models are more than {MOST_APART_DB} dB off what the referee says")
    sys.exit(bool(lost or apart))


if __name__ == "__main__":
    main()
