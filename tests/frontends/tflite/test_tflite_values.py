"""Files in which values of inputs decide shapes give what LiteRT gives, of any values."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import octavo
from octavo.errors import DataError, ModelError, UnsupportedOpError
from octavo.ir.graph.unbound import UnboundModel
from tflite_writer import Op, Tensor, write

ADD = {"options_class": "AddOptions", "options": {"FusedActivationFunction": 0}}
DATA = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
X = Tensor(name="x", shape=(3, 4))


def fed(*shape):
    return Tensor(name="n", shape=shape, dtype="int32")


def constant(name, value):
    value = np.asarray(value, np.int32)
    return Tensor(name=name, shape=value.shape, dtype="int32", value=value)


def topk():
    """As many values as a number says that is one more than what is fed; they are doubled behind."""
    tensors = [X, fed(), constant("one", 1), Tensor(name="k", shape=(), dtype="int32"), Tensor(name="v", shape=(3, 1))]
    tensors += [Tensor(name="i", shape=(3, 1), dtype="int32"), Tensor(name="y", shape=(3, 1))]
    ops = [
        Op(name="ADD", inputs=(1, 2), outputs=(3,), **ADD),
        Op(name="TOPK_V2", inputs=(0, 3), outputs=(4, 5), options_class="TopKV2Options"),
        Op(name="ADD", inputs=(4, 4), outputs=(6,), **ADD),
    ]
    return write(tensors, ops, (0, 1), (6, 5))


def tile():
    """Repeated as often as is fed; the writer states no shape of what comes of it."""
    tensors = [X, fed(2), Tensor(name="t", shape=()), Tensor(name="y", shape=())]
    ops = [
        Op(name="TILE", inputs=(0, 1), outputs=(2,), options_class="TileOptions"),
        Op(name="RELU", inputs=(2,), outputs=(3,)),
    ]
    return write(tensors, ops, (0, 1), (3,))


def reshape():
    """To a shape that is fed, then its columns twice."""
    tensors = [X, fed(2), Tensor(name="r", shape=(1, 1)), Tensor(name="y", shape=(1, 1))]
    options = {"options_class": "ConcatenationOptions", "options": {"Axis": -1, "FusedActivationFunction": 0}}
    ops = [
        Op(name="RESHAPE", inputs=(0, 1), outputs=(2,), options_class="ReshapeOptions"),
        Op(name="CONCATENATION", inputs=(2, 2), outputs=(3,), **options),
    ]
    return write(tensors, ops, (0, 1), (3,))


def broadcast():
    tensors = [X, fed(3), Tensor(name="y", shape=(1, 3, 4))]
    return write(
        tensors, [Op(name="BROADCAST_TO", inputs=(0, 1), outputs=(2,), options_class="BroadcastToOptions")], (0, 1), (2,)
    )


CASES = {
    "topk": (topk, [0, 2, 0]),
    "tile": (tile, [(1, 2), (3, 1)]),
    "reshape": (reshape, [(4, 3), (-1, 2), (12, 1)]),
}


@pytest.fixture
def written(tmp_path):
    def make(case):
        path = tmp_path / "m.tflite"
        path.write_bytes(CASES[case][0]())
        return path

    return make


@pytest.mark.parametrize("case", CASES)
def test_equals_litert_whatever_is_fed(case, written):
    path = written(case)
    model = octavo.load(path)
    assert isinstance(model, UnboundModel)
    assert model.deciding == ("n",)
    executable = octavo.compile(model)
    for value in CASES[case][1]:
        feeds = {"x": DATA, "n": np.asarray(value, np.int32)}
        interpreter = Interpreter(str(path))
        interpreter.allocate_tensors()
        for details in interpreter.get_input_details():
            interpreter.set_tensor(details["index"], feeds[details["name"]])
        interpreter.invoke()
        results = list(executable(feeds).values())
        for found, details in zip(results, interpreter.get_output_details(), strict=True):
            np.testing.assert_array_equal(found, interpreter.get_tensor(details["index"]))
            assert found.dtype == details["dtype"]


def test_a_shape_that_is_fed_counts_though_the_file_states_the_result(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(broadcast())
    executable = octavo.compile(octavo.load(path))
    for shape in ((2, 3, 4), (1, 3, 4)):
        np.testing.assert_array_equal(executable({"x": DATA, "n": np.int32(shape)})["y"], np.broadcast_to(DATA, shape))


def test_values_that_are_given_make_a_model_as_any_other(written):
    model = octavo.load(written("topk"), values={"n": 1})
    executable = octavo.compile(octavo.quantize(model, octavo.profile(model, [DATA])))
    assert [spec.source_name for spec in executable.inputs] == ["x"]
    result = executable(DATA)
    np.testing.assert_array_equal(result["i"], np.argsort(-DATA, axis=1)[:, :2])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"m": 1}, "there is no input 'm' to give a value; the inputs are x, n"),
        ({"n": [1, 2]}, r"the value of input n must have shape \[\], got \[2\]"),
        ({"n": 0.5}, "must be of int32, in which"),
    ],
)
def test_values_that_do_not_fit(values, said, written):
    with pytest.raises(ModelError, match=said):
        octavo.load(written("topk"), values=values)


def test_a_count_beyond_the_data_is_one_line_and_the_next_call_runs(written):
    executable = octavo.compile(octavo.load(written("topk")))
    with pytest.raises(UnsupportedOpError, match="the 6 greatest of 4"):
        executable({"x": DATA, "n": np.int32(5)})
    assert executable({"x": DATA, "n": np.int32(3)})["y"].shape == (3, 4)
    with pytest.raises(DataError, match="n"):
        executable({"x": DATA})


def test_what_follows_from_data_is_refused(tmp_path):
    """As often as a row of the data says: it differs with each call."""
    tensors = [
        Tensor(name="x", shape=(3, 70), dtype="int32"),
        constant("axis", [0]),
        Tensor(name="s", shape=(70,), dtype="int32"),
    ]
    tensors += [constant("begin", [0]), constant("size", [2]), Tensor(name="n", shape=(2,), dtype="int32")]
    tensors.append(Tensor(name="y", shape=(3, 70), dtype="int32"))
    ops = [
        Op(name="SUM", inputs=(0, 1), outputs=(2,), options_class="ReducerOptions", options={"KeepDims": False}),
        Op(name="SLICE", inputs=(2, 3, 4), outputs=(5,), options_class="SliceOptions"),
        Op(name="TILE", inputs=(0, 5), outputs=(6,), options_class="TileOptions"),
    ]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (6,)))
    with pytest.raises(UnsupportedOpError, match=r"op TILE \(output tensor 'y'\): repetitions computed at run time"):
        octavo.load(path)
