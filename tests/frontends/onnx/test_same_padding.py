"""Padding SAME of open sizes: ceil(size / stride) values come out, and two ways of the same strides meet."""

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

import octavo
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


def test_sizes_that_are_not_seen_to_meet_do_for_multiples(rng: np.random.Generator) -> None:
    proto = network(rng, [(2, 3)], "SAME_UPPER")
    proto.graph.node.append(node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1], strides=[3, 3]))
    proto.graph.node.append(node("Add", ["y0", "p"], ["sum"]))
    proto.graph.output[0].name = "sum"
    assert octavo.load(proto).sizes == {"N": (1, None), "H_3": (1, None), "W_3": (1, None)}
    octavo.load(proto, sizes={"H": 7, "W": 5})
