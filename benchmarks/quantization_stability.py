"""By how much the quality of Octavo's default depends on which samples it is calibrated on, and in which order.

    python benchmarks/quantization_stability.py                                   every small network, ten choices, all shuffled
    python benchmarks/quantization_stability.py --networks resnet8 --choices 6 --limit 100

Each choice takes 64 of the calibration samples of `quantization_quality`, in an order of its own; --orders keeps one choice and
shuffles it. The outputs of the compiled model are compared with the float model's on the same other samples each time. A line for
each choice: SQNR in dB, that of plain min-max, seconds, and the steps that were kept; then a table of the spread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.numerics.statistics.metrics import sqnr_db
from octavo.profiling.kept_samples import KEEP_SAMPLES
from octavo.quantizer.quantize_graph import quantize_graph
from quality_networks import NETWORKS
from quantization_quality import Evaluation, octavo_input, octavo_run

CHOSEN = 64
SMALL = ("dscnn", "resnet8", "wake_words", "kwt1", "mobilenet_v1_0.25", "squeezenet", "mobilenet_v2")


def found(evaluation: Evaluation, places: list[int], *, plain: bool) -> tuple[float, float | None, float, str]:
    """Return the dB of the default, of plain min-max where that is asked for, seconds, and the steps that were kept."""
    network = evaluation.network
    model = octavo.load(network.path if network.path.suffix == ".tflite" else evaluation.source)
    feeds = [octavo_input(evaluation.calibration[place]) for place in places]
    profile = octavo.profile(model, feeds, keep_samples=KEEP_SAMPLES)
    start = time.perf_counter()
    quantized = octavo.quantize(model, profile)
    seconds = time.perf_counter() - start

    def db(made: octavo.Model) -> float:
        outputs = network.outputs(octavo_run(made), evaluation.feeds)
        return float(sqnr_db(evaluation.expected.astype(np.float64), outputs.astype(np.float64)))

    kept = [f"{each.step} {each.gain_db or 0:.2f}" for each in quantized.plan.journal.entries if each.kept]
    return db(quantized), db(quantize_graph(model, profile)) if plain else None, seconds, ", ".join(kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = partial(str.split, sep=",")
    parser.add_argument("--networks", type=names, default=list(SMALL), help=f"comma-separated: {', '.join(NETWORKS)}")
    parser.add_argument("--choices", type=int, default=10, help="how many choices of samples (default: 10)")
    parser.add_argument("--first", type=int, default=0, help="number of the first (default: 0)")
    parser.add_argument("--orders", action="store_true", help="shuffle one choice in place of choosing")
    parser.add_argument("--plain", action="store_true", help="plain min-max, too")
    parser.add_argument("--limit", type=int, help="samples to evaluate on (default: all)")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for name in options.networks:
        with tempfile.TemporaryDirectory() as folder:
            evaluation = Evaluation(name, Path(folder), limit=options.limit)
            known: list[float] = []
            for number in range(options.first, options.first + options.choices):
                count = len(evaluation.calibration)
                rng, chosen = np.random.default_rng(number), min(CHOSEN, count)
                fixed = np.random.default_rng(0).permutation(count)[:chosen]
                places = rng.permutation(fixed) if options.orders else rng.permutation(count)[:chosen]
                db, plain, seconds, kept = found(evaluation, places.tolist(), plain=options.plain)
                known.append(db)
                beside = "" if plain is None else f" (plain {plain:.2f})"
                print(f"{name} {number}: {db:.2f} dB{beside}, {seconds:.1f} s: {kept}", flush=True)
            rows.append((name, *(f"{each:.2f}" for each in (min(known), max(known), max(known) - min(known)))))
    print(markdown_table(("network", "least dB", "most dB", "spread"), rows))


if __name__ == "__main__":
    main()
