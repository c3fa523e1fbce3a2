"""One data set profiled in every way: in one stream, in 13 shuffled shards, on 2 threads, and on Ray with a worker killed midway.

    python benchmarks/profile_bytes.py                          a small network, 200 samples
    python benchmarks/profile_bytes.py --model m.onnx --samples 100

Prints the SHA-256 of each profile's files; all must be equal. The Ray cluster is a local one of two workers; without Ray that
line is left out, and says so.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import reduce
from itertools import count
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.ir.graph.inputs import input_specs
from octavo.profiling import samples_path
from octavo.profiling.cluster import profile_on_ray

PATIENCE = 40  # looks for a busy worker before the next sample
SHARDS = 13


def small_network(path: Path) -> None:
    """Write a convolution, a ReLU and a pooling over 3x16x16."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32), "w")
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"]),
    ]
    shapes = {"x": (1, 3, 16, 16), "y": (1, 8, 1, 1)}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "small", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


def samples_of(model: octavo.Model, wanted: int) -> np.ndarray:
    """Return random samples of magnitudes that differ, a few of them with NaN or infinity."""
    (spec,) = input_specs(model)
    random = np.random.default_rng(1)
    samples = random.standard_normal((wanted, *spec.shape[1:])).astype(np.float32)
    samples *= np.exp2(np.arange(wanted) % 7 - 3).astype(np.float32).reshape(-1, *(1 for _ in spec.shape[1:]))
    samples.reshape(wanted, -1)[wanted // 3, 5] = np.nan
    samples.reshape(wanted, -1)[wanted // 2, 0] = np.inf
    return samples


def processes() -> dict[int, tuple[int, str]]:
    """Return parent and command line of every process."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            found[int(folder.name)] = parent, (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, ValueError, IndexError):
            continue
    return found


def busy_workers() -> list[int]:
    """Return the workers of our own cluster that are profiling: Ray names a process by what it does."""
    known = processes()

    def is_ours(process: int) -> bool:
        while process in known:
            if process == os.getpid():
                return True
            process = known[process][0]
        return False

    return sorted(pid for pid, (_, command) in known.items() if command.startswith("ray::_profile_part") and is_ours(pid))


class Killing:
    """Yields samples, and kills a worker in the middle of them, once one is at work."""

    def __init__(self, samples: np.ndarray) -> None:
        self.samples = samples
        self.killed = 0

    def __iter__(self) -> Iterator[np.ndarray]:
        for number, sample in enumerate(self.samples):
            if not self.killed and number >= len(self.samples) // 3:
                self.kill()
            yield sample[np.newaxis]

    def kill(self) -> None:
        """Wait for a worker, for a while: those that start are not at work yet, those that have done all they got are no more."""
        for _ in range(PATIENCE):
            for worker in busy_workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                self.killed += 1
                return
            time.sleep(0.05)


def on_ray(path: Path, samples: np.ndarray) -> tuple[octavo.Profile, int]:
    """Profile on a local cluster of two workers, which ends with this process; return how many were killed, too."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    killing = Killing(samples)
    return profile_on_ray(path, killing, samples_per_task=4), killing.killed


def saved(profile: octavo.Profile) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profile.save(path)
        return hashlib.sha256(path.read_bytes() + samples_path(path).read_bytes()).hexdigest()


def digests(path: Path, wanted: int) -> dict[str, str]:
    """Return the digest of each way's profile, by its name."""
    model = octavo.load(path)
    samples = samples_of(model, wanted)
    found = {"1 stream": saved(octavo.profile(model, samples))}
    shuffled = np.random.default_rng(2).permutation(wanted)
    shards = [octavo.profile(model, samples[part], numbers=part) for part in np.array_split(shuffled, SHARDS)]
    found[f"{SHARDS} shuffled shards"] = saved(reduce(octavo.Profile.merge, shards))
    turned = octavo.profile(model, samples[::-1], numbers=count(wanted - 1, -1), threads=2)
    found["2 threads, backwards"] = saved(turned)
    if importlib.util.find_spec("ray") is not None:
        profile, killed = on_ray(path, samples)
        assert killed == 1, f"{killed} workers were killed"
        found["Ray, two workers, one killed"] = saved(profile)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="model of one float input (default: a small network)")
    parser.add_argument("--samples", type=int, default=200)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model or Path(folder) / "small.onnx"
        if args.model is None:
            small_network(path)
        found = digests(path, args.samples)
    for name, digest in found.items():
        print(f"{digest}  {name}")
    if importlib.util.find_spec("ray") is None:
        print("Ray is not installed: not profiled on a cluster")
    return 0 if len(set(found.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
