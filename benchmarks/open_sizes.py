"""One executable for any size: how fast is it beside one for each size, and beside ONNX Runtime? Are its results the same bytes?

    python benchmarks/open_sizes.py MODEL.onnx --size batch=1,sequence=8 --size batch=1,sequence=128 [--int8] [--threads 2]
    python benchmarks/open_sizes.py MODEL.onnx --random 50 [--range 32..96] [--shape images=N,3,H,W]

A model whose dimensions are open is compiled once for all sizes and once for each. A line a size: milliseconds of the open and of
the static executable and of ONNX Runtime's session with open sizes, measured in turn, medians; whether bytes are equal. At the
end compile times, CPU time of all threads without the cache of machine code, and file sizes. With --int8 the model is quantized
first, on random samples of many sizes. --random checks the bytes alone, at so many sizes: of --range, or from the least size on
that the model takes; batches, whose names begin with b or N, are small. Of a size that is a multiple of a dimension (32*H_32)
--size says the dimension, --range the size. --shape opens dimensions that the file fixes; of such a model, and of a .tflite file,
there is no session of ONNX Runtime.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm

import octavo
from octavo.cli.options import named_shape
from octavo.ir.graph.fixed_sizes import at_sizes
from octavo.ir.graph.inputs import input_specs
from octavo.runtime.code_cache import LOCATION_VARIABLE
from octavo.runtime.inputs import InputSpec
from octavo.runtime.shapes import Line, dimension_places, evaluated

Arrays = dict[str, npt.NDArray[Any]]
ROUNDS, ENOUGH = 15, 0.02
SAMPLES, SPAN = 24, 46


def inputs_of(specs: tuple[InputSpec, ...], sizes: Mapping[str, int], seed: int) -> Arrays:
    """Return random inputs of these sizes: small whole numbers, masks of ones, and normal floats."""
    rng = np.random.default_rng(seed)
    made: Arrays = {}
    for spec in specs:
        shape, kind = evaluated(spec.shape, sizes), np.dtype(spec.dtype).kind
        if kind == "f":
            made[spec.source_name] = rng.standard_normal(shape).astype(spec.dtype)
        elif "mask" in spec.source_name:
            made[spec.source_name] = np.ones(shape, spec.dtype)
        else:
            made[spec.source_name] = rng.integers(0, 8, shape).astype(spec.dtype)
    return made


def in_turn(
    calls: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = math.inf,
    are_warm: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median milliseconds of calls that are made one after the other, each as often as takes some time.

    Long ones are timed fewer times, two at least, where all would take more than `seconds`. `are_warm`: each was called before.
    """
    counts: dict[str, int] = {}
    found: dict[str, list[float]] = {}
    for name, call in calls.items():
        if not are_warm:
            call()
        once = _seconds(call, 1, clock)
        counts[name] = max(1, int(ENOUGH / max(once, 1e-6)))
        found[name] = [once] if counts[name] == 1 else []
    a_round = sum(counts[name] * times[0] if times else ENOUGH for name, times in found.items())
    for _ in range(max(1 if all(found.values()) else 2, int(min(ROUNDS, seconds / a_round)))):
        for name, call in calls.items():
            found[name].append(_seconds(call, counts[name], clock))
    return {name: float(np.median(times)) * 1e3 for name, times in found.items()}


