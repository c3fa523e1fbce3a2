"""Resident memory before and after many calls of a compiled model: bound calls, and calls with fresh inputs.

python benchmarks/steady_state.py m.tflite --calls 10000 --threads 2
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

import octavo
from octavo.ir.graph.inputs import random_inputs

WARM_UP = 200


def resident_kib() -> int:
    """Memory of this process that lies in RAM, without what it shares with its files, in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def grown_by(call: Callable[[], object], calls: int) -> int:
    """KiB that the process holds more after `calls` calls than after a few."""
    for _ in range(WARM_UP):
        call()
    before = resident_kib()
    for _ in range(calls):
        call()
    return resident_kib() - before


def growth_kib(executable: octavo.Executable, calls: int, inputs: dict[str, np.ndarray]) -> dict[str, int]:
    """KiB by which `calls` calls of each kind grew the process."""
    bound = executable.bind(inputs)
    kinds = {"bound, outputs dropped": bound.run, "bound": bound, "call": lambda: executable(inputs)}
    return {kind: grown_by(call, calls) for kind, call in kinds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    model = octavo.load(options.model)
    executable = octavo.compile(model, threads=options.threads)
    for kind, grown in growth_kib(executable, options.calls, random_inputs(model)).items():
        print(f"{kind:24} {options.calls} calls: {grown:+d} KiB")


if __name__ == "__main__":
    main()
