"""examples/cmsisnn: int8 TFLite files through CMSIS-NN's C interface equal the simulation and LiteRT's reference kernels."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance_modules import bordering, vendor_report
from example_programs import EXAMPLES, Programs, programs
from octavo.evaluation import conformance
from tflite_writer import Op, Tensor, write

__all__ = ["programs"]
EXAMPLE = EXAMPLES / "cmsisnn"
LINE = r"100\.0% of MACs in CMSIS-NN's functions; of (\d+) values differ (\d+) from the simulation, (\d+) from LiteRT's .*"
TINY = ("autoencoder_ad01_int8", "dscnn_kws_int8", "resnet8_cifar10_int8")
"""MobileNet v1 has the layers of DS-CNN, only more of them."""


@pytest.mark.parametrize("name", TINY)
def test_the_networks_of_mlperf_tiny_equal_the_reference(name: str, shared: Path, programs: Programs) -> None:
    done = programs.run(EXAMPLE / "run.py", shared / f"models/tflite/{name}.tflite", "--limit", 2)
    found = re.fullmatch(LINE, done.out.strip())
    assert found, done
    assert found.groups()[1:] == ("0", "0"), done
    assert done.code == 0


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


def test_ops_that_they_lack_equal_it_too(network: Path, programs: Programs) -> None:
    done = programs.run(EXAMPLE / "run.py", network, "--limit", 20)
    found = re.fullmatch(LINE, done.out.strip())
    assert found, done
    assert found.groups() == ("960", "0", "0")
    assert done.code == 0


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(high + half - (high < 0)) >> -shift", "(high + half) >> -shift"),
        ("(sum > 0 ? sum + count / 2 : sum - count / 2) / count", "(sum + count / 2) / count"),
        ("input_2_vect[i] + input_2_offset) * (1 <<", "input_2_vect[i]) * (1 <<"),
    ],
    ids=["ties go up", "an average of negative numbers", "the second zero point is lost"],
)
def test_a_fault_in_the_kernels_fails_the_run(network: Path, tmp_path: Path, programs: Programs, right: str, wrong: str) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "faulty")
    kernels = tmp_path / "faulty" / "kernels.c"
    text = kernels.read_text(encoding="utf-8")
    assert right in text
    kernels.write_text(text.replace(right, wrong), encoding="utf-8")
    done = programs.run(tmp_path / "faulty" / "run.py", network, "--limit", 20)
    found = re.fullmatch(LINE, done.out.strip())
    assert found, done
    assert int(found[2]) > 0, done
    assert done.code == 1


def test_it_conforms_to_its_own_description(tmp_path: Path) -> None:
    conformance.write(EXAMPLE / "cmsisnn.json", tmp_path / "cases")
    generator = runpy.run_path(str(EXAMPLE / "generator.py"))
    report = vendor_report(bordering(tmp_path / "cases", tmp_path / "some"), generator["CmsisNn"](), generator["KERNELS"])
    *_, last = report.summary.splitlines()
    assert "FAILED" not in report.summary
    assert re.fullmatch(r"cmsisnn: (\d+) of \1 cases passed", last)


def test_a_model_that_is_not_int8_is_one_line(tmp_path: Path, programs: Programs) -> None:
    tensors = [Tensor(name=name, shape=(1, 4)) for name in "xy"]
    (tmp_path / "float.tflite").write_bytes(
        write(tensors, [Op(name="ABS", inputs=(0,), outputs=(1,))], inputs=(0,), outputs=(1,))
    )
    done = programs.run(EXAMPLE / "run.py", tmp_path / "float.tflite", "--limit", 1)
    (line,) = done.err.splitlines()
    assert "expected a model with one input, of int8" in line
    assert (done.code, done.out) == (1, "")
