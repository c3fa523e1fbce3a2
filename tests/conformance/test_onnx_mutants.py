"""Over a thousand damaged ONNX files: each loads, or gives one line that names the file; nothing is printed, nothing hangs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info
from onnx_mutants import mutants

import octavo
from octavo.errors import OctavoError

FORMS = ("float", "qdq", "qoperator", "integer")
PER_FORM = 150
MAX_SECONDS = 10.0
"""For one file; all of them take half a minute together."""

RNG = np.random.default_rng(1)
SHAPE = (1, 4, 6, 6)
WEIGHT = RNG.integers(-60, 60, (8, 4, 3, 3)).astype(np.int8)
DENSE = RNG.integers(-60, 60, (32, 5)).astype(np.int8)
AFFINE = {"s": np.float32(0.05), "z": np.uint8(128), "ws": np.full(8, 0.01, np.float32), "wz": np.zeros(8, np.int8)}
BIAS = RNG.integers(-500, 500, 8).astype(np.int32)


def network(rng: np.random.Generator, form: str) -> onnx.ModelProto:
    """A convolution, an activation, a pooling, a dense layer and a sum, in one of four forms."""
    constants: dict[str, np.ndarray] = dict(AFFINE)
    tail = [
        make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make_node("Reshape", ["p", "shape"], ["f"]),
    ]
    constants["shape"] = np.array([1, -1], np.int64)
    if form == "float":
        constants |= {"w": WEIGHT.astype(np.float32) / 64, "b": BIAS.astype(np.float32) / 64, "d": np.ones((32, 5), np.float32)}
        nodes = [make_node("Conv", ["x", "w", "b"], ["r"], pads=[0, 0, 0, 0], strides=[1, 1]), make_node("Relu", ["r"], ["c"])]
        nodes += [*tail, make_node("Gemm", ["f", "d"], ["g"]), make_node("Add", ["g", "g"], ["y"])]
    elif form == "integer":
        constants |= {"dz": np.uint8(3), "d": rng.integers(0, 255, (2 * 4 * 6, 5)).astype(np.uint8)}
        nodes = [
            make_node("Slice", ["x", "zero", "one", "two"], ["part"]),
            make_node("Reshape", ["part", "shape"], ["f"]),
            make_node("DynamicQuantizeLinear", ["f"], ["q", "qs", "qz"]),
            make_node("MatMulInteger", ["q", "d", "qz", "dz"], ["i"]),
            make_node("Cast", ["i"], ["r"], to=onnx.TensorProto.FLOAT),
            make_node("Mul", ["r", "qs"], ["y"]),
        ]
        constants |= {"zero": np.array([0, 0]), "one": np.array([2, 4]), "two": np.array([1, 2])}
    elif form == "qdq":
        constants |= {"w": WEIGHT, "b": BIAS, "d": DENSE, "bs": np.full(8, 0.0005, np.float32), "ds": np.float32(0.02)}
        nodes = [
            make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            make_node("DequantizeLinear", ["xq", "s", "z"], ["xf"]),
            make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
            make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
            make_node("Conv", ["xf", "wf", "bf"], ["r"], strides=[1, 1]),
            make_node("QuantizeLinear", ["r", "s", "z"], ["cq"]),
            make_node("DequantizeLinear", ["cq", "s", "z"], ["c"]),
            *tail,
            make_node("QuantizeLinear", ["f", "s", "z"], ["fq"]),
            make_node("DequantizeLinear", ["fq", "s", "z"], ["ff"]),
            make_node("DequantizeLinear", ["d", "ds"], ["df"]),
            make_node("MatMul", ["ff", "df"], ["g"]),
            make_node("QuantizeLinear", ["g", "s", "z"], ["gq"]),
            make_node("DequantizeLinear", ["gq", "s", "z"], ["y"]),
        ]
    else:
        constants |= {"w": WEIGHT, "b": BIAS, "d": DENSE, "ds": np.float32(0.02), "dz": np.int8(0)}
        affine = ["s", "z"]
        nodes = [
            make_node("QuantizeLinear", ["x", *affine], ["xq"]),
            make_node("QLinearConv", ["xq", *affine, "w", "ws", "wz", *affine, "b"], ["c"], strides=[1, 1]),
            make_node("QLinearLeakyRelu", ["c", *affine, *affine], ["l"], alpha=0.1, domain="com.microsoft"),
            make_node(
                "QLinearAveragePool", ["l", *affine, *affine], ["p"], kernel_shape=[2, 2], strides=[2, 2], domain="com.microsoft"
            ),
            make_node("Reshape", ["p", "shape"], ["f"]),
            make_node("QGemm", ["f", *affine, "d", "ds", "dz", "", *affine], ["g"], domain="com.microsoft"),
            make_node("QLinearAdd", ["g", *affine, "g", *affine, *affine], ["t"], domain="com.microsoft"),
            make_node("DequantizeLinear", ["t", *affine], ["y"]),
        ]
    used = {name for node in nodes for name in node.input}
    graph = make_graph(
        nodes,
        "graph",
        [make_tensor_value_info("x", onnx.TensorProto.FLOAT, SHAPE)],
        [make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items() if name in used],
    )
    return make_model(graph, opset_imports=[make_opsetid("", 17), make_opsetid("com.microsoft", 1)], ir_version=8)


def damaged(rng: np.random.Generator, form: str) -> Iterator[bytes]:
    yield from mutants(network(rng, form), PER_FORM, seed=FORMS.index(form) + 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_sound_network_compiles(rng: np.random.Generator, form):
    executable = octavo.compile(octavo.load(network(rng, form)))
    (y,) = executable(np.ones(SHAPE, np.float32)).values()
    assert np.isfinite(y).all()


@pytest.mark.parametrize("form", FORMS)
def test_damaged_files(rng: np.random.Generator, form, tmp_path, capfd):
    path = tmp_path / "damaged.onnx"
    messages: list[str] = []
    outcomes = {"model": 0, "error": 0, "compiled": 0}
    for index, data in enumerate(damaged(rng, form)):
        path.write_bytes(data)
        started = time.perf_counter()
        try:
            model = octavo.load(path)
            outcomes["model"] += 1
            if index % 8 in (2, 5, 7):
                octavo.compile(model)
                outcomes["compiled"] += 1
        except OctavoError as error:
            outcomes["error"] += 1
            messages.append(str(error))
        assert time.perf_counter() - started < MAX_SECONDS, f"file {index}"
    assert [message for message in messages if "\n" in message] == []
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    assert min(outcomes.values()) > 5, outcomes
