"""Graphs of an open batch give what ONNX Runtime gives at its size, whether their samples are independent or not."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

import octavo
from octavo.errors import DataError
from reference_sessions import reference_session
from tvm_alone import tvm_alone

RNG = np.random.default_rng(0)
CONSTANTS = {
    "w": RNG.normal(size=(8, 5)).astype(np.float32),
    "k": RNG.normal(size=(4, 2, 3, 3)).astype(np.float32),
    "one_row": np.array([1, -1]),
    "one_by_8": np.array([1, 8]),
    "rows": np.array([-1, 4]),
    "pairs": np.array([-1, 2, 4, 1]),
    "backwards": np.array([1, 0]),
    "first": np.array(0),
    "axis0": np.array([0]),
    "axis1": np.array([1]),
    "zero": np.array([0]),
    "one": np.array([1]),
    "minus_one": np.array([-1]),
    "w2": RNG.normal(size=(16, 3)).astype(np.float32),
    "rows8": np.array([-1, 8]),
    "ones": np.ones((1, 3), np.float32),
    "last": np.array([1000]),
    "least": np.array([-1000]),
}


def node(op: str, *inputs: str, count: int = 1, **attributes: object) -> NodeProto:
    """A node whose first output gets its name in `model`."""
    return helper.make_node(op, list(inputs), ["?", *(f"{op}_{number}" for number in range(1, count))], **attributes)


def model(nodes: list[NodeProto], shape: tuple[int, ...]) -> ModelProto:
    """A chain: "x" is what the node before gave, "input" what was fed."""
    current = "input"
    for number, step in enumerate(nodes):
        step.input[:] = [current if name == "x" else name for name in step.input]
        current = "y" if number == len(nodes) - 1 else f"t{number}"
        step.output[0] = current
    used = {name for step in nodes for name in step.input}
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in CONSTANTS.items() if name in used]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


ROW, IMAGE = (8,), (2, 4, 4)
APART = {
    "flatten": ([node("Flatten", "x"), node("Relu", "x")], IMAGE),
    "attention": (
        [node("Reshape", "x", "pairs"), node("MatMul", "x", "ones"), node("Softmax", "x", axis=1), node("Flatten", "x")],
        ROW,
    ),
    "rows of a sample": ([node("Reshape", "x", "rows"), node("Softmax", "x"), node("Reshape", "x", "pairs")], ROW),
    "to and fro": ([node("Transpose", "x", perm=[1, 0]), node("Sigmoid", "x"), node("Transpose", "x", perm=[1, 0])], ROW),
    "token": ([node("Concat", "x", "input", axis=1), node("MatMul", "x", "w2")], ROW),
    "reduce": ([node("ReduceMean", "x", "axis1", keepdims=0)], IMAGE),
    "gather": ([node("Gather", "x", "backwards", axis=1)], IMAGE),
    "slice": ([node("Slice", "x", "zero", "one", "axis1")], IMAGE),
    "conv": ([node("Conv", "x", "k", pads=[1, 1, 1, 1]), node("GlobalAveragePool", "x")], IMAGE),
    "gemm": ([node("Gemm", "x", "w")], ROW),
}
MIXING = {
    "fold": ([node("Reshape", "x", "one_row")], ROW),
    "reduce": ([node("ReduceMean", "x", "axis0", keepdims=1), node("Sub", "input", "x")], ROW),
    "softmax": ([node("Softmax", "x", axis=0)], ROW),
    "concat": ([node("Concat", "x", "x", axis=0)], ROW),
    "reverse": ([node("Slice", "x", "minus_one", "least", "axis0", "minus_one")], ROW),
    "part": ([node("Slice", "x", "one", "last", "axis0")], ROW),
    "first": ([node("Gather", "x", "first", axis=0)], ROW),
    "transpose": ([node("Transpose", "x", perm=[1, 0])], ROW),
    "swap": ([node("Transpose", "x", perm=[1, 0]), node("Reshape", "x", "rows8")], ROW),
    "product": ([node("Transpose", "x", perm=[1, 0]), node("MatMul", "x", "input")], ROW),
    "scale": (
        [node("DynamicQuantizeLinear", "x", count=3), node("Cast", "x", to=TensorProto.FLOAT)],
        ROW,
    ),
    "constant": ([node("Shape", "x"), node("Cast", "x", to=TensorProto.FLOAT)], ROW),
}


def at_once(proto: ModelProto, batch: np.ndarray) -> np.ndarray:
    return reference_session(proto).run(["y"], {"input": batch})[0]


@pytest.mark.parametrize("name", APART)
def test_samples_that_stay_apart_may_be_any_number(rng: np.random.Generator, name):
    nodes, shape = APART[name]
    proto = model([NodeProto.FromString(step.SerializeToString()) for step in nodes], shape)
    batch = rng.normal(size=(3, *shape)).astype(np.float32)
    loaded = octavo.load(proto)
    assert loaded.any_batch, loaded.batch_obstacle
    np.testing.assert_allclose(octavo.compile(loaded)(batch)["y"], at_once(proto, batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MIXING)
def test_samples_that_are_joined_are_one_symbol(rng: np.random.Generator, name):
    nodes, shape = MIXING[name]
    proto = model([NodeProto.FromString(step.SerializeToString()) for step in nodes], shape)
    loaded = octavo.load(proto)
    assert not loaded.any_batch
    assert loaded.sizes == {"N": (1, None)}
    run = tvm_alone(loaded.bound())
    whole = octavo.compile(octavo.load(proto, shapes={"input": (3, *shape)}))
    for count in (1, 3):
        batch = rng.normal(size=(count, *shape)).astype(np.float32)
        np.testing.assert_allclose(run(batch)[0], at_once(proto, batch), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole(batch)["y"], at_once(proto, batch), rtol=1e-5, atol=1e-6)


def test_a_graph_of_one_sample_refuses_others(rng: np.random.Generator, tmp_path):
    proto = model([node("Reshape", "x", "one_by_8")], ROW)
    batch = rng.normal(size=(3, *ROW)).astype(np.float32)
    octavo.compile(octavo.load(proto)).save(tmp_path / "m.so")
    executable = octavo.load_executable(tmp_path / "m.so")
    executable(batch[:1])
    with pytest.raises(DataError, match=r"y.* load it for that: shapes=\{'input': \(3, .*"):
        executable(batch)
