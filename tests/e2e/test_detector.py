"""A detector that chooses its boxes itself: NonMaxSuppression ends the graph."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_node, make_tensor_value_info

import octavo
from octavo.errors import UnsupportedOpError
from reference_sessions import reference_session


def detector(rng, *, reader=False):
    """Two convolutions, then scores of 3 classes and boxes around 64 places each."""
    places = np.stack(np.meshgrid(*[np.arange(8) * 2.0] * 2, indexing="ij"), -1).reshape(1, 64, 2).astype(np.float32)
    constants = {
        "w1": rng.normal(0, 0.4, (16, 3, 3, 3)),
        "w2": rng.normal(0, 0.2, (7, 16, 3, 3)),
        "b2": np.float32([0, 0, 0, 1, 1, 1, 1]),
        "places": np.concatenate([places, places], 2),
        "signs": np.float32([-2, -2, 2, 2]),
    }
    sizes = {"rows": [1, 7, 64], "parts": [3, 4], "most": [10]}
    limits = {"overlap": np.float32([0.4]), "least": np.float32([0.995])}
    nodes = [
        make_node("Conv", ["x", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        make_node("Relu", ["c1"], ["r1"]),
        make_node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1]),
        make_node("Reshape", ["c2", "rows"], ["rowed"]),
        make_node("Split", ["rowed", "parts"], ["raw", "sides"], axis=1),
        make_node("Sigmoid", ["raw"], ["scores"]),
        make_node("Softplus", ["sides"], ["long"]),
        make_node("Transpose", ["long"], ["turned"], perm=[0, 2, 1]),
        make_node("Mul", ["turned", "signs"], ["around"]),
        make_node("Add", ["places", "around"], ["boxes"]),
        make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["chosen"]),
        *([make_node("Cast", ["chosen"], ["numbers"], to=TensorProto.FLOAT)] if reader else []),
    ]
    outputs = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("boxes", "scores")]
    outputs.append(make_tensor_value_info("numbers" if reader else "chosen", 1 if reader else TensorProto.INT64, None))
    tensors = [
        *(onnx.numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in constants.items()),
        *(onnx.numpy_helper.from_array(np.int64(value), name) for name, value in sizes.items()),
        *(onnx.numpy_helper.from_array(value, name) for name, value in limits.items()),
    ]
    graph = make_graph(nodes, "detector", [make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 16, 16))], outputs, tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def chosen(boxes, scores, most, overlap, least):
    """Let ONNX Runtime choose."""
    node = make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["y"])
    values = [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("boxes", "scores")]
    bounds = [("most", np.int64([most])), ("overlap", np.float32([overlap])), ("least", np.float32([least]))]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in bounds]
    graph = make_graph([node], "choice", values, [make_tensor_value_info("y", TensorProto.INT64, None)], tensors)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return reference_session(model).run(None, {"boxes": boxes, "scores": scores})[0]


def test_a_detector_from_file_to_integers(rng, tmp_path):
    """Its convolutions are integer; of each call's boxes and scores it chooses what ONNX Runtime does, as many as there are."""
    model = octavo.load(detector(rng))
    samples = [rng.normal(size=(1, 3, 16, 16)).astype(np.float32) for _ in range(8)]
    quantized = octavo.quantize(model, octavo.profile(model, samples))
    octavo.compile(quantized).save(tmp_path / "detector")
    counts = set()
    for executable in (octavo.compile(model), octavo.load_executable(tmp_path / "detector")):
        for x in samples[:3]:
            got = executable(x)
            assert got["chosen"].dtype == np.int64
            np.testing.assert_array_equal(got["chosen"], chosen(got["boxes"], got["scores"], 10, 0.4, 0.995))
            counts.add(len(got["chosen"]))
    assert len(counts) > 1
    ops = octavo.explain(executable).ops
    assert all(op.integer for op in ops if op.macs)
    assert [op.kernel for op in ops if "suppression" in op.op] == ["float.non_max_suppression"]


@pytest.mark.parametrize(("boxes", "most", "least"), [(300, 20, 0.2), (1000, 1000, 0.97), (7, 3, 2.0)])
def test_choices(make_choice, rng, boxes, most, least):
    """Of many boxes, ties among scores, corners in any order; none at all."""
    corners = rng.uniform(0, 10, (2, boxes, 4)).astype(np.float32)
    corners[:, ::5, 2:] = corners[:, ::5, :2]  # without an area
    scores = np.round(rng.uniform(0, 1, (2, 3, boxes)), 2).astype(np.float32)
    got = make_choice(boxes, most, least)({"boxes": corners, "scores": scores})["y"]
    wanted = chosen(corners, scores, most, 0.3, least)
    np.testing.assert_array_equal(got, wanted)
    assert (len(got) == 0) == (least > 1)


@pytest.fixture
def make_choice():
    def make(boxes, most, least):
        node = make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["y"])
        shapes = {"boxes": (2, boxes, 4), "scores": (2, 3, boxes)}
        values = [make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        bounds = [("most", np.int64([most])), ("overlap", np.float32([0.3])), ("least", np.float32([least]))]
        tensors = [onnx.numpy_helper.from_array(value, name) for name, value in bounds]
        graph = make_graph([node], "choice", values, [make_tensor_value_info("y", TensorProto.INT64, None)], tensors)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        return octavo.compile(octavo.load(model))

    return make


def test_what_reads_the_choice_is_refused(rng):
    with pytest.raises(
        UnsupportedOpError, match=r"op NonMaxSuppression .* which op Cast .* reads, depends on data; let it be an output"
    ):
        octavo.load(detector(rng, reader=True))
