"""The fingerprint follows what a model computes, and nothing else."""

import re
import shutil

import numpy as np
import onnx
import pytest
from onnx.helper import make_node
from tvm import relax

from octavo.frontends import load


@pytest.fixture
def proto(make_onnx):
    constants = {"w": np.arange(36, dtype=np.float32).reshape(4, 1, 3, 3), "b": np.arange(4, dtype=np.float32)}
    nodes = [make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1] * 4), make_node("Relu", ["c"], ["y"])]
    return make_onnx(nodes, {"x": ("N", 1, 5, 5)}, {"y": None}, constants)


def test_form(proto):
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", load(proto).fingerprint)


def test_equal_models(proto, tmp_path):
    expected = load(proto).fingerprint
    other = onnx.ModelProto()
    other.CopyFrom(proto)
    other.doc_string, other.producer_name, other.model_version = "text", "somebody", 7
    other.graph.doc_string, other.graph.node[0].doc_string, other.graph.name = "a", "b", "c"
    other.graph.node[0].name = "renamed"
    bias = other.graph.initializer[1]
    bias.CopyFrom(onnx.helper.make_tensor("b", onnx.TensorProto.FLOAT, (4,), [0.0, 1.0, 2.0, 3.0]))
    other.graph.initializer.reverse()
    assert load(other).fingerprint == expected
    for name in ("first.onnx", "second.bin"):
        onnx.save(other, tmp_path / name)
        assert load(tmp_path / name).fingerprint == expected
    onnx.save(other, tmp_path / "external.onnx", save_as_external_data=True, size_threshold=0)
    assert load(tmp_path / "external.onnx").fingerprint == expected
    assert load(proto, shapes={"x": (4, 1, 5, 5)}).fingerprint == expected, "the shape to run with is not the model"


def weight_changed(graph):
    value = onnx.numpy_helper.to_array(graph.initializer[0]).copy()
    value[3, 0, 2, 2] = np.nextafter(value[3, 0, 2, 2], np.float32(np.inf))
    graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(value, "w"))


def attribute_changed(graph):
    graph.node[0].attribute[0].ints[0] = 0


def op_changed(graph):
    graph.node[1].op_type = "Sigmoid"


def name_changed(graph):
    graph.node[0].output[0] = graph.node[1].input[0] = "other"


def shape_changed(graph):
    graph.input[0].type.tensor_type.shape.dim[3].dim_value = 6


@pytest.mark.parametrize("change", [weight_changed, attribute_changed, op_changed, name_changed, shape_changed])
def test_different_models(proto, change):
    before = load(proto).fingerprint
    change(proto.graph)
    assert load(proto).fingerprint != before


def test_tflite(shared, tmp_path):
    path = shared / "models/tflite/resnet8_cifar10_int8.tflite"
    expected = load(path).fingerprint
    copy = tmp_path / "copy"
    shutil.copyfile(path, copy)
    assert load(copy).fingerprint == expected
    data = bytearray(path.read_bytes())
    weight = load(path).params["model_conv2d_8_Conv2D"]
    # The 1x1 kernel lies in the file as [outputs, 1, 1, inputs].
    at = bytes(data).index(np.ascontiguousarray(weight.transpose(3, 0, 1, 2)).tobytes())
    data[at] ^= 1
    copy.write_bytes(data)
    assert load(copy).fingerprint != expected


def test_relax(proto):
    model = load(proto)
    one, two = load(model.bound()), load(model.bound())
    assert one.fingerprint == two.fingerprint != model.fingerprint
    bindings = {name: value * (1 + (name == "w")) for name, value in model.params.items()}
    assert load(relax.transform.BindParams("main", bindings)(model.module)).fingerprint != one.fingerprint
