"""Padding SAME of open sizes: ceil(size / stride) values come out, and two ways of the same strides meet."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

import octavo
from octavo.ir.graph.fixed_sizes import at_sizes
from octavo.ir.graph.sizes import size_of
from reference_sessions import reference_session


def network(rng: np.random.Generator, steps: list[tuple[int, int]], mode: str) -> ModelProto:
    """Convolutions of these kernels and strides; to results of those of stride 1 what they read is added."""
    nodes, weights, x = [], [], "x"
    for place, (kernel, stride) in enumerate(steps):
        name = f"y{place}"
        conv = name if stride > 1 else f"c{place}"
        weights.append(numpy_helper.from_array(rng.normal(size=(3, 3, kernel, kernel)).astype(np.float32), f"w{place}"))
        nodes.append(node("Conv", [x, f"w{place}"], [conv], strides=[stride] * 2, auto_pad=mode))
        if stride == 1:
            nodes.append(node("Add", [conv, x], [name]))
        x = name
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in (("x", ("N", 3, "H", "W")), (x, None))
    )
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("steps", "height"),
    [([(3, 2), (3, 2), (3, 1)], "floordiv(H + 3, 4)"), ([(3, 2), (5, 2), (4, 2), (5, 1)], "floordiv(H + 7, 8)")],
)
def test_sizes_are_rounded_up_and_meet(rng: np.random.Generator, steps: list[tuple[int, int]], height: str, mode: str) -> None:
    proto = network(rng, steps, mode)
    model = octavo.load(proto)
    assert model.sizes == {"N": (1, None), "H": (1, None), "W": (1, None)}
    result = model.module["main"].body.body.ty.shape.values
    assert [str(size_of(size)) for size in result] == ["N", "3", height, height.replace("H", "W")]
    executable, session = octavo.compile(model), reference_session(proto)
    for batch, rows, columns in ((1, 16, 16), (2, 17, 24), (1, 31, 7), (1, 1, 2)):
        x = rng.normal(size=(batch, 3, rows, columns)).astype(np.float32)
        (wanted,) = session.run(None, {"x": x})
        (given,) = executable({"x": x}).values()
        assert given.shape == wanted.shape
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 2), (2, 3), (3, 3)])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_a_shortcut_without_padding_meets_it(rng: np.random.Generator, kernel: int, stride: int, mode: str) -> None:
    proto = network(rng, [(kernel, stride)], mode)
    proto.graph.node.append(node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1], strides=[stride, stride]))
    proto.graph.node.append(node("Add", ["y0", "p"], ["sum"]))
    proto.graph.output[0].name = "sum"
    model = octavo.load(proto)
    assert model.sizes == {"N": (1, None), "H": (1, None), "W": (1, None)}
    executable, session = octavo.compile(model), reference_session(proto)
    for shape in ((1, 3, 8, 9), (2, 3, 7, 6), (1, 3, 1, 2)):
        x = rng.normal(size=shape).astype(np.float32)
        (wanted,), (given,) = session.run(None, {"x": x}), executable(x).values()
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), strict=True)


def test_its_convolutions_are_integer(rng: np.random.Generator) -> None:
    proto = network(rng, [(3, 2), (3, 1), (5, 2)], "SAME_UPPER")
    model = octavo.load(proto)
    samples = [{"x": rng.normal(size=(1, 3, *size)).astype(np.float32)} for size in ((16, 16), (17, 12), (9, 24))]
    quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    assert " float " not in "\n".join(str(octavo.explain(quantized)).splitlines()[2:-1])
    executable = octavo.compile(quantized)
    for shape in ((1, 3, 16, 17), (2, 3, 11, 8)):
        x = rng.normal(size=shape).astype(np.float32)
        sizes = dict(zip(("N", "H", "W"), (shape[0], *shape[2:]), strict=True))
        module = tvm.IRModule(at_sizes(dict(quantized.module.functions_items()), sizes))
        (alone,) = octavo.compile(replace(quantized, module=module, sizes={}))(x).values()
        (given,) = executable(x).values()
        assert given.tobytes() == alone.tobytes(), shape


def transposed(**attributes: Any) -> ModelProto:
    weight = np.random.default_rng(0).normal(size=(3, 2, 3, 4)).astype(np.float32)
    conv = node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count, "H", "W"]) for name, count in (("x", 3), ("y", 2)))
    graph = helper.make_graph([conv], "graph", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_transposed_sizes_are_multiples(rng: np.random.Generator, mode: str) -> None:
    proto = transposed(auto_pad=mode, strides=[2, 3], dilations=[2, 1])
    executable, session = octavo.compile(octavo.load(proto)), reference_session(proto)
    for shape in ((1, 3, 5, 4), (1, 3, 1, 7)):
        x = rng.normal(size=shape).astype(np.float32)
        (wanted,), (given,) = session.run(None, {"x": x}), executable(x).values()
        np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max(), strict=True)


def test_stated_transposed_sizes_take_known_ones() -> None:
    with pytest.raises(octavo.OctavoError, match=r"output_shape .* of an image of open sizes; fix one of H, W: "):
        octavo.load(transposed(output_shape=[11, 13], strides=[2, 3]))


def rounded_pool(op: str, **attributes: int) -> ModelProto:
    pool = node(op, ["x"], ["y"], kernel_shape=[2], strides=[3], ceil_mode=1, **attributes)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2, size]) for name, size in (("x", "L"), ("y", None)))
    graph = helper.make_graph([pool], "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_pools_of_open_rows_that_round_up_and_count_padding() -> None:
    with pytest.raises(octavo.OctavoError, match="ceil_mode with count_include_pad over open sizes; fix L: "):
        octavo.load(rounded_pool("AveragePool", count_include_pad=1))


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool", "LpPool"])
def test_pools_of_open_rows_round_up(rng: np.random.Generator, op: str) -> None:
    proto = rounded_pool(op)
    executable, session = octavo.compile(octavo.load(proto)), reference_session(proto)
    for length in (7, 8, 9):
        values = rng.normal(size=(1, 2, length)).astype(np.float32)
        (wanted,), (given,) = session.run(None, {"x": values}), executable(values).values()
        np.testing.assert_allclose(given, wanted, rtol=1e-5, atol=1e-6, strict=True)
