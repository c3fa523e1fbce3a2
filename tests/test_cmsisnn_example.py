"""examples/cmsisnn: int8 TFLite files through CMSIS-NN's C interface equal the simulation and LiteRT's reference kernels."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from child_python import run_python
from tflite_writer import Op, Tensor, write

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cmsisnn"
RUN = """
import runpy
folder, limit, *models = sys.argv[1:]
sys.path.insert(0, folder)
for model in models:
    sys.argv = ["run.py", model, "--limit", limit]
    try:
        runpy.run_path(folder + "/run.py", run_name="__main__")
    except SystemExit as done:
        print(done.code)
"""
LINE = r"100\.0% of MACs in CMSIS-NN's functions; of (\d+) values differ (\d+) from the simulation, (\d+) from LiteRT's .*"
TINY = ("autoencoder_ad01_int8", "dscnn_kws_int8", "mobilenet_v1_vww96_int8", "resnet8_cifar10_int8")


def lines_of(example: Path, limit: int, *models: Path) -> list[str]:
    done = run_python(RUN, example, limit, *models)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_networks_of_mlperf_tiny_equal_the_reference(shared: Any) -> None:
    lines = lines_of(EXAMPLE, 4, *(shared / f"models/tflite/{name}.tflite" for name in TINY))
    for name, line, code in zip(TINY, lines[::2], lines[1::2], strict=True):
        found = re.fullmatch(LINE, line)
        assert found, f"{name}: {line}"
        assert found.groups()[1:] == ("0", "0"), f"{name}: {line}"
        assert code == "0"


@pytest.fixture(name="network")
def fixture_network(tmp_path: Path) -> Path:
    """Ops that the networks lack: a product that repeats an operand, a mean of other parameters, a strided maximum, a join."""
    rng = np.random.default_rng(3)

    def activation(name: str, shape: tuple[int, ...], scale: float, zero_point: int) -> Tensor:
        return Tensor(name=name, shape=shape, dtype="int8", scale=(scale,), zero_point=(zero_point,))

    def constant(name: str, values: Any, dtype: str, **fields: Any) -> Tensor:
        return Tensor(name=name, shape=np.shape(values), dtype=dtype, value=np.asarray(values, dtype), **fields)

    tensors = [
        activation("x", (1, 9, 8, 4), 0.05, 7),
        constant(
            "w", rng.integers(-127, 128, (6, 3, 3, 4)), "int8", scale=(0.01, 0.02, 0.005, 0.03, 0.01, 0.02), zero_point=(0,) * 6
        ),
        constant("b", rng.integers(-3000, 3000, 6), "int32", scale=(5e-4, 1e-3, 2.5e-4, 1.5e-3, 5e-4, 1e-3), zero_point=(0,) * 6),
        activation("c", (1, 5, 4, 6), 0.13, -11),
        constant("axes", [1, 2], "int32"),
        activation("m", (1, 1, 1, 6), 0.03, 4),
        activation("g", (1, 5, 4, 6), 0.06, 20),
        activation("s", (1, 5, 4, 6), 0.2, -30),
        activation("p", (1, 2, 2, 6), 0.2, -30),
        activation("a", (1, 2, 2, 6), 0.2, -30),
        activation("y", (1, 2, 2, 12), 0.2, -30),
    ]
    pool = {"Padding": 1, "StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 3}
    ops = [
        Op(name="CONV_2D", inputs=(0, 1, 2), outputs=(3,), options_class="Conv2DOptions", options={"StrideW": 2, "StrideH": 2}),
        Op(name="MEAN", inputs=(3, 4), outputs=(5,), options_class="ReducerOptions", options={"KeepDims": True}),
        Op(name="MUL", inputs=(3, 5), outputs=(6,), options_class="MulOptions"),
        Op(name="ADD", inputs=(6, 3), outputs=(7,), options_class="AddOptions", options={"FusedActivationFunction": 1}),
        Op(name="MAX_POOL_2D", inputs=(7,), outputs=(8,), options_class="Pool2DOptions", options=pool),
        Op(name="AVERAGE_POOL_2D", inputs=(7,), outputs=(9,), options_class="Pool2DOptions", options=pool),
        Op(name="CONCATENATION", inputs=(8, 9), outputs=(10,), options_class="ConcatenationOptions", options={"Axis": 3}),
    ]
    path = tmp_path / "net.tflite"
    path.write_bytes(write(tensors, ops, inputs=(0,), outputs=(10,)))
    return path


def test_ops_that_they_lack_equal_it_too(network: Path) -> None:
    line, code = lines_of(EXAMPLE, 20, network)
    assert re.fullmatch(LINE, line), line
    assert re.fullmatch(LINE, line).groups() == ("960", "0", "0")  # pyright: ignore[reportOptionalMemberAccess]
    assert code == "0"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(high + half - (high < 0)) >> -shift", "(high + half) >> -shift"),
        ("(sum > 0 ? sum + count / 2 : sum - count / 2) / count", "(sum + count / 2) / count"),
        ("input_2_vect[i] + input_2_offset) * (1 <<", "input_2_vect[i]) * (1 <<"),
    ],
    ids=["ties go up", "an average of negative numbers", "the second zero point is lost"],
)
def test_a_fault_in_the_kernels_fails_the_run(network: Path, tmp_path: Path, right: str, wrong: str) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "faulty")
    kernels = tmp_path / "faulty" / "kernels.c"
    text = kernels.read_text(encoding="utf-8")
    assert right in text
    kernels.write_text(text.replace(right, wrong), encoding="utf-8")
    line, code = lines_of(tmp_path / "faulty", 20, network)
    assert int(re.fullmatch(LINE, line)[2]) > 0, line  # pyright: ignore[reportOptionalSubscript]
    assert code == "1"


CONFORMANCE = """
sys.path.insert(0, sys.argv[1])
from octavo import conformance
from generator import CmsisNn

conformance.write(sys.argv[1] + "/cmsisnn.json", "cases")
report = conformance.run("cases", CmsisNn())
print(report.summary)
"""


def test_it_conforms_to_its_own_description(tmp_path: Path) -> None:
    done = run_python(CONFORMANCE, EXAMPLE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    assert "FAILED" not in done.stdout
    assert re.fullmatch(r"cmsisnn: (\d+) of \1 cases passed", last)


def test_a_model_that_is_not_int8_is_one_line(tmp_path: Path) -> None:
    tensors = [Tensor(name=name, shape=(1, 4)) for name in "xy"]
    (tmp_path / "float.tflite").write_bytes(
        write(tensors, [Op(name="ABS", inputs=(0,), outputs=(1,))], inputs=(0,), outputs=(1,))
    )
    assert "expected a model with one input, of int8" in lines_of(EXAMPLE, 1, tmp_path / "float.tflite")[-1]
