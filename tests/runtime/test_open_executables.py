"""Executables of open sizes: what they keep in files, and what they say of sizes that don't fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import DataError
from octavo.export.multiversion import save_versions

STEP = """<ir_version: 8, opset_import: ["" : 13]> step (float[batch,sequence,8] x, float[batch,past,8] p, float[batch,2] s)
=> (float[batch,all,8] y, float[batch,2] t) {
    y = Concat <axis = 1> (p, x)
    t = Neg(s)
}"""
PAIRS = '<ir_version: 8, opset_import: ["" : 13]> pairs (float[2,3,w] x) => (float[2,3,w] y) { y = Neg(x) }'

BESIDE = """<ir_version: 8, opset_import: ["" : 13]> beside (float[n,1] x) => (float[n,1] y)
<int64[1] axes = {1}> {
    t = Transpose(x)
    all = Mul(x, t)
    y = ReduceSum(all, axes)
}"""


def loaded(text: str, **sizes: Any) -> octavo.Model:
    return octavo.load(onnx.parser.parse_model(text), sizes=sizes)


@pytest.fixture(scope="module")
def step() -> octavo.Executable:
    """A step of a decoder; its past may be 0."""
    return octavo.compile(loaded(STEP, batch=(1, 4), sequence=(1, None), past=(0, 16)))


def inputs(batch: int = 2, sequence: int = 3, past: int = 5, **other: tuple[int, ...]) -> dict[str, np.ndarray]:
    shapes = {"x": (batch, sequence, 8), "p": (batch, past, 8), "s": (batch, 2)} | other
    return {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (inputs(p=(3, 5, 8)), "input: input p has 3 along axis 0, where dimension batch is 2: input x has 2 along axis 0"),
        (inputs(batch=5), "input: input x has 5 along axis 0, dimension batch takes 1 to 4"),
        (inputs(batch=0), "input: input x has 0 along axis 0, dimension batch takes 1 to 4"),
        (inputs(past=17), "input: input p has 17 along axis 1, dimension past takes 0 to 16"),
        (inputs(sequence=0), "input: input x has 0 along axis 1, dimension sequence takes 1 to any size"),
        (inputs(x=(2, 8)), r"input: input x must have shape \[batch,sequence,8\], got \[2,8\]"),
        (inputs(p=(2, 5, 9)), r"input: input p must have shape \[batch,past,8\], got \[2,5,9\]"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(step: octavo.Executable, given: dict[str, np.ndarray], said: str) -> None:
    for call in (step, step.bind):
        with pytest.raises(DataError, match=f"^{said}$"):
            call(given)
    right = inputs()
    np.testing.assert_array_equal(step(right)["y"], np.concatenate([right["p"], right["x"]], axis=1))


def test_tensors_within_have_no_more_elements_than_kernels_count(tmp_path: Path) -> None:
    """Each of some numbers beside each: the inputs are small."""
    executable = octavo.compile(loaded(BESIDE))
    executable.save(tmp_path / "beside.so")
    for each in (executable, octavo.Executable.load(tmp_path / "beside.so")):
        for call in (each, each.bind):
            with pytest.raises(
                DataError, match=r"^input: n\*n is 2147488281 \(input x has 46341 along axis 0\); .* up to 2147483647"
            ):
                call(np.zeros((46341, 1), np.float32))
        assert not each(np.zeros((300, 1), np.float32))["y"].any()


def test_a_file_keeps_names_and_bounds(step: octavo.Executable, tmp_path: Path) -> None:
    step.save(tmp_path / "step.so")
    save_versions([step], tmp_path / "versions.so")
    for file in ("step.so", "versions.so"):
        read = octavo.load_executable(tmp_path / file)
        assert read.description == step.description
        assert [str(dim) for dim in read.inputs[1].shape] == ["batch", "past", "8"]
        assert read.inputs[1].bounds == {"batch": (1, 4), "past": (0, 16)}
        for sizes in ((1, 1, 0), (4, 2, 16)):
            given = inputs(*sizes)
            assert all(read(given)[name].tobytes() == value.tobytes() for name, value in step(given).items())


def test_several_runs_are_cut_where_the_first_dimension_is_fixed(rng: np.random.Generator) -> None:
    executable = octavo.compile(loaded(PAIRS))
    x = rng.normal(size=(6, 3, 5)).astype(np.float32)
    np.testing.assert_array_equal(executable(x)["y"], -x)
    with pytest.raises(DataError, match=r"input x must have shape \[2,3,5\], got \[3,3,5\]"):
        executable(x[:3])


def test_layers_that_share_a_kernel_have_memory_for_their_own_sizes(rng: np.random.Generator) -> None:
    """The kernel, of a strip of rows and a row of sums, gets both in the workspace, as large as each layer's width asks."""
    text = """<ir_version: 8, opset_import: ["" : 13]> net (float[1,16,h,w] x) => (float[1,16,c,d] y)
        <float[16,16,3,3] first, float[16,16,3,3] second> {
        a = Conv <pads = [1, 1, 1, 1]> (x, first)
        b = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (a)
        y = Conv <pads = [1, 1, 1, 1]> (b, second)
    }"""
    proto = onnx.parser.parse_model(text)
    values = {name: (rng.normal(size=(16, 16, 3, 3)) / 12).astype(np.float32) for name in ("first", "second")}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in values.items())
    executable = octavo.compile(octavo.load(proto))
    for height, width in ((30, 44), (8, 90), (61, 7)):
        x = rng.normal(size=(1, 16, height, width)).astype(np.float32)
        alone = octavo.compile(octavo.load(proto, sizes={"h": height, "w": width}))
        np.testing.assert_array_equal(executable(x)["y"], alone(x)["y"])
