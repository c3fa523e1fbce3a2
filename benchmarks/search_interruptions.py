"""Searches under SIGINT and SIGKILL: what is returned after Ctrl-C at random moments, and whether a killed search goes on.

    python benchmarks/search_interruptions.py
    python benchmarks/search_interruptions.py --interruptions 5 --kills 2 --candidates 6 --plain --json table.json

The network is the demo's, on handwritten digits; each search runs in a process of its own. First two run undisturbed: they must
find the same, to the last byte of every plan. Then searches get SIGINT, the k-th at a moment drawn from the k-th of equal parts
of the time that one takes (one that ends before its moment is not counted): each must return a result, with candidates that are
those of the undisturbed search in its order, and every candidate's plan must compile and run. Last, searches with a folder are
killed at random moments and begun again until they end: they must find the same, and measure nothing twice that was kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import octavo
from octavo.cli.demo import DATA
from octavo.compiler.text_table import markdown_table
from octavo.quantizer.search import SearchResult
from profile_kills import in_child

PLAIN = octavo.Recipe(bias_correction=False, weight_rounding="nearest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it all: a line for each kind of search."""

    seconds: float
    candidates: int
    front: int
    same_twice: bool
    returned_after: list[int] = field(default_factory=list[int])
    """Of each search that got SIGINT how many candidates it returned that it had measured."""
    ended_before: int = 0
    kills: int = 0
    same_after_kills: bool = False

    def rows(self) -> list[tuple[str, str, str]]:
        """Return the rows of a table."""
        after = sorted(self.returned_after)
        undisturbed = f"{self.candidates} candidates, {self.front} on the front, {self.seconds:.1f} s"
        interrupted = f"{len(after)} of {len(after)} returned a result whose candidates compile; measured in them: {after}"
        same = {True: "the same, byte for byte", False: "NOT THE SAME"}
        return [
            ("two undisturbed", undisturbed, same[self.same_twice]),
            ("SIGINT", f"{len(after)} ({self.ended_before} ended before theirs)", interrupted),
            ("SIGKILL and go on", f"{self.kills} kills", same[self.same_after_kills]),
        ]


