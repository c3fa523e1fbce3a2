"""Movement along axes of open size in integers: as where sizes are fixed, with the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm

import octavo
from octavo.ir.graph.fixed_sizes import at_sizes
from plain_code import plain_code

HEADER = '<ir_version: 8, opset_import: ["" : 18]> net '
AXES = "axes = Constant <value_ints = [2, 3]> ()"
END = "end = Constant <value_ints = [9223372036854775807, 9223372036854775807]> ()"
TWICE = "twice = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
MOVES = {
    "every second": f"""{AXES} {END} a = Constant <value_ints = [0, 1]> () s = Constant <value_ints = [2, 3]> ()
        m = Slice(b, a, end, axes, s)""",
    "from a place on": f"{AXES} {END} a = Constant <value_ints = [1, 2]> () m = Slice(b, a, end, axes)",
    "up to a place": f"""{AXES} a = Constant <value_ints = [0, 0]> () e = Constant <value_ints = [-1, -2]> ()
        m = Slice(b, a, e, axes)""",
    "backwards": f"""{AXES} a = Constant <value_ints = [-1, -1]> () s = Constant <value_ints = [-1, -1]> ()
        e = Constant <value_ints = [-9223372036854775807, -9223372036854775807]> () m = Slice(b, a, e, axes, s)""",
    "padded": "p = Constant <value_ints = [0, 0, 1, 2, 0, 0, 3, 1]> () m = Pad(b, p)",
    "around": """p = Constant <value_ints = [0, 0, 1, 2, 0, 0, 3, 0]> () q = Constant <value_ints = [0, 0, 0, 9, 0, 0, 3, 1]> ()
        r = Constant <value_ints = [2, 1, 3, 2]> ()
        m0 = Pad <mode = "reflect"> (b, p) m1 = Pad <mode = "edge"> (m0, q) m = Tile(m1, r)""",
    "nearest": f"""{TWICE}
        m = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (b, , twice)""",
    "bilinear": f'{TWICE} m = Resize <mode = "linear"> (b, , twice)',
    "nearest of half pixels": f'{TWICE} m = Resize <mode = "nearest"> (b, , twice)',
    "one place": "i = Constant <value_ints = [1]> () g = Gather <axis = 2> (b, i) m = Concat <axis = 2> (g, b)",
    "channels": "i = Constant <value_ints = [3, 0, 2, 1]> () m = Gather <axis = 1> (b, i)",
}


WITH_LESS_NOTHING_IS_LEFT = ("every second", "from a place on", "up to a place")
WEIGHTS = {"w": (4, 3, 3, 3), "v": (4, 4, 3, 3)}


def network(names: Sequence[str], rng: np.random.Generator) -> onnx.ModelProto:
    """A convolution; behind it each movement, and a convolution behind that, whose result has the movement's name."""
    proto = onnx.parser.parse_model(
        HEADER + "(float[N,3,H,W] x) => (float[N,4,H,W] b) { a0 = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu(a0) }"
    )
    del proto.graph.output[:]
    for name in names:
        part = onnx.parser.parse_model(HEADER + f"(float[N,4,H,W] b) => (float[N,C,A,B] m) {{ {MOVES[name]} }}")
        for node in part.graph.node:
            for values in (node.input, node.output):
                values[:] = [value if value in ("", "b") else f"{name}.{value}" for value in values]
        proto.graph.node.extend(part.graph.node)
        proto.graph.node.append(onnx.helper.make_node("Conv", [f"{name}.m", "v"], [name], pads=[1, 1, 1, 1]))
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    arrays = {weight: rng.normal(size=shape).astype(np.float32) for weight, shape in WEIGHTS.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, weight) for weight, array in arrays.items())
    return proto


@pytest.mark.parametrize("name", MOVES)
def test_sizes_stay_open(name: str, rng: np.random.Generator) -> None:
    sizes = octavo.load(network([name], rng)).sizes
    assert sizes == {"N": (1, None), "H": (1, None), "W": (1, None)} or name in WITH_LESS_NOTHING_IS_LEFT


def test_moves_are_integer_and_give_the_bytes_of_each_size(rng: np.random.Generator) -> None:
    model = octavo.load(network(list(MOVES), rng))
    samples = [{"x": rng.normal(size=(1, 3, *size)).astype(np.float32)} for size in ((8, 8), (16, 12), (5, 16))]
    with plain_code():
        quantized = octavo.quantize(model, octavo.profile(model, samples), preset="fast")
    assert " float " not in "\n".join(str(octavo.explain(quantized)).splitlines()[2:-1])
    executable = octavo.compile(quantized)
    for shape in ((2, 3, 16, 12), (1, 3, 5, 9)):
        x = rng.normal(size=shape).astype(np.float32)
        sizes = dict(zip(("N", "H", "W"), (shape[0], *shape[2:]), strict=True))
        module = tvm.IRModule(at_sizes(dict(quantized.module.functions_items()), sizes))
        with plain_code():
            of_one_size = octavo.compile(replace(quantized, module=module, sizes={}))
        alone, given = of_one_size(x), executable(x)
        assert given.keys() == alone.keys() == MOVES.keys()
        for name in MOVES:
            assert given[name].shape == alone[name].shape, (name, shape)
            assert given[name].tobytes() == alone[name].tobytes(), (name, shape)
