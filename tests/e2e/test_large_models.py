"""What large networks take in memory, in multiples of their files."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarks.large_models import write_chain

from child_python import run_python

PROGRAM = """
import json, sys
import numpy as np
import octavo
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
octavo.load, octavo.profile, octavo.quantize, octavo.load_executable  # import what they need
before = peak()
model = octavo.load(sys.argv[1])
found = [peak() - before]
x = np.random.default_rng(0).standard_normal((4, 2048), np.float32)
profile = octavo.profile(model, [x])
found.append(peak() - before)
if sys.argv[2:]:
    octavo.compile(octavo.quantize(model, profile)).save(sys.argv[2])
    found.append(peak() - before)
if sys.argv[3:]:
    octavo.compile(model).save(sys.argv[3])
print(json.dumps(found))
"""

START = """
import sys
import numpy as np
import octavo
octavo.load_executable
def memory(kind):
    return int(next(line for line in open("/proc/self/status") if line.startswith(kind)).split()[1]) * 1024
before = memory("VmHWM")
executable = octavo.load_executable(sys.argv[1])
loaded = memory("VmHWM") - before
anonymous = memory("RssAnon")
executable(np.zeros((4, 2048), np.float32))
print(loaded, memory("RssAnon") - anonymous, memory("RssFile"))
"""


@dataclass(frozen=True)
class Whole:
    """The bytes of a chain's files, how much memory went to each stage at most, and the executables of int8 and of float32."""

    size: int
    taken: list[int]
    integers: Path
    floats: Path


def whole_way(folder: Path, *, inline: bool) -> Whole:
    size = write_chain(folder / "chain.onnx", 0.17, inline=inline, width=2048)
    saved = folder / "integers.so", folder / "floats.so"
    done = run_python(PROGRAM, folder / "chain.onnx", *saved[: 2 - inline], check=True)
    return Whole(size, json.loads(done.stdout), *saved)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """One whose weights lie beside its file."""
    return whole_way(tmp_path_factory.mktemp("beside"), inline=False)


# Weights of one file lie where tensors can't share them; those beside it do.
@pytest.mark.parametrize(("inline", "most"), [(True, 2.2), (False, 1.8)])
def test_the_whole_way_to_int8_weights_in_a_saved_executable(tmp_path, request, inline, most):
    whole = whole_way(tmp_path, inline=True) if inline else request.getfixturevalue("beside")
    loaded, profiled, saved = whole.taken
    assert loaded < 1.3 * whole.size
    assert max(profiled, saved) < most * whole.size
    assert whole.size / 4 < whole.integers.stat().st_size < 1.1 * whole.size / 4


def test_an_executable_maps_its_weights(beside):
    loaded, own, of_files = map(int, run_python(START, beside.floats, check=True).stdout.split())
    assert loaded < 0.1 * beside.size
    assert own < 0.1 * beside.size
    assert of_files > beside.size
