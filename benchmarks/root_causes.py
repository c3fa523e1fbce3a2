"""What `octavo.root_causes` names first on real networks, what its table costs, and what `octavo.fix` brings on unseen samples.

    python benchmarks/root_causes.py                                              every network below, every recipe
    python benchmarks/root_causes.py --networks silero_vad --recipes default --rows 5 --json causes.json

Each network is calibrated on the samples of benchmarks/quality_networks.py and quantized by plain min-max, with the default but
for the limit that leaves roundings float which cost too much ("all integer", min_sqnr=None), and by default. Of each:

named first   the first rows of the table: source tensor, op, part, cause, and the gain that it expects of the remedy
CPU           seconds of all threads for the whole table
agreement     how often it decides as the float model does, in percent, and SQNR of the outputs, on samples that calibration never
              saw; the same of what `octavo.fix` makes of it, unless --no-fix
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.quantizer.causes import RootCause
from octavo.quantizer.plan.plan import QuantizedModel
from quality_networks import NETWORKS, agreement
from quantization_quality import Evaluation, octavo_input, octavo_run

RECIPES = {
    "min-max": octavo.Recipe(bias_correction=False, weight_rounding="nearest", equalization="none", min_sqnr=None),
    "all integer": octavo.Recipe(min_sqnr=None),
    "default": octavo.Recipe(),
}
CHOSEN = ("mobilenet_v2", "silero_vad", "kwt1", "resnet8")


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """How near outputs are to the float model's: agreement in percent, and dB."""

    agreement: float
    sqnr_db: float

    def __str__(self) -> str:
        """Return both."""
        return f"{self.agreement:.1f} / {self.sqnr_db:.2f}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One network by one recipe; `fixed`, and the remedies that were kept, where that was asked for."""

    network: str
    recipe: str
    rows: tuple[RootCause, ...]
    cpu_seconds: float
    quality: Quality
    fixed: Quality | None = None
    kept: tuple[str, ...] = ()


def measure(evaluation: Evaluation, recipe: str, *, fix: bool) -> Result:
    """Quantize by one recipe, and look for causes on the samples of calibration."""
    model, profile, _ = evaluation.profiled
    quantized = octavo.quantize(model, profile, recipe=RECIPES[recipe])
    batches = [octavo_input(feed) for feed in evaluation.calibration]
    start = time.process_time()
    rows = octavo.root_causes(model, quantized, batches)
    seconds = time.process_time() - start
    fixed, kept = None, ()
    if fix:
        found = octavo.fix(model, quantized, profile, recipe=RECIPES[recipe])
        fixed, kept = _quality(evaluation, found.quantized), tuple(entry.said for entry in found.entries if entry.kept)
    return Result(
        network=evaluation.name,
        recipe=recipe,
        rows=rows,
        cpu_seconds=seconds,
        quality=_quality(evaluation, quantized),
        fixed=fixed,
        kept=kept,
    )


def _quality(evaluation: Evaluation, quantized: QuantizedModel) -> Quality:
    outputs = evaluation.network.outputs(octavo_run(quantized), evaluation.feeds)
    return Quality(
        agreement=100 * agreement(evaluation.expected, outputs),
        sqnr_db=float(sqnr_db(evaluation.expected.astype(np.float64), outputs.astype(np.float64))),
    )


def cells(result: Result, rows: int) -> tuple[str, ...]:
    """Return one row of the table."""
    named = "; ".join(f"{_short(row)}, {row.part}: {row.cause}, {row.gain_db:.1f} dB" for row in result.rows[:rows])
    fixed = "" if result.fixed is None else f"{result.fixed} ({len(result.kept)} kept)"
    return result.network, result.recipe, named, f"{result.cpu_seconds:.1f}", str(result.quality), fixed


def _short(row: RootCause) -> str:
    """Return a tensor's name, the first of those that a TFLite converter joined, and the ops around it if the remedy has them."""
    around = re.search(r" \([\w., ]+( -> [\w., ]+)+\)", row.remedy)
    name = (row.source_name or str(row.id)).split(";")[0].removeprefix("/")
    return f"{name} ({row.op})" if around is None else f"{name}{around[0]}"


COLUMNS = ("network", "quantized", "named first", "CPU s", "agreement % / dB", "after fix")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(str.split, sep=",")
    parser.add_argument("--networks", type=names, default=list(CHOSEN), help=f"comma-separated: {', '.join(NETWORKS)}")
    parser.add_argument("--recipes", type=names, default=list(RECIPES), help=f"comma-separated: {', '.join(RECIPES)}")
    parser.add_argument("--limit", type=int, help="samples to evaluate on (default: all)")
    parser.add_argument("--rows", type=int, default=3, help="rows of each table to show (default: 3)")
    parser.add_argument("--no-fix", action="store_true", help="leave out what octavo.fix brings")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write whole tables there, too")
    options = parser.parse_args(arguments)
    for kind, known in (("networks", NETWORKS), ("recipes", RECIPES)):
        for name in getattr(options, kind):
            if name not in known:
                parser.error(f"--{kind}: {name!r} is none of {', '.join(known)}")
    results: list[Result] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            evaluation = Evaluation(name, Path(folder), limit=options.limit)
            found = [measure(evaluation, recipe, fix=not options.no_fix) for recipe in options.recipes]
        results += found
        print(markdown_table(COLUMNS, [cells(result, options.rows) for result in found]), flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps([asdict(result) for result in results], indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
