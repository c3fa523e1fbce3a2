"""A small recognizer of text in images of any width, as ONNX: convolutions, recurrent layers over the columns, classes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
HEIGHT, CHANNELS, HIDDEN, CLASSES = 8, (8, 12), 19, 7


def recognizer(kind: str, width: int | str = "width", batch: int | str = "batch") -> onnx.ModelProto:
    """Return the model: `kind` is LSTM, GRU or RNN, in both directions."""
    rng = np.random.default_rng(len(kind))
    constants: dict[str, np.ndarray] = {"flat": np.int64([0, 0, -1])}
    nodes: list[onnx.NodeProto] = []

    def node(op: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def weights(name: str, *shape: int) -> str:
        constants[name] = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return name

    x, channels = "image", 3
    for number, more in enumerate(CHANNELS):
        x = node("Conv", [x, weights(f"w{number}", more, channels, 3, 3)], f"conv{number}", pads=[1, 1, 1, 1])
        x = node("MaxPool", [node("Relu", [x], f"relu{number}")], f"pool{number}", kernel_shape=[2, 2], strides=[2, 2])
        channels = more
    columns = node("Reshape", [node("Transpose", [x], "turned", perm=[3, 0, 1, 2]), "flat"], "columns")
    features = CHANNELS[-1] * HEIGHT // 4
    given = [weights("wx", 2, GATES[kind] * HIDDEN, features), weights("wh", 2, GATES[kind] * HIDDEN, HIDDEN)]
    given.append(weights("wb", 2, 2 * GATES[kind] * HIDDEN))
    states = node(kind, [columns, *given], "states", hidden_size=HIDDEN, direction="bidirectional")
    both = node("Reshape", [node("Transpose", [states], "joined", perm=[0, 2, 1, 3]), "flat"], "both")
    node("MatMul", [both, weights("wy", 2 * HIDDEN, CLASSES)], "scores")
    graph = helper.make_graph(
        nodes,
        "recognizer",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, (batch, 3, HEIGHT, width))],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def draw(rng: np.random.Generator, batch: int, width: int) -> dict[str, np.ndarray]:
    """Return an input."""
    return {"image": rng.uniform(-1, 1, (batch, 3, HEIGHT, width)).astype(np.float32)}
