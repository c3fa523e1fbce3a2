"""Tensors without elements give what LiteRT gives: they pass ops, and add nothing to what is joined or summed."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

import octavo
from octavo.errors import DataError, ModelError
from tflite_writer import Op, Tensor, write

KINDS = {
    "float32": ({"dtype": "float32"}, {"dtype": "float32"}),
    "int8": ({"dtype": "int8", "scale": (0.05,), "zero_point": (3,)}, {"dtype": "int8", "scale": (0.11,), "zero_point": (-7,)}),
    "int32": ({"dtype": "int32"}, {"dtype": "int32"}),
}
NONE = {"FusedActivationFunction": 0}
TRANSPOSE = ("TRANSPOSE", "TransposeOptions", {})


def constant(name, value, **fields):
    value = np.asarray(value)
    return Tensor(name=name, shape=value.shape, dtype=str(value.dtype), value=value, **fields)


def dense(params):
    weight = np.arange(24).reshape(6, 4) - 12
    if params["dtype"] == "int8":
        return constant("w", weight.astype(np.int8), scale=(0.01,), zero_point=(0,))
    return constant("w", weight.astype(np.float32))


CASES = {
    "add": ("ADD", "AddOptions", NONE, (0, 4), [(0, 4)], (0, 4)),
    "concatenation": ("CONCATENATION", "ConcatenationOptions", {"Axis": 0, **NONE}, (0, 4), [(2, 4)], (2, 4)),
    "sum": ("SUM", "ReducerOptions", {"KeepDims": False}, (0, 4), [np.int32([0])], (4,)),
    "reshape": ("RESHAPE", "ReshapeOptions", {}, (0, 4), [np.int32([2, 0])], (2, 0)),
    "transpose": (*TRANSPOSE, (0, 4), [np.int32([1, 0])], (4, 0)),
    "slice": ("SLICE", "SliceOptions", {}, (3, 4), [np.int32([1, 0]), np.int32([0, 4])], (0, 4)),
    "dense": ("FULLY_CONNECTED", "FullyConnectedOptions", {"KeepNumDims": False}, (0, 4), [dense], (0, 6)),
}
KEEP_PARAMETERS = {"concatenation", "reshape", "transpose", "slice"}


def file_of(case, kind):
    """Return a file of one op, and its inputs' tensors."""
    name, options_class, options, shape, others, out = CASES[case]
    params, result = KINDS[kind]
    tensors = [Tensor(name="x", shape=shape, **params)]
    for number, other in enumerate(others):
        if isinstance(other, tuple):
            tensors.append(Tensor(name=f"other{number}", shape=other, **params))
        else:
            tensors.append(other(params) if callable(other) else constant(f"c{number}", other))
    fed = tuple(index for index, tensor in enumerate(tensors) if tensor.value is None)
    tensors.append(Tensor(name="y", shape=out, **(params if case in KEEP_PARAMETERS else result)))
    inputs = (*range(len(tensors) - 1), *([-1] if case == "dense" else []))
    op = Op(name=name, inputs=inputs, outputs=(len(tensors) - 1,), options_class=options_class, options=options)
    return write(tensors, [op], fed, (len(tensors) - 1,)), [tensors[index] for index in fed]


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (case, kind)
        for case in CASES
        for kind in KINDS
        if (case, kind) not in {("dense", "int32"), ("pool", "int32"), ("pool", "float32")}
    ],
)
def test_equals_litert(case, kind, rng, tmp_path):
    content, inputs = file_of(case, kind)
    path = tmp_path / "m.tflite"
    path.write_bytes(content)
    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    feeds = {tensor.name: rng.integers(-9, 9, tensor.shape).astype(tensor.dtype) for tensor in inputs}
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], feeds[details["name"]])
    interpreter.invoke()
    wanted = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    found = octavo.compile(octavo.load(path))(feeds)["y"]
    np.testing.assert_array_equal(found, wanted, strict=True)


def test_a_network_without_values_is_not_profiled(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(file_of("transpose", "float32")[0])
    with pytest.raises(DataError, match=r"input x of shape \[0, 4\] has no elements: there is nothing to profile"):
        octavo.profile(octavo.load(path), [np.zeros((0, 4), np.float32)])


def test_a_part_without_values_is_quantized_with_the_rest(rng, tmp_path):
    """Nothing of an empty input is profiled where the network has others."""
    tensors = [Tensor(name="x", shape=(3, 4)), constant("b", np.int32([1, 0])), constant("s", np.int32([0, 4]))]
    tensors += [Tensor(name="part", shape=(0, 4)), dense({"dtype": "float32"}), Tensor(name="y", shape=(3, 6))]
    ops = [
        Op(name="SLICE", inputs=(0, 1, 2), outputs=(3,), options_class="SliceOptions"),
        Op(name="FULLY_CONNECTED", inputs=(0, 4, -1), outputs=(5,), options_class="FullyConnectedOptions"),
    ]
    path = tmp_path / "m.tflite"
    path.write_bytes(write(tensors, ops, (0,), (3, 5)))
    model = octavo.load(path)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    executable = octavo.compile(octavo.quantize(model, octavo.profile(model, [x])))
    found = executable(x)
    assert found["part"].shape == (0, 4)
    assert all(op.integer for op in octavo.explain(executable).ops if op.macs)


def test_a_file_without_inputs_runs_and_one_without_outputs_is_refused(tmp_path):
    path = tmp_path / "m.tflite"
    tensors = [constant("c", np.float32([1, -2, 3])), Tensor(name="y", shape=(3,))]
    op = Op(name="ABS", inputs=(0,), outputs=(1,))
    path.write_bytes(write(tensors, [op], (), (1,)))
    executable = octavo.compile(octavo.load(path))
    executable.save(tmp_path / "saved")
    np.testing.assert_array_equal(octavo.load_executable(tmp_path / "saved")({})["y"], [1, 2, 3])
    with pytest.raises(DataError, match="no samples"):
        octavo.profile(octavo.load(path), [{}])
    path.write_bytes(write([Tensor(name="x", shape=(3,))], [], (0,), ()))
    with pytest.raises(ModelError, match="has no outputs; there is nothing to run"):
        octavo.load(path)
