"""Two threads while another process holds a core: Octavo on one and on two, its peers on two, in alternating rounds.

    python benchmarks/busy_core.py m.tflite --against litert,openvino

A cell is the median of one inference in ms, then the time that nine of ten stay below. The other process computes on one core
without a pause and never leaves it, so a call's threads have that core half of the time at best. Needs at least two cores.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import octavo
from octavo.compiler.text_table import markdown_table
from octavo.evaluation.bench.peers import PEERS, PeerTask
from octavo.evaluation.bench.timing import Timing, time_alternating
from octavo.ir.graph.inputs import random_inputs

THREADS = 2
HOLDING = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"


@contextmanager
def held(core: int | None) -> Iterator[None]:
    """Let another process hold a core meanwhile; None: no process."""
    if core is None:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", HOLDING, str(core)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def contenders(path: Path, peers: list[str]) -> dict[str, Callable[[], object]]:
    """Return one inference of each, prepared."""
    model = octavo.load(path)
    inputs = random_inputs(model)
    calls: dict[str, Callable[[], object]] = {
        f"octavo, {threads}": octavo.compile(model, threads=threads).bind(inputs).run for threads in (1, THREADS)
    }
    for peer in peers:
        task = PeerTask(path=path, model=model, inputs=inputs, threads=THREADS)
        calls[f"{peer}, {THREADS}"] = PEERS[peer].prepare(task).call
    return calls


def cell(timing: Timing) -> str:
    """Median and the time of nine of ten, in ms."""
    nine_of_ten = 1e3 * statistics.quantiles(timing.seconds, n=10)[-1] if len(timing.seconds) > 1 else timing.median_ms
    return f"{timing.median_ms:.3f}, {nine_of_ten:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--against", default="", help="peers, e.g. litert,openvino")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each contender and row")
    options = parser.parse_args()
    calls = contenders(options.model, [name for name in options.against.split(",") if name])
    rows: list[tuple[str, ...]] = []
    for core in (None, *sorted(os.sched_getaffinity(0))[:2]):
        with held(core):
            timings = time_alternating(calls, seconds=options.seconds)
        rows.append(("none" if core is None else f"core {core}", *(cell(timings[name]) for name in calls)))
    print(markdown_table(("held", *calls), rows, numbers=tuple(range(1, len(calls) + 1))))


if __name__ == "__main__":
    main()
