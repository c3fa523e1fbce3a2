"""Models whose batch size is symbolic: compiled once they take any number of samples; a fixed shape can be given instead."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import octavo
from octavo.errors import OctavoError
from reference_sessions import reference_session


@pytest.fixture(scope="module")
def proto():
    weight = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "symbolic",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def batch():
    return np.random.default_rng(1).normal(size=(5, 3, 8, 8)).astype(np.float32)


def test_a_float_model_takes_any_batch(proto, batch):
    executable = octavo.compile(octavo.load(proto))
    (want,) = reference_session(proto).run(None, {"x": batch})
    np.testing.assert_allclose(executable(batch)["y"], want, rtol=1e-5, atol=1e-6)
    assert executable(batch[:1])["y"].shape == (1, 4)


def test_a_quantized_model_takes_any_batch_also_from_its_file(proto, batch, tmp_path):
    model = octavo.load(proto)
    executable = octavo.compile(octavo.quantize(model, octavo.profile(model, [batch])))
    executable.save(tmp_path / "m.so")
    whole = octavo.load_executable(tmp_path / "m.so")(batch)["y"]
    assert whole.shape == (5, 4)
    np.testing.assert_array_equal(whole, np.concatenate([executable(batch[i : i + 1])["y"] for i in range(5)]))


def test_a_given_shape_is_compiled_as_it_is(proto, batch):
    executable = octavo.compile(octavo.load(proto, shapes={"x": (5, 3, 8, 8)}))
    (want,) = reference_session(proto).run(None, {"x": batch})
    np.testing.assert_allclose(executable(batch)["y"], want, rtol=1e-5, atol=1e-6)
    with pytest.raises(OctavoError, match="shape"):
        executable(batch[:2])


def test_a_fixed_batch_is_run_as_often_as_it_takes(proto, batch):
    fixed = octavo.compile(octavo.load(proto, shapes={"x": (1, 3, 8, 8)}))
    np.testing.assert_array_equal(fixed(batch)["y"], np.concatenate([fixed(batch[i : i + 1])["y"] for i in range(5)]))
    with pytest.raises(OctavoError, match="shape"):
        octavo.compile(octavo.load(proto, shapes={"x": (2, 3, 8, 8)}))(batch)
