"""Parameters of integers between a quantize and what reads them: every op that moves data keeps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax

from octavo.ir.graph.dataflow import DataflowView
from octavo.ir.qdq.values import integer_params
from qdq_graph import Qdq, graph

SCALE, ZERO_POINT = 0.05, 7
INDICES = relax.const(np.zeros((1, 2, 3), np.int64))
OPS: dict[str, Callable[[Any], Any]] = {
    "broadcast_to": lambda x: relax.op.broadcast_to(x, [4, 2, 3]),
    "gather_elements": lambda x: relax.op.gather_elements(x, INDICES, 1),
    "flip": lambda x: relax.op.flip(x, 1),
    "clip": lambda x: relax.op.clip(x, 3, 90),
}


@pytest.mark.parametrize("name", OPS)
def test_they_are_found_through_what_keeps_them(name: str) -> None:
    def body(writer: Any, inputs: dict[str, Any]) -> Any:
        integers = Qdq(writer, "uint8").quantize("x", inputs["x"], (SCALE, ZERO_POINT))
        return writer.emit("y", OPS[name](integers), is_output=True)

    view = DataflowView(graph({"x": ((1, 2, 3), "float32")}, body)["main"])
    params = integer_params(view, view.bindings[-1].var)
    assert params is not None
    assert (float(params.scale), int(params.zero_point)) == (np.float32(SCALE), ZERO_POINT)


@pytest.mark.parametrize("name", OPS)
def test_they_are_found_from_the_reader(name: str) -> None:
    def body(writer: Any, inputs: dict[str, Any]) -> Any:
        moved = writer.emit("moved", OPS[name](inputs["x"]))
        return writer.emit("y", Qdq(writer, "uint8").dequantize("moved", moved, (SCALE, ZERO_POINT)), is_output=True)

    module = graph({"x": ((1, 2, 3), "uint8")}, body)
    params = integer_params(DataflowView(module["main"]), module["main"].params[0])
    assert params is not None
    assert (float(params.scale), int(params.zero_point)) == (np.float32(SCALE), ZERO_POINT)


def test_an_op_that_computes_hides_them() -> None:
    def body(writer: Any, inputs: dict[str, Any]) -> Any:
        integers = Qdq(writer, "uint8").quantize("x", inputs["x"], (SCALE, ZERO_POINT))
        return writer.emit("y", relax.op.add(integers, integers), is_output=True)

    view = DataflowView(graph({"x": ((1, 2, 3), "float32")}, body)["main"])
    assert integer_params(view, view.bindings[-1].var) is None
