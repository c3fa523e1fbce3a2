"""Graphs that are valid and rare: each gives what ONNX Runtime gives, in float and quantized, under the source's output names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.numerics.statistics.metrics import sqnr_db
from reference_sessions import reference_session

RNG = np.random.default_rng(5)
WEIGHT = RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
CONSTANTS = {
    "w": WEIGHT,
    "p": np.float32([1, 2, 3]),
    "q": np.float32([4, 5, 6]),
    "low": np.float32(-3.4e38),
    "high": np.float32(1),
    "two": np.int64([2]),
    "one": np.int64([1]),
    "none": np.int64([0]),
    "scales": np.float32([1, 1, 2, 2]),
}


def graph(nodes: list[Any], outputs: list[str], *, ir_version: int = 8, opset: int = 17) -> Any:
    """Return a model whose outputs state no shape, as many tools write them."""
    read = {name for node in nodes for name in node.input} | set(outputs)
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items() if name in read]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])] if "x" in read else []
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(item.name, TensorProto.FLOAT, list(item.dims)) for item in constants]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    made = helper.make_graph(nodes, "unusual", inputs, infos, constants)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def conv(output: str) -> Any:
    return helper.make_node("Conv", ["x", "w"], [output])


def node(op: str, inputs: list[str], output: str) -> Any:
    return helper.make_node(op, inputs, [output])


GRAPHS = {
    "two names for one output": graph([conv("y"), node("Identity", ["y"], "z")], ["y", "z"]),
    "an input returned": graph([conv("y"), node("Identity", ["x"], "same")], ["same", "y"]),
    "an intermediate returned": graph([conv("c"), node("Relu", ["c"], "y")], ["y", "c"]),
    "a constant returned": graph([conv("y"), node("Add", ["p", "q"], "sum")], ["sum", "y"]),
    "a weight returned": graph([conv("y")], ["y", "w"]),
    "a weight returned, and what is computed of it": graph([conv("y"), node("Relu", ["w"], "z")], ["y", "w", "z"]),
    "an output that is left out": graph([conv("c"), helper.make_node("MaxPool", ["c"], ["y", ""], kernel_shape=[2, 2])], ["y"]),
    "sums of nothing": graph(
        [
            conv("c"),
            node("Slice", ["c", "none", "none", "one"], "s"),
            node("ReduceSum", ["s", "one"], "r"),
            node("Add", ["c", "r"], "d"),
            helper.make_node("Concat", ["s", "d"], ["y"], axis=1),
        ],
        ["y"],
    ),
    "an old operator set": graph(
        [
            conv("c"),
            helper.make_node("Slice", ["c"], ["s"], starts=[1, -2], ends=[2**31 - 1, 100], axes=[2, 3]),
            helper.make_node("Upsample", ["s", "scales"], ["r"], mode="linear"),
            helper.make_node("Clip", ["r"], ["y"], min=-1.0, max=1.5),
        ],
        ["y", "r"],
        opset=9,
    ),
    "weights among the inputs": graph([conv("c"), node("Relu", ["c"], "y")], ["y"], ir_version=3, opset=9),
    "the largest values": graph([conv("c"), helper.make_node("TopK", ["c", "two"], ["y", "places"], axis=1)], ["y"]),
    "windows beyond the padding": graph(
        [
            conv("c"),
            helper.make_node(
                "AveragePool", ["c"], ["y"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=1, count_include_pad=1
            ),
        ],
        ["y"],
    ),
    "a bound that is none": graph([conv("c"), node("Clip", ["c", "low", "high"], "y")], ["y"]),
}


def results_of(proto: Any, x: np.ndarray) -> dict[str, np.ndarray]:
    session = reference_session(proto, optimized=False)
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, {"x": x}), strict=True))


@pytest.mark.parametrize("name", GRAPHS)
def test_an_unusual_graph_goes_the_whole_way(rng: np.random.Generator, name, tmp_path):
    proto = GRAPHS[name]
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    model = octavo.load(proto)
    ours, theirs = octavo.compile(model)(x), results_of(proto, x)
    assert list(ours) == [output.name for output in proto.graph.output]
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-4)

    quantized = octavo.quantize(model, octavo.profile(model, [x]))
    octavo.export_onnx(quantized, tmp_path / "int8.onnx")
    ours, theirs = octavo.compile(quantized)(x), results_of(onnx.load(tmp_path / "int8.onnx"), x)
    assert list(ours) == [output.name for output in proto.graph.output]
    assert all(sqnr_db(value, ours[key]) > 40 for key, value in theirs.items())


def test_a_graph_without_inputs_runs():
    proto = graph([node("Add", ["p", "q"], "sum")], ["sum"])
    np.testing.assert_array_equal(octavo.compile(octavo.load(proto))({})["sum"], [5, 7, 9])


def test_tensors_within_an_op_have_no_error_of_their_own(rng: np.random.Generator) -> None:
    """Depth to space is two reshapes and a transpose: what lies between them is no tensor of the source."""
    moved = helper.make_node("DepthToSpace", ["c"], ["m"], blocksize=2, mode="CRD")
    model = octavo.load(graph([conv("c"), moved, node("Relu", ["m"], "y")], ["y"]))
    x = rng.normal(size=(1, 3, 8, 8)).astype(np.float32)
    rows = octavo.layer_errors(model, octavo.quantize(model, octavo.profile(model, [x])), [x])
    assert {str(row.id) for row in rows} <= {"x", "c", "m", "y"}
