"""examples/toynpu: networks profiled, quantized, generated as C, run and compared with the simulation, value by value."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import octavo
from conformance_modules import bordering, vendor_report
from example_programs import EXAMPLES, Done, Programs, programs
from octavo.evaluation import conformance
from octavo.profiling.kept_samples import KEEP_SAMPLES
from vendors import ToyNpu, with_weights

__all__ = ["programs"]
EXAMPLE = EXAMPLES / "toynpu"
NODES = """
a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w1, b1) r = Relu(a)
d = Conv<pads=[1, 1, 1, 1], group=8>(r, w2, b2) c = Clip(d, zero, six) p = Conv(c, w3, b3) s = Add(p, r)
t = Tanh(s) m = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(t) v = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(m)
k = Concat<axis=1>(m, v) g = GlobalAveragePool(k) f = Flatten(g) y = Gemm<transB=1>(f, w4, b4)
"""
WEIGHTS = {"w1": (8, 3, 3, 3), "w2": (8, 1, 3, 3), "w3": (8, 8, 1, 1), "w4": (10, 16)}


FEW_NODES = """
a = Conv<pads=[1, 1, 1, 1], strides=[2, 2]>(x, w1, b1) v = AveragePool<kernel_shape=[3, 3], pads=[1, 1, 1, 1]>(a)
g = GlobalAveragePool(v) f = Flatten(g) y = Gemm<transB=1>(f, w2, b2)
"""
FEW_WEIGHTS = {"w1": (8, 3, 3, 3), "w2": (10, 8)}


def written(folder: Path, nodes: str, weights: dict[str, tuple[int, ...]]) -> tuple[Path, Path]:
    """A network and its samples as files."""
    rng = np.random.default_rng(0)
    text = f"net (float[1, 3, 16, 16] x) => (float[1, 10] y) <float zero = {{0}}, float six = {{6}}> {{ {nodes} }}"
    onnx.save(with_weights(text, weights, rng), folder / "net.onnx")
    np.savez(folder / "x.npz", x=rng.normal(size=(40, 3, 16, 16)).astype(np.float32), y=rng.integers(0, 10, 40))
    return folder / "net.onnx", folder / "x.npz"


@pytest.fixture(name="files")
def fixture_files(tmp_path) -> tuple[Path, Path]:
    return written(tmp_path, NODES, WEIGHTS)


@pytest.fixture
def run(programs: Programs) -> Callable[[Path, Path, Path], Done]:
    return lambda example, model, data: programs.run(example / "run.py", model, "--data", data, "--calibrate", 20, "--limit", 20)


@pytest.mark.parametrize("keep_samples", [0, KEEP_SAMPLES], ids=["plain", "corrected"])
def test_every_op_runs_on_it_and_no_value_differs(files, run, monkeypatch, keep_samples) -> None:
    monkeypatch.setitem(octavo.profile.__kwdefaults__, "keep_samples", keep_samples)
    done = run(EXAMPLE, *files)
    assert done.code == 0, done
    *others, line = done.out.splitlines()
    assert re.fullmatch(
        r"100\.0% of MACs on the NPU; 0 of 200 values differ from the simulation \(20 samples\); top-1 0\.\d+, float 0\.\d+", line
    )
    assert others == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("value < low ? low : value > high ? high : value", "value"),
        ("twice % (2 * denominator) < 0", "0"),
    ],
    ids=["wraps", "divides towards zero"],
)
def test_a_fault_in_the_kernels_fails_the_run(run, tmp_path, right, wrong) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "faulty")
    kernels = tmp_path / "faulty" / "kernels.c"
    text = kernels.read_text(encoding="utf-8")
    assert right in text
    kernels.write_text(text.replace(right, wrong), encoding="utf-8")
    done = run(tmp_path / "faulty", *written(tmp_path, FEW_NODES, FEW_WEIGHTS))
    assert done.code == 1
    assert int(re.search(r"(\d+) of 200 values differ", done.out)[1]) > 0


def test_it_conforms_to_its_own_description(tmp_path) -> None:
    conformance.write(EXAMPLE / "toynpu.json", tmp_path / "cases")
    chosen = bordering(tmp_path / "cases", tmp_path / "some")
    report = vendor_report(chosen, ToyNpu(), (EXAMPLE / "kernels.c").read_text(encoding="utf-8"))
    *_, last = report.summary.splitlines()
    assert "FAILED" not in report.summary
    assert re.fullmatch(r"toynpu: (\d+) of \1 cases passed", last)


def test_samples_that_do_not_fit_are_one_line(files, run, tmp_path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.zeros((4, 3, 8, 8), np.float32))
    done = run(EXAMPLE, files[0], tmp_path / "bad.npz")
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("run.py: error: ")
    assert "samples are (3, 8, 8), expected (3, 16, 16)" in done.err


def test_the_vendor_wrote_less_than_500_lines() -> None:
    assert sum(len((EXAMPLE / name).read_text(encoding="utf-8").splitlines()) for name in ("generator.py", "kernels.c")) < 500
