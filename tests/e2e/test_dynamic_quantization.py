"""Models that ONNX Runtime quantizes dynamically run as integers here and give its results to float rounding."""

import logging

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import octavo
from reference_sessions import reference_session


def write(path, nodes, constants, shape, out_shape):
    values = [helper.make_tensor_value_info("x", 1, shape)], [helper.make_tensor_value_info("y", 1, out_shape)]
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", *values, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def projections(rng, path):
    """Two projections of one input, multiplied, and a third with a bias."""
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["x", "w1"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("MatMul", ["c", "w2"], ["d"]),
        helper.make_node("Add", ["d", "bias"], ["e"]),
        helper.make_node("Relu", ["e"], ["y"]),
    ]
    shapes = {"w0": (20, 16), "w1": (20, 16), "w2": (16, 5), "bias": (5,)}
    write(path, nodes, {name: rng.normal(size=shape) for name, shape in shapes.items()}, [2, 3, 20], [2, 3, 5])


def convolution(rng, path):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], strides=[2, 1])]
    write(path, nodes, {"w": rng.normal(size=(6, 4, 3, 3))}, [1, 4, 8, 8], [1, 6, 4, 8])


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("make", "weights"),
    [(projections, QuantType.QInt8), (projections, QuantType.QUInt8), (convolution, QuantType.QUInt8)],
)
def test_equals_onnx_runtime(rng, tmp_path, make, weights, per_channel):
    make(rng, tmp_path / "float.onnx")
    path = tmp_path / "dynamic.onnx"
    logging.disable(logging.WARNING)
    quantize_dynamic(tmp_path / "float.onnx", path, per_channel=per_channel, weight_type=weights)
    logging.disable(logging.NOTSET)
    model = octavo.load(path)
    layers = [op for op in octavo.explain(model).ops if op.macs]
    assert layers
    assert all(op.integer for op in layers), [op.reason for op in layers]
    session = reference_session(path)
    x = rng.normal(size=session.get_inputs()[0].shape).astype(np.float32)
    (want,) = session.run(None, {"x": x})
    (got,) = octavo.compile(model)(x).values()
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
