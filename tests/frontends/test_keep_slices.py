"""Ops of volumes meet in their slices: nothing is put together and taken apart in between, in float, quantized, and read back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import octavo
from octavo.ir.graph.dataflow import view_of_main
from reference_sessions import reference_session


def network(path: Path, shape: tuple[int | str, ...], rng: np.random.Generator) -> Path:
    """A residual block of volumes with a scale by channel, a pool, an upsampling and a join."""
    constants: dict[str, np.ndarray] = {
        "w1": rng.standard_normal((8, 3, 3, 3, 3)) * 0.2,
        "b1": rng.standard_normal(8),
        "w2": rng.standard_normal((8, 4, 3, 1, 1)) * 0.4,
        "w3": rng.standard_normal((8, 4, 2, 2, 2)) * 0.4,
        "w4": rng.standard_normal((5, 12, 1, 1, 1)) * 0.3,
        "w5": rng.uniform(0.5, 1.5, (8, 1, 1, 1, 1)),
        "scale": rng.uniform(0.5, 1.5, (8, 1, 1, 1)),
    }
    nodes = [
        make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1] * 6),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2"], ["c2"], pads=[1, 0, 0, 1, 0, 0], group=2),
        make_node("Mul", ["c2", "scale"], ["m2"]),
        make_node("Add", ["r1", "m2"], ["a2"]),
        make_node("Relu", ["a2"], ["r2"]),
        make_node("Conv", ["r2", "w5"], ["c5"], group=8),
        make_node("MaxPool", ["c5"], ["p"], kernel_shape=[2, 2, 2], strides=[2, 2, 2]),
        make_node("ConvTranspose", ["p", "w3"], ["u"], strides=[2, 2, 2]),
        make_node("Concat", ["u", "r2"], ["j"], axis=1),
        make_node("Conv", ["j", "w4"], ["y"]),
    ]
    graph = make_graph(
        nodes,
        "volumes",
        [make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()],
    )
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("batch", [1, 2])
def test_slices_from_op_to_op(tmp_path: Path, batch: int, rng: np.random.Generator):
    path = network(tmp_path / "volumes.onnx", (batch, 3, 4, 6, 8), rng)
    x = rng.standard_normal((3, batch, 3, 4, 6, 8)).astype(np.float32)
    expected = reference_session(path).run(None, {"x": x[0]})[0]
    model = octavo.load(path)
    variables = view_of_main(model.module).variables
    assert {variables[name].ty.ndim for name in ("c1", "r1", "c2", "m2", "a2", "r2", "c5", "p", "u", "j")} == {4}
    np.testing.assert_allclose(octavo.compile(model)(x[0])["y"], expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    quantized = octavo.quantize(model, octavo.profile(model, list(x)), preset="fast")
    weighted = [line for line in str(octavo.explain(quantized)).splitlines() if line.startswith("conv2d")]
    assert len(weighted) == 5
    assert all("integer" in line for line in weighted)
    result = octavo.compile(quantized)(x[0])["y"]
    assert 10 * np.log10((expected**2).sum() / ((result - expected) ** 2).sum()) > 30
    octavo.export_onnx(quantized, tmp_path / "int8.onnx")
    again = octavo.load(tmp_path / "int8.onnx")
    assert octavo.compile(again)(x[0])["y"].tobytes() == result.tobytes()
    steps = np.abs(reference_session(tmp_path / "int8.onnx").run(None, {"x": x[0]})[0] - result)
    assert (steps > 1e-5).mean() < 0.02


def test_open_sizes(tmp_path: Path, rng: np.random.Generator):
    path = network(tmp_path / "open.onnx", (1, 3, "depth", "height", 8), rng)
    executable = octavo.compile(octavo.load(path))
    for depth, height in ((4, 6), (8, 4)):
        x = rng.standard_normal((1, 3, depth, height, 8)).astype(np.float32)
        expected = reference_session(path).run(None, {"x": x})[0]
        np.testing.assert_allclose(executable(x)["y"], expected, rtol=0, atol=2e-6 * np.abs(expected).max())


def test_shuffled_channels_are_no_slices(tmp_path: Path, rng: np.random.Generator):
    """The same steps over groups of channels: each group of channels has its scale, which slices would not."""
    constants = {"to": np.array([1, 2, 3, 4, 5]), "back": np.array([1, 6, 4, 5]), "scale": np.arange(1.0, 4)[:, None, None, None]}
    nodes = [
        make_node("Reshape", ["x", "to"], ["groups"]),
        make_node("Transpose", ["groups"], ["shuffled"], perm=[0, 2, 1, 3, 4]),
        make_node("Mul", ["shuffled", "scale"], ["scaled"]),
        make_node("Reshape", ["scaled", "back"], ["y"]),
    ]
    typed = [
        numpy_helper.from_array(value if value.dtype == np.int64 else value.astype(np.float32), name)
        for name, value in constants.items()
    ]
    ends = [[make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 6, 4, 5))] for name in "xy"]
    graph = make_graph(nodes, "shuffle", *ends, typed)
    onnx.save(make_model(graph, opset_imports=[make_opsetid("", 17)], ir_version=8), path := tmp_path / "shuffle.onnx")
    x = rng.standard_normal((1, 6, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(octavo.compile(octavo.load(path))(x)["y"], reference_session(path).run(None, {"x": x})[0])
