"""Profiling under SIGKILL: kills runs at random moments, looks at every file after each, resumes, and compares the final bytes.

python benchmarks/profile_kills.py --kills 200

A run is killed, resumed, killed again, until it ends; then the next begins, until so many were killed. After each kill: whatever
lies under the name of the checkpoint or of the profile must be a valid profile with the samples that it keeps, the checkpoint
must hold all but the last `--every` samples seen, and nothing but the temporary files of one write may lie beside it. What a run
that ended leaves must be the bytes of an undisturbed run, alone.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.profiling import Checkpoint, samples_path


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it all: kills that hit a running process, runs brought to their end, most samples that one kill lost."""

    kills: int
    finished: int
    most_lost: int
    temporary_left: int
    kills_without_checkpoint: int

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"{self.kills} kills ({self.kills_without_checkpoint} before the first checkpoint, {self.temporary_left} amid "
            f"a write); every file left was a valid profile; at most {self.most_lost} samples lost; {self.finished} runs "
            "ended, each with the bytes of the undisturbed run"
        )


def small_model() -> octavo.Model:
    """A convolution and a ReLU over 3x8x8."""
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32), "w")
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4, 8, 8))],
        [weight],
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
        return octavo.load(path)


def in_child(work: Callable[[], None]) -> int:
    """Fork a process that does `work` and leaves without cleaning up; return its id."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Killing:
    """One folder, one data set, and the runs over it."""

    def __init__(self, folder: Path, samples: int, every: int, seed: int) -> None:
        self.model = small_model()
        self.samples = np.random.default_rng(seed).standard_normal((samples, 3, 8, 8)).astype(np.float32)
        self.every = every
        self.random = random.Random(seed)
        self.folder = folder
        self.output = folder / "profile.json"
        self.checkpoint = folder / "profile.json.checkpoint"
        self.temporary = [
            file.with_name(f".{file.name}{ending}")
            for file in (self.output, self.checkpoint)
            for ending in (".tmp", ".samples.new", ".samples.new.tmp")
        ]
        self.seen = mmap.mmap(-1, 8)  # shared with the children: samples that the last of them had folded
        octavo.profile(self.model, self.samples).save(self.output)  # compiled once here, inherited by every child
        self.undisturbed = [path.read_bytes() for path in self.outputs()]
        self.remove_outputs()

    def outputs(self) -> list[Path]:
        return [self.output, samples_path(self.output)]

    def remove_outputs(self) -> None:
        for path in self.outputs():
            path.unlink()

    def run(self) -> None:
        """What `octavo profile --checkpoint N`, with --resume where there is a checkpoint, does."""

        def note(count: int) -> None:
            self.seen[:] = struct.pack("q", count)

        resume = self.checkpoint if self.checkpoint.exists() else None
        result = octavo.profile(
            self.model, self.samples, checkpoint=self.checkpoint, every=self.every, resume=resume, progress=note
        )
        Checkpoint(path=self.checkpoint, every=self.every).finish(result, self.output)

    def seconds(self) -> float:
        """How long one run takes in a child, from start to end; its result is compared too."""
        start = time.perf_counter()
        _, status = os.waitpid(in_child(self.run), 0)
        taken = time.perf_counter() - start
        assert status == 0, "the undisturbed run failed"
        self.check_finished()
        return taken

    def check_finished(self) -> None:
        """The output alone, with the bytes of the undisturbed run; it is removed for the next run."""
        assert set(os.listdir(self.folder)) == {path.name for path in self.outputs()}, os.listdir(self.folder)
        assert [path.read_bytes() for path in self.outputs()] == self.undisturbed, "the resumed run gave other bytes"
        self.remove_outputs()

    def held(self) -> int:
        """Samples of the checkpoint, which the next run need not run again."""
        if not self.checkpoint.exists():
            return 0
        checkpoint = octavo.Profile.load(self.checkpoint)
        assert checkpoint.kept_samples, "the checkpoint lost its samples"
        return checkpoint.samples

    def kills(self, wanted: int) -> Outcome:
        """Kill `wanted` running processes, each at a random moment of a run."""
        longest = self.seconds()
        killed = finished = most_lost = temporary_left = without = 0
        known = 0
        while killed < wanted:
            self.seen[:] = struct.pack("q", known)
            child = in_child(self.run)
            time.sleep(self.random.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if not os.WIFSIGNALED(status):
                assert os.WEXITSTATUS(status) == 0, "a run failed"
                self.check_finished()
                finished, known = finished + 1, 0
                continue
            killed += 1
            own = [*self.outputs(), self.checkpoint, samples_path(self.checkpoint)]
            assert set(os.listdir(self.folder)) <= {path.name for path in (*own, *self.temporary)}, os.listdir(self.folder)
            temporary_left += any(path.exists() for path in self.temporary)
            if self.output.exists() and not self.checkpoint.exists():
                # Killed between the profile's last rename and its own end: of the checkpoint its samples may be left.
                samples_path(self.checkpoint).unlink(missing_ok=True)
                self.check_finished()
                finished, known = finished + 1, 0
                continue
            held = self.held()
            without += held == 0
            (seen,) = struct.unpack("q", self.seen[:])
            most_lost = max(most_lost, seen - held)
            assert known <= held, f"the checkpoint went back from {known} to {held} samples"
            assert seen - held <= self.every, f"{seen} samples were seen, the checkpoint holds {held}"
            known = held
        _, status = os.waitpid(in_child(self.run), 0)
        assert status == 0, "the last resume failed"
        self.check_finished()
        return Outcome(
            kills=killed,
            finished=finished + 1,
            most_lost=most_lost,
            temporary_left=temporary_left,
            kills_without_checkpoint=without,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(Killing(Path(folder), options.samples, options.every, options.seed).kills(options.kills))
    return 0


if __name__ == "__main__":
    sys.exit(main())