class Searching:
    """One network, and searches over it in children."""

    def __init__(
        self, model: octavo.Model, samples: np.ndarray, folder: Path, *, candidates: int, recipe: octavo.Recipe, seed: int
    ) -> None:
        self.model, self.samples, self.folder = model, samples, folder
        self._random, self._candidates, self._recipe = random.Random(seed), candidates, recipe
        self.profile = octavo.profile(self.model, self.samples, keep_samples=16)

    def search(self, folder: Path | None = None) -> SearchResult:
        """Search, in this process."""
        return octavo.search(
            self.model, self.profile, recipe=self._recipe, seconds=None, candidates=self._candidates, folder=folder
        )

    def _child(self, work: Callable[[], dict[str, Any]], answer: Path, begun: int) -> int:
        """Fork a process that says when it begins, does `work`, and writes what comes of it. SIGINT outside of it is ignored."""

        def run() -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.write(begun, b"x")
            answer.write_text(json.dumps(work()), encoding="utf-8")

        return in_child(run)

    def _run(self, work: Callable[[], dict[str, Any]], disturb: Callable[[int], None] | None = None) -> tuple[Any, float, int]:
        """Run a child; return its answer, how long it took from its beginning, and its status."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        reading, begun = os.pipe()
        child = self._child(work, answer, begun)
        os.read(reading, 1)
        start = time.perf_counter()
        if disturb is not None:
            disturb(child)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        os.close(begun)
        return json.loads(answer.read_text()) if status == 0 else None, time.perf_counter() - start, status

    def undisturbed(self) -> tuple[dict[str, Any], float]:
        """Search in a child; return what it finds, and in what time."""
        found, seconds, status = self._run(lambda: as_found(self.search()))
        assert status == 0, "the undisturbed search failed"
        return found, seconds

    def interrupted(self, earliest: float, latest: float) -> dict[str, Any]:
        """Send SIGINT at a random moment between two; return what was found so far, and compile all of it."""

        def work() -> dict[str, Any]:
            result = self.search()
            for each in result.candidates:
                outputs = octavo.compile(octavo.quantize(self.model, plan=each.plan))(self.samples[:1])
                assert all(np.isfinite(value).all() for value in outputs.values())
            return {**as_found(result), "finished": result.finished, "best": result.best.name}

        def disturb(child: int) -> None:
            time.sleep(self._random.uniform(earliest, latest))
            os.kill(child, signal.SIGINT)

        found, _, status = self._run(work, disturb)
        assert status == 0, "a search that got SIGINT returned nothing"
        return found

    def killed(self, wanted: int, longest: float) -> tuple[list[dict[str, Any]], int]:
        """Kill searches at random moments, and let each go on; return what they find that end, and the number of kills."""
        path = self.folder / "search"
        ended: list[dict[str, Any]] = []
        kills = 0

        def disturb(child: int) -> None:
            if kills < wanted:
                time.sleep(self._random.uniform(0, longest))
                os.kill(child, signal.SIGKILL)

        while kills < wanted or not ended:
            listed = self._listed(path)
            found, _, status = self._run(lambda: as_found(self.search(path)), disturb)
            kept = self._listed(path)
            assert listed.items() <= kept.items(), "a search that goes on measured again what was kept"
            if status == 0:
                ended.append(found)
                shutil.rmtree(path)
            else:
                assert os.WIFSIGNALED(status), "a killed search did not go on"
                kills += 1
        return ended, kills

    @staticmethod
    def _listed(path: Path) -> dict[str, int]:
        """Return the plans that the list of a search names, and when each was written: all can be read."""
        if not (path / "search.json").exists():
            return {}
        listed = [path / each["plan"] for each in json.loads((path / "search.json").read_text())["candidates"]]
        for plan in listed:
            octavo.QuantizationPlan.load(plan)
        return {plan.name: plan.stat().st_mtime_ns for plan in listed}


def as_found(result: SearchResult) -> dict[str, Any]:
    """Return what a search found, as JSON: what it measured, each with its plan's text, and the front."""
    measured = [each for each in result.candidates if each.metric is not None]
    plans: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for each in measured:
            each.plan.save(Path(folder) / "plan.json")
            text = (Path(folder) / "plan.json").read_text()
            plans.append(re.sub(r'"seconds": [0-9.e-]+', "", text))  # they alone differ from run to run
    rows = [{**row, "plan": ""} for row in result.to_json()["candidates"][: len(measured)]]
    return {"measured": rows, "plans": plans, "front": [each.name for each in result.front]}


def searches(searching: Searching, *, interruptions: int, kills: int) -> Outcome:
    """Run all of them."""
    first, longest = searching.undisturbed()
    again, seconds = searching.undisturbed()
    returned: list[int] = []
    duration, ended = min(longest, seconds), 0
    while len(returned) < interruptions:
        part = duration / interruptions
        found = searching.interrupted(len(returned) * part, (len(returned) + 1) * part)
        count = len(found["measured"])
        assert found["measured"] == first["measured"][:count], "a search that got SIGINT measured something else"
        assert found["plans"] == first["plans"][:count]
        if found["finished"]:
            ended += 1
            duration *= 0.95  # the two were slower than most
        else:
            returned.append(count)
    after, killed = searching.killed(kills, longest)
    return Outcome(
        seconds=min(longest, seconds),
        candidates=len(first["measured"]),
        front=len(first["front"]),
        same_twice=first == again,
        returned_after=returned,
        ended_before=ended,
        kills=killed,
        same_after_kills=all(found == first for found in after),
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interruptions", type=int, default=20, help="searches that get SIGINT (default: 20)")
    parser.add_argument("--kills", type=int, default=5, help="of searches that go on each time (default: 5)")
    parser.add_argument("--candidates", type=int, default=8, help="of each search at most (default: 8)")
    parser.add_argument("--plain", action="store_true", help="without corrections, which are most of the time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of it there, too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        recipe = PLAIN if options.plain else octavo.Recipe()
        with np.load(DATA / "digits.npz") as digits:
            samples = digits["images"][:64, None].astype(np.float32) / 16
        model, candidates = octavo.load(DATA / "digits.onnx"), options.candidates
        searching = Searching(model, samples, Path(folder), candidates=candidates, recipe=recipe, seed=options.seed)
        outcome = searches(searching, interruptions=options.interruptions, kills=options.kills)
    print(markdown_table(("searches", "", "found"), outcome.rows()))
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
    return 0 if outcome.same_twice and outcome.same_after_kills else 1


if __name__ == "__main__":
    sys.exit(main())
