"""What large networks take in memory, in multiples of their files."""

import json

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
x = np.random.default_rng(0).standard_normal((4, 4096), np.float32)
profile = octavo.profile(model, [x])
found.append(peak() - before)
if sys.argv[2:]:
    octavo.compile(octavo.quantize(model, profile)).save(sys.argv[2])
    found.append(peak() - before)
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
executable(np.zeros((4, 4096), np.float32))
print(loaded, memory("RssAnon") - anonymous, memory("RssFile"))
"""


# Weights of one file lie where tensors can't share them; those beside it do.
@pytest.mark.parametrize(("inline", "most"), [(True, 2.4), (False, 2.1)])
def test_the_whole_way_to_int8_weights_in_a_saved_executable(tmp_path, inline, most):
    size = write_chain(tmp_path / "chain.onnx", 0.34, inline=inline)
    loaded, profiled, saved = json.loads(run_python(PROGRAM, tmp_path / "chain.onnx", tmp_path / "chain.so", check=True).stdout)
    assert loaded < 1.3 * size
    assert max(profiled, saved) < most * size
    assert size / 4 < (tmp_path / "chain.so").stat().st_size < 1.1 * size / 4


def test_an_executable_maps_its_weights(tmp_path):
    size = write_chain(tmp_path / "chain.onnx", 0.27, inline=False)
    code = "import octavo, sys; octavo.compile(octavo.load(sys.argv[1])).save(sys.argv[2])"
    run_python(code, tmp_path / "chain.onnx", tmp_path / "chain.so", check=True)
    loaded, own, of_files = map(int, run_python(START, tmp_path / "chain.so", check=True).stdout.split())
    assert loaded < 0.1 * size
    assert own < 0.1 * size
    assert of_files > size
