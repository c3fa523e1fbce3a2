"""Where a float value leads to through elementwise ops alone: quantizes, or why there are none."""

from typing import Any

import numpy as np
import pytest
from tvm import relax

from nets import model_of
from octavo.ir.graph.dataflow import BodyWriter, DataflowView
from octavo.ir.graph.rules import Rejection
from octavo.ir.qdq import cluster

LENGTH = 40


def stream(writer: BodyWriter, **v: Any) -> Any:
    """A residual stream of sums that a product ends, and beside it sums that are quantized, by one quantize and by two."""
    value = v["x"]
    for step in range(LENGTH):
        branch = writer.emit(f"branch{step}", relax.op.tanh(value))
        value = writer.emit(f"sum{step}", relax.op.add(branch, value))
    scale, zero_point = relax.const(0.1, "float32"), relax.const(3, "int8")
    once = writer.emit("once", relax.op.sqrt(value))
    writer.emit("q", relax.op.quantize(once, scale, zero_point, out_dtype="int8"))
    twice = writer.emit("twice", relax.op.exp(once))
    writer.emit("q1", relax.op.quantize(twice, scale, zero_point, out_dtype="int8"))
    writer.emit("q2", relax.op.quantize(twice, scale, zero_point, out_dtype="int8"))
    unread = writer.emit("unread", relax.op.sin(twice))
    assert unread is not None
    return writer.emit("y", relax.op.matmul(value, v["w"]), is_output=True)


def test_ends_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of({"x": ((4, 4), "float32")}, {"w": np.eye(4, dtype=np.float32)}, stream, ("y",))
    view = DataflowView(model.module["main"])
    by_name = {binding.var.name: binding.var for binding in view.bindings}
    asked: list[Any] = []
    is_elementwise = cluster.is_elementwise
    monkeypatch.setattr(cluster, "is_elementwise", lambda value: asked.append(value) or is_elementwise(value))
    for step in range(LENGTH):
        for name in (f"branch{step}", f"sum{step}"):
            found = cluster.ends_of(view, by_name[name])
            assert isinstance(found, Rejection)
            assert found.reason.startswith("y (matmul) is float and no elementwise op")
    assert len(asked) < 3 * LENGTH, "a stream is walked once, not once for each of its values"
    unread = cluster.ends_of(view, by_name["unread"])
    assert isinstance(unread, Rejection)
    assert unread.reason.startswith("the result of unread is never quantized")
    for name, ends in {"once": {"q", "q1", "q2"}, "twice": {"q1", "q2"}}.items():
        found = cluster.ends_of(view, by_name[name])
        assert not isinstance(found, Rejection)
        assert {var.name for var in found} == ends