def _seconds(call: Callable[[], Any], times: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times


class Subject:
    """A model of open sizes, compiled for all of them, and what makes it for one."""

    def __init__(
        self,
        path: Path,
        threads: int,
        span: tuple[int, int] | None,
        *,
        shapes: Mapping[str, tuple[int | str, ...]],
        is_int8: bool,
    ) -> None:
        self._threads, self._span = threads, span
        model: Any = octavo.load(path, shapes=shapes)
        specs = input_specs(model)  # not of an executable: kernels that were written lately are written faster
        self._lines = {name: place.line for name, place in dimension_places([spec.shape for spec in specs]).items()}
        self._model = model
        if is_int8:
            rng = np.random.default_rng(0)
            samples = [inputs_of(specs, self.random_sizes(rng), number) for number in range(SAMPLES)]
            model = octavo.quantize(model, octavo.profile(model, samples))
        self._model = model
        self.static(self.random_sizes(np.random.default_rng(2)))  # what a process's first compilation imports is no cost of sizes
        start = time.process_time()
        self.open = octavo.compile(model, threads=threads)
        self.seconds = time.process_time() - start

    def random_sizes(self, rng: np.random.Generator) -> dict[str, int]:
        """Return dimensions such that sizes are of the range; batches are small."""
        return {
            name: int(rng.integers(1, 4) if name[0] in "bN" else rng.integers(*self._dimensions(name, line), endpoint=True))
            for name, line in self._lines.items()
        }

    def _dimensions(self, name: str, line: Line) -> tuple[int, int]:
        """Return the least and the greatest dimension of which a size of the range is made: a multiple of 32, say."""
        low, high = self._model.sizes.get(name, (1, None))
        low, most = max(low, 1), max(low, 1) + SPAN // line.factor
        if self._span is not None:
            least, greatest = ((size - line.offset) / line.factor for size in self._span)
            low, most = max(math.ceil(least), low), max(math.floor(greatest), low)
        return low, most if high is None else min(most, high)

    def static(self, sizes: Mapping[str, int]) -> tuple[Any, float]:
        """Return the executable of one size, and the seconds of CPU time that it took to compile."""
        functions = at_sizes(dict(self._model.module.functions_items()), sizes)
        model = replace(self._model, module=tvm.IRModule(functions), sizes={})
        start = time.process_time()
        return octavo.compile(model, threads=self._threads), time.process_time() - start


def file_bytes(executable: Any) -> int:
    """Return the size of an executable's file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "executable"
        executable.save(path)
        return path.stat().st_size


def are_equal(one: Any, other: Any, inputs: Arrays) -> bool:
    """Return whether two executables give the same bytes."""
    results = [list(each(inputs).values()) for each in (one, other)]
    return all(a.tobytes() == b.tobytes() and a.shape == b.shape for a, b in zip(*results, strict=True))


def onnxruntime_session(path: Path, threads: int) -> Any:
    """Return ONNX Runtime's session of a file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def show_speed(subject: Subject, session: Any, given: list[dict[str, int]]) -> bool:
    """Print the table; return whether all bytes are equal."""
    seconds, largest, same = [], 0, True
    for sizes in given:
        static, taken = subject.static(sizes)
        seconds.append(taken)
        largest = max(largest, file_bytes(static))
        inputs = inputs_of(subject.open.inputs, sizes, 1)
        equal = are_equal(subject.open, static, inputs)
        same &= equal
        calls = {"open": subject.open.bind(inputs).run, "static": static.bind(inputs).run}
        if session is not None:
            calls["ort"] = lambda inputs=inputs: session.run(None, inputs)
        times = in_turn(calls)
        said = ", ".join(f"{name}={size}" for name, size in sizes.items())
        peer = f"ONNX Runtime {times['ort']:.3f} ({times['ort'] / times['open']:.2f} times), " if session is not None else ""
        print(
            f"{said}: open {times['open']:.3f} ms, static {times['static']:.3f} "
            f"({times['static'] / times['open']:.2f} of its speed), {peer}bytes {'equal' if equal else 'DIFFER'}",
            flush=True,
        )
    print(
        f"compile: open {subject.seconds:.1f} s, static {np.median(seconds):.1f} s ({subject.seconds / np.median(seconds):.2f} "
        f"times); file: {file_bytes(subject.open) / largest:.2f} times the static one's"
    )
    return same


def main() -> int:
    """Run the command line; 1 where bytes differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--size", action="append", default=[], help="NAME=N,NAME=N ...: all open dimensions")
    parser.add_argument("--random", type=int, default=0, help="check the bytes at so many random sizes")
    parser.add_argument("--int8", action="store_true", help="quantize first")
    parser.add_argument("--shape", action="append", default=[], type=named_shape, metavar="INPUT=D,D...", help="of an input")
    parser.add_argument("--range", help="of random sizes: LEAST..GREATEST")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    os.environ[LOCATION_VARIABLE] = "off"
    least, _, greatest = (args.range or "").partition("..")
    span, shapes = (int(least), int(greatest)) if greatest else None, dict(args.shape)
    subject = Subject(args.model, args.threads, span, shapes=shapes, is_int8=args.int8)
    given = [{name: int(size) for name, size in (each.split("=") for each in text.split(","))} for text in args.size]
    has_peer = given and not shapes and args.model.suffix == ".onnx"
    session = onnxruntime_session(args.model, args.threads) if has_peer else None
    same = show_speed(subject, session, given) if given else True
    rng, differing = np.random.default_rng(1), []
    for number in range(args.random):
        sizes = subject.random_sizes(rng)
        static, _ = subject.static(sizes)
        if not are_equal(subject.open, static, inputs_of(subject.open.inputs, sizes, number)):
            differing.append(sizes)
    if args.random:
        print(
            f"{args.random} random sizes: {args.random - len(differing)} equal to the byte"
            + "".join(f"\n  {each}" for each in differing)
        )
    return 0 if same and not differing else 1


if __name__ == "__main__":
    sys.exit(main())
