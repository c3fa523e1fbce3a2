"""A decoder's session over many steps: is memory flat, how long takes a step, are its bytes those of calls without a session?

    python benchmarks/session_steps.py DECODER.onnx [--steps 1000] [--int8] [--compare 200]

States that grow by rows are carried, all other inputs fed anew. A line for each tenth of the steps: rows that the states hold,
memory of the process in RAM, and the median of a step's milliseconds. The first steps, --compare of them, are made without a
session, too, from whole states; at the end it says at how many all outputs and states are the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import octavo
from octavo.runtime.size import names_in
from open_sizes import SAMPLES, inputs_of
from steady_state import resident_kib

PARTS = 10


def quantized(model: Any, specs: Any) -> Any:
    """Return the model in int8, by random samples of many sizes."""
    rng = np.random.default_rng(0)
    names = sorted(names_in(dim for spec in specs for dim in spec.shape))
    samples = [inputs_of(specs, {name: int(rng.integers(1, 48)) for name in names}, seed) for seed in range(SAMPLES)]
    return octavo.quantize(model, octavo.profile(model, samples))


def main() -> int:
    """Run the command line; 1 where bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--compare", type=int, default=200)
    parser.add_argument("--int8", action="store_true", help="quantize first")
    args = parser.parse_args()
    model: Any = octavo.load(args.model)
    executable = octavo.compile(model, threads=1)
    if args.int8:
        executable = octavo.compile(quantized(model, executable.inputs), threads=1)
    inputs, outputs, states = executable.inputs, executable.outputs, executable.description.states
    steps: int = args.steps
    if not states:
        parser.error(f"{args.model} has no output that extends an input by rows")
    carry = {outputs[each.output].source_name: inputs[each.input].source_name for each in states}
    fed = [spec for spec in inputs if spec.source_name not in carry.values()]
    names = names_in(dim for spec in inputs for dim in spec.shape)
    grown = {each.dimension for each in states}

    def feed(step: int) -> dict[str, Any]:
        return inputs_of(tuple(fed), dict.fromkeys(names, 1) | dict.fromkeys(grown, step), step)

    equal, start = 0, inputs_of(inputs, dict.fromkeys(names, 1) | dict.fromkeys(grown, 0), 0)
    whole = {name: start[name] for name in carry.values()}
    with executable.session(carry=carry, capacity=dict.fromkeys(grown, steps)) as session:
        times: list[float] = []
        for step in range(steps):
            data = feed(step)
            begun = time.perf_counter()
            given = session(data)
            times.append((time.perf_counter() - begun) * 1e3)
            if step < args.compare:
                expected = executable({**data, **whole})
                held = session.state()
                same = all(given[name].tobytes() == expected[name].tobytes() for name in given)
                equal += same and all(held[name].tobytes() == expected[output].tobytes() for output, name in carry.items())
                whole = {name: expected[output] for output, name in carry.items()}
            if (step + 1) % max(steps // PARTS, 1) == 0:
                part = times[-max(steps // PARTS, 1) :]
                print(f"{session.length:6} rows: {resident_kib() / 1024:7.1f} MB, {np.median(part):.3f} ms a step", flush=True)
    compared = min(args.compare, steps)
    print(f"bytes equal to calls without a session: {equal} of {compared} steps")
    return 0 if equal == compared else 1


if __name__ == "__main__":
    sys.exit(main())
