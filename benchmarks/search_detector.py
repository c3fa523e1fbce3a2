"""From plain min-max to nearly the float model's average precision: `octavo.search` on YOLOX-nano and labelled scenes.

    python benchmarks/search_detector.py
    python benchmarks/search_detector.py --min-max --judge calibration --max-drop 2 --seconds 300 --json search.json

The profile is of 20 scenes; `evaluate` is the average precision at 50% overlap on the scenes behind them, and a candidate may
lose --max-drop points of the float model's. One row for the float model, for plain min-max (nothing evened out, nothing
corrected), and for each candidate in the order of the search: what stays float, average precision on the evaluated scenes in
percent, and the cost as a share of the float model's; the best is marked. With --judge calibration the search sees the scenes of
calibration alone; with --min-max each candidate is plain but for its ranges and for what stays float. Then what the best is worth
on both sets of scenes, and what the search took: wall time, and CPU time of all threads.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import datasets
import octavo
from average_precision import average_precision
from octavo.compiler.text_table import markdown_table
from octavo.quantizer.search import SearchResult
from quality_networks import SCENE, SCENES_TO_CALIBRATE
from quantization_quality import Evaluation, octavo_input

NETWORK = "yolox_nano"
SETS = ("others", "calibration")
NAMED = 6
"""Of the tensors that stay float those that the table names."""
MIN_MAX = octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Average precision of the float model, of plain min-max and of the best candidate by set of scenes, in percent."""

    result: SearchResult
    precision: dict[str, dict[str, float]]
    wall_seconds: float
    cpu_seconds: float

    def drop(self, which: str) -> float:
        """Return by how many points the best is below the float model."""
        return self.precision["float"][which] - self.precision["best"][which]


class Detector:
    """The network and its scenes; `limit` takes the first of each set."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        evaluation = Evaluation(NETWORK, folder, limit=limit)
        self.model, self.profile, _ = evaluation.profiled
        self._network = evaluation.network
        boxes = datasets.scene_boxes(size=SCENE)
        feeds = {"others": evaluation.feeds, "calibration": evaluation.calibration[:limit]}
        truth = {"others": boxes[SCENES_TO_CALIBRATE:], "calibration": boxes}
        self._sets = {name: (feeds[name], truth[name][: len(feeds[name])]) for name in SETS}

    def precision(self, executable: octavo.Executable, which: str) -> float:
        """Return the average precision of an executable, in percent."""
        feeds, truth = self._sets[which]
        outputs = self._network.outputs(lambda feed: list(executable(octavo_input(feed)).values()), feeds)
        return 100 * average_precision(outputs, truth, size=SCENE)

    def on_all(self, model: octavo.Model) -> dict[str, float]:
        """Return the average precision of a model on each set."""
        executable = octavo.compile(model)
        return {name: self.precision(executable, name) for name in SETS}

    def search(self, scenes: str, max_drop: float, seconds: float, candidates: int, recipe: octavo.Recipe) -> Found:
        """Search, and measure what it found."""
        wall, cpu = time.perf_counter(), time.process_time()
        result = octavo.search(
            self.model,
            self.profile,
            evaluate=lambda executable: self.precision(executable, scenes),
            max_drop=max_drop,
            seconds=seconds,
            candidates=candidates,
            recipe=recipe,
        )
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        models = {
            "float": self.model,
            "min-max": octavo.quantize(self.model, self.profile, recipe=MIN_MAX),
            "best": octavo.quantize(self.model, plan=result.best.plan),
        }
        precision = {name: self.on_all(model) for name, model in models.items()}
        return Found(result=result, precision=precision, wall_seconds=wall, cpu_seconds=cpu)


def rows(found: Found, scenes: str) -> list[tuple[str, ...]]:
    """Return the rows of the table."""
    shown = [(name, "", f"{found.precision[name][scenes]:.2f}", "") for name in ("float", "min-max")]
    for each in found.result.candidates:
        more = len(each.float_tensors) - NAMED
        floats = ", ".join(each.float_tensors[:NAMED]) + (f" and {more} more" if more > 0 else "")
        kept = f"{len(each.float_tensors)} float: {floats}" if floats else ""
        said = ", ".join(step for step in (*each.steps[: -1 if floats else None], kept) if step) or "plain"
        name = f"{each.name} (best)" if each is found.result.best else each.name
        metric = "" if each.metric is None else f"{each.metric:.2f}"
        shown.append((name, said, metric, f"{each.cost:.3f}"))
    return shown


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judge", choices=SETS, default=SETS[0], help="scenes that the search sees (default: others)")
    parser.add_argument("--max-drop", type=float, default=1.0, help="points that may be lost (default: 1)")
    parser.add_argument("--seconds", type=float, default=600, help="that the search may take (default: 600)")
    parser.add_argument("--candidates", type=int, default=24, help="to try at most (default: 24)")
    parser.add_argument("--min-max", action="store_true", help="even out and correct nothing: ranges and floats alone must do")
    parser.add_argument("--limit", type=int, help="scenes of each set (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there, too")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        detector = Detector(Path(folder), options.limit)
        recipe = MIN_MAX if options.min_max else octavo.Recipe()
        found = detector.search(options.judge, options.max_drop, options.seconds, options.candidates, recipe)
    print(markdown_table(("model", "change", "AP50 %", "cost"), rows(found, options.judge), numbers=(2, 3)))
    worth = [(name, *(f"{each[which]:.2f}" for which in SETS)) for name, each in found.precision.items()]
    print(markdown_table(("AP50 %", *SETS), worth, numbers=(1, 2)))
    print(f"search: {found.wall_seconds:.0f} s, {found.cpu_seconds:.0f} s of CPU; finished: {found.result.finished}")
    if options.json is not None:
        seconds = {"wall_seconds": found.wall_seconds, "cpu_seconds": found.cpu_seconds}
        written = {"precision": found.precision, **seconds, **found.result.to_json()}
        options.json.write_text(json.dumps(written, indent=1), encoding="utf-8")
    return 0 if found.drop(options.judge) <= options.max_drop else 1


if __name__ == "__main__":
    sys.exit(main())
