"""One executable for a range of shapes: at each size the bytes of a model compiled for it, weights once, errors outside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.cli.main import main
from octavo.errors import DataError, ExecutableError, ModelError
from octavo.export.shape_ranges import SizeRange, compile_ranged, load_ranged

Dims = list[Any]


def write(path: Path, nodes: list[Any], inputs: dict[str, Dims], output: Dims, constants: dict[str, np.ndarray]) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in inputs.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)]
    values = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "open", ends, made, values)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


@pytest.fixture
def lines(rng: np.random.Generator, tmp_path: Path) -> Path:
    """A quantized network that reads lines of text of any width."""
    constants = {"w": rng.normal(0, 0.3, (16, 3, 3, 3)).astype(np.float32), "m": rng.normal(0, 0.3, (16, 5)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["f"], axes=[2], keepdims=0),
        helper.make_node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "m"], ["y"]),
    ]
    path = write(tmp_path / "m.onnx", nodes, {"x": ["N", 3, 8, "W"]}, ["N", "T", 5], constants)
    model = octavo.load(path, shapes={"x": (1, 3, 8, 16)})
    profile = octavo.profile(model, rng.normal(0, 1, (4, 3, 8, 16)).astype(np.float32), keep_samples=0)
    octavo.export_onnx(octavo.quantize(model, profile), tmp_path / "m.int8.onnx")
    return tmp_path / "m.int8.onnx"


def test_each_width_gives_the_bytes_of_a_model_of_that_width(
    lines: Path, rng: np.random.Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    widths = SizeRange(first=8, last=24, step=8)
    made = compile_ranged(lines, {"x": (1, 3, 8, widths)})
    made.save(tmp_path / "m.so")
    read = load_ranged(tmp_path / "m.so")
    assert made.weight_bytes < 1.5 * made.executables[0].weight_bytes
    for width in widths.sizes:
        x = rng.normal(0, 1, (1, 3, 8, width)).astype(np.float32)
        single = octavo.compile(octavo.load(lines, shapes={"x": x.shape}))
        expected = single(x)["y"]
        assert np.array_equal(made(x)["y"], expected)
        assert np.array_equal(read({"x": x})["y"], expected)
    for wrong in ((1, 3, 8, 9), (1, 3, 8, 32), (2, 3, 8, 8)):
        with pytest.raises(DataError, match=r"is for x=1,3,8,8..24:8, got x=.*; compile it with --shape for these sizes"):
            read(np.zeros(wrong, np.float32))
    with pytest.raises(
        ExecutableError, match=r"for several sizes of the inputs; load it with octavo.export.shape_ranges.load_ranged"
    ):
        octavo.load_executable(tmp_path / "m.so")
    assert main(f"compile {lines} --shape x=1,3,8,8..24:8 -o {tmp_path}/cli.so".split()) == 0
    assert "3 sizes; " in capsys.readouterr().out
    np.save(tmp_path / "x.npy", x)
    assert main(f"run {tmp_path}/cli.so --input {tmp_path}/x.npy -o {tmp_path}/y.npz".split()) == 0
    assert np.array_equal(np.load(tmp_path / "y.npz")["y"], expected)
    with pytest.raises(SystemExit):
        main(f"compile {lines} --shape x=1,3,8,24..8 -o {tmp_path}/cli.so".split())
    assert "expected FIRST..LAST" in capsys.readouterr().err
    (tmp_path / "cut.so").write_bytes((tmp_path / "m.so").read_bytes()[:-40])
    with pytest.raises(ExecutableError, match="or truncated"):
        load_ranged(tmp_path / "cut.so")


def test_run_cuts_many_samples_into_calls(lines: Path, rng: np.random.Generator, tmp_path: Path) -> None:
    made = compile_ranged(lines, {"x": (1, 3, 8, SizeRange(first=8, last=16, step=8))})
    made.save(tmp_path / "m.so")
    x = rng.normal(0, 1, (5, 3, 8, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert main(["run", str(tmp_path / "m.so"), "--input", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npz")]) == 0
    with np.load(tmp_path / "y.npz") as found:
        assert np.array_equal(found["y"], np.concatenate([made(row[None])["y"] for row in x]))
    assert [each["x"].shape for each in made.calls(x[:, :, :, :9])] == [(1, 3, 8, 9)] * 5
    with pytest.raises(DataError, match="got x=1,3,8,9"):
        made(made.calls(x[:, :, :, :9])[0])


def test_explain_and_evaluate_take_one_size_of_a_range(
    lines: Path, rng: np.random.Generator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compile_ranged(lines, {"x": (1, 3, 8, SizeRange(first=8, last=16, step=8))}).save(tmp_path / "m.so")
    assert main(["explain", str(tmp_path / "m.so")]) == 0
    assert "[1,3,8,8]" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "m.so"), "--shape", "x=1,3,8,16"]) == 0
    assert "[1,3,8,16]" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "m.so"), "--shape", "x=1,3,8,9"]) == 1
    assert "there is no code for x=1,3,8,9: the sizes are x=1,3,8,8; x=1,3,8,16" in capsys.readouterr().err
    np.save(tmp_path / "x.npy", rng.normal(0, 1, (5, 3, 8, 16)).astype(np.float32))
    files = [str(lines), str(tmp_path / "m.so"), "--data", str(tmp_path / "x.npy"), "--shape", "x=1,3,8,16"]
    assert main(["evaluate", *files]) == 0
    assert "equal on 5 samples" in capsys.readouterr().out


def test_long_ranges_and_what_was_loaded_are_refused(lines: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="more than 64 sizes"):
        compile_ranged(lines, {"x": (1, 3, 8, SizeRange(first=1, last=10**18))})  # a list of them would not fit in memory
    with pytest.raises(ModelError, match=r"expected a number, FIRST\.\.LAST"):
        SizeRange.parse("1.." + "9" * 5000)
    compile_ranged(lines, {"x": (1, 3, 8, SizeRange(first=8, last=8))}).save(tmp_path / "m.so")
    with pytest.raises(ExecutableError, match="comes from a file"):
        load_ranged(tmp_path / "m.so").save(tmp_path / "again.so")


def test_independent_samples_are_put_together_and_others_are_not(rng: np.random.Generator, tmp_path: Path) -> None:
    shapes: dict[str, Dims] = {"x": ["N", 4]}
    nodes = [helper.make_node("MatMul", ["x", "m"], ["s"]), helper.make_node("Relu", ["s"], ["y"])]
    matrix = {"m": rng.normal(0, 1, (4, 3)).astype(np.float32)}
    alone = compile_ranged(write(tmp_path / "a.onnx", nodes, shapes, ["N", 3], matrix), {"x": (SizeRange(first=2, last=5), 4)})
    assert [each.inputs[0].shape[0] for each in alone.executables] == [1, 2, 4]
    nodes[1:] = [helper.make_node("Softmax", ["s"], ["y"], axis=0)]
    mixed = compile_ranged(write(tmp_path / "b.onnx", nodes, shapes, ["N", 3], matrix), {"x": (SizeRange(first=2, last=5), 4)})
    assert [each.inputs[0].shape[0] for each in mixed.executables] == [2, 3, 4, 5]
    for count in range(2, 6):
        x = rng.normal(0, 1, (count, 4)).astype(np.float32)
        sums = x @ matrix["m"]
        assert np.allclose(alone(x)["y"], np.maximum(sums, 0), atol=1e-5)
        assert np.allclose(mixed(x)["y"], np.exp(sums) / np.exp(sums).sum(0), atol=1e-5)
    for executable in (alone, mixed):
        with pytest.raises(DataError, match=r"is for x=2..5,4, got x=6,4"):
            executable(np.zeros((6, 4), np.float32))


def test_dimensions_of_one_name_have_one_size(rng: np.random.Generator, tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    path = write(tmp_path / "m.onnx", nodes, {"a": [1, "T", 4], "b": [1, "T", 1]}, [1, "T", 4], {})
    ranged = SizeRange(first=2, last=4)
    made = compile_ranged(path, {"a": (1, ranged, 4), "b": (1, ranged, 1)})
    assert len(made.executables) == 3
    a, b = (rng.normal(0, 1, (1, 3, size)).astype(np.float32) for size in (4, 1))
    assert np.array_equal(made({"a": a, "b": b})["y"], a + b)
    with pytest.raises(DataError, match="got a=1,3,4, b=1,2,1"):
        made({"a": a, "b": b[:, :2]})
    wrong: dict[str, dict[str, Any]] = {
        "dimension 'T' has two ranges, 2..4 and 2..5": {"a": (1, ranged, 4), "b": (1, SizeRange(first=2, last=5), 1)},
        "the model has no such input; it has a of 3 dimensions": {"c": (1, ranged)},
        "no dimension has a range": {"a": (1, 2, 4), "b": (1, 2, 1)},
        "more than 64 sizes, each of which is compiled: give a step": {"a": (1, SizeRange(first=1, last=65), 4)},
    }
    for message, shapes in wrong.items():
        with pytest.raises(ModelError, match=message):
            compile_ranged(path, shapes)
    with pytest.raises(ModelError, match="is of an ONNX model"):
        compile_ranged(octavo.load(path, shapes={"a": (1, 2, 4), "b": (1, 2, 1)}), {"a": (1, ranged, 4)})
