"""An op that the frontend writes as many answers to its own name when it is excluded."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo


@pytest.fixture(scope="module")
def model() -> octavo.Model:
    """An LSTM of 4 units over 2 steps, and a product of what it ends with."""
    rng = np.random.default_rng(0)
    shapes = {"w": (1, 16, 3), "r": (1, 16, 4), "b": (1, 32), "d": (4, 6)}
    constants = [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "b"], ["all", "last"], hidden_size=4),
        helper.make_node("MatMul", ["last", "d"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", (2, 1, 3)), ("y", (1, 1, 6)))]
    graph = helper.make_graph(nodes, "lstm", ends[:1], ends[1:], constants)
    return octavo.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8))


def test_a_kind_of_op_that_is_written_as_many(model: octavo.Model) -> None:
    profile = octavo.profile(model, [np.random.default_rng(1).normal(size=(2, 1, 3)).astype(np.float32)], keep_samples=0)
    products = {
        exclude: [
            layer.output
            for layer in octavo.quantize(model, profile, recipe=octavo.Recipe(exclude=exclude)).plan.layers
            if layer.is_product
        ]
        for exclude in ((), ("LSTM",), ("MatMul",))
    }
    inner = {name: [each for each in made if each not in model.tensors] for name, made in products.items()}
    assert inner[()], "or this test shows nothing"
    assert inner[("LSTM",)] == []
    assert "y" in products[("LSTM",)]
    assert inner[("MatMul",)] == inner[()]
    assert "y" not in products[("MatMul",)]
