"""What profiling costs beside plain inference, on mobilenet_v2_1.0_224_fp32.onnx: time and memory, one thread each.

    python benchmarks/profiling.py                     100 images timed; memory after 100 and after 1,000 samples
    python benchmarks/profiling.py --images 20 --samples 200

Prints the time of an image in our float inference, while profiling with all statistics on, and in ONNX Runtime (alternating,
image by image), the ratios, and the resident memory of processes that only infer and only profile. Times are those of the calling
thread, so that what else runs on the machine disturbs them less; `--wall` takes the clock instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import onnxruntime

import datasets
import octavo
from octavo.profiling import Accumulator
from octavo.profiling.profile import profiler

LIMITS = {"octavo": 1.5, "onnxruntime": 2.0, "megabytes": 150.0}
MODEL = "mobilenet_v2_1.0_224_fp32.onnx"


def model_file() -> Path:
    return datasets.shared_folder() / "models" / "onnx" / MODEL


def stream(count: int) -> Iterator[np.ndarray]:
    """Yield `count` images, over and over the same few."""
    once, _ = datasets.images(datasets.plus_minus_one, calibration=True, limit=20)
    return islice(cycle(once), count)


def timings(images: int, clock: Callable[[], float]) -> dict[str, float]:
    """Return the median milliseconds of one image for each of the three, run in turns."""
    model = octavo.load(model_file())
    executable = octavo.compile(model)
    instrumented, observed = profiler(model, 1)
    accumulator = Accumulator(model, instrumented, observed.attach)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model_file(), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    call = executable.bind(next(stream(1)))

    def infer(image: np.ndarray, _: int) -> None:
        next(iter(call.inputs.values()))[:] = image
        call.run()

    runs: dict[str, Callable[[np.ndarray, int], object]] = {
        "float": infer,
        "profile": lambda image, number: accumulator.fold([image], number=number),
        "onnxruntime": lambda image, _: session.run(None, {name: image}),
    }
    measured: dict[str, list[float]] = {label: [] for label in runs}
    for number, image in enumerate(stream(images + 3)):
        for label, run in runs.items():
            start = clock()
            run(image, number)
            measured[label].append(clock() - start)
    assert accumulator.profile().samples == images + 3
    return {label: float(np.median(values[3:])) * 1e3 for label, values in measured.items()}


def resident() -> float:
    """Return this process's resident memory in MB."""
    line = next(line for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1000


def memory(kind: str, samples: int) -> list[float]:
    """Return the resident MB of this process after a tenth of the samples and after all of them."""
    model = octavo.load(model_file())
    seen: list[float] = []
    if kind == "float":
        executable = octavo.compile(model)
        call = executable.bind(next(stream(1)))
        for number, image in enumerate(stream(samples), start=1):
            next(iter(call.inputs.values()))[:] = image
            call.run()
            if number in (samples // 10, samples):
                seen.append(resident())
        return seen

    def note(done: int) -> None:
        if done in (samples // 10, samples):
            seen.append(resident())

    octavo.profile(model, stream(samples), progress=note)
    return seen


def in_a_process(kind: str, samples: int) -> list[float]:
    """Return `memory` of a process of its own."""
    command = [sys.executable, __file__, "--memory", kind, "--samples", str(samples)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100, help="images timed (default 100)")
    parser.add_argument("--samples", type=int, default=1000, help="samples for memory, at least 10 (default 1000)")
    parser.add_argument("--wall", action="store_true", help="time by the clock, for a machine that does nothing else")
    parser.add_argument("--memory", choices=("float", "profile"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        print(json.dumps(memory(args.memory, args.samples)))
        return 0
    ms = timings(args.images, time.perf_counter if args.wall else time.thread_time)
    ratios = {"octavo": ms["profile"] / ms["float"], "onnxruntime": ms["profile"] / ms["onnxruntime"]}
    print(f"median of {args.images} images: float {ms['float']:.2f} ms, profile {ms['profile']:.2f} ms", end="")
    print(f", ONNX Runtime {ms['onnxruntime']:.2f} ms")
    print(f"profile / our float: {ratios['octavo']:.2f} (at most {LIMITS['octavo']})")
    print(f"profile / ONNX Runtime's float: {ratios['onnxruntime']:.2f} (at most {LIMITS['onnxruntime']})")
    plain, profiling = (in_a_process(kind, args.samples) for kind in ("float", "profile"))
    above = profiling[-1] - min(plain)
    tenth = args.samples // 10
    print(f"resident after {tenth} and {args.samples} samples: float {plain[0]:.0f} and {plain[1]:.0f} MB", end="")
    print(f", profile {profiling[0]:.0f} and {profiling[1]:.0f} MB")
    print(f"profile above float: {above:.0f} MB (at most {LIMITS['megabytes']:.0f})")
    kept = ratios["octavo"] <= LIMITS["octavo"] and ratios["onnxruntime"] <= LIMITS["onnxruntime"]
    return 0 if kept and above <= LIMITS["megabytes"] else 1


if __name__ == "__main__":
    sys.exit(main())
