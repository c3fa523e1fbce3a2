"""Small networks for tests of whole modules on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script import relax as R

import octavo
from octavo.ir.graph import Model
from qdq_graph import Qdq, graph


def dense_model(rng: np.random.Generator) -> Model:
    """Two dense layers of int8, the second of which ends in floats."""
    first, second = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((24, 20), (20, 7)))

    def body(writer: Any, variables: dict[str, Any]) -> Any:
        q = Qdq(writer, "int8")
        x = q.dequantize("x", variables["x_q"], (0.02, 3))
        h = writer.emit("h", R.matmul(x, q.weight("w1", first, 0.01)))
        h = q.quantize("h", writer.emit("h_relu", R.nn.relu(h)), (0.05, -7))
        h = q.dequantize("h", h, (0.05, -7))
        return writer.emit("y", R.matmul(h, q.weight("w2", second, 0.02)), is_output=True)

    return octavo.load(graph({"x_q": ((5, 24), "int8")}, body))
