"""A recurrence over steps as ONNX's LSTM, GRU or RNN. Decides nothing.

Ours reads the products with the input, which ONNX's ops compute themselves: they multiply by the identity, which changes nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import DataflowView, call_to
from ...ir.graph.recurrence import read_recurrence
from ...target.vocabulary import RECURRENT_STATE


class NodeWriter(Protocol):
    """What writes a module's ops."""

    nodes: list[Any]
    roundings: dict[str, str]
    view: DataflowView

    def read(self, value: Expr) -> str:
        """Return the tensor of a value."""
        ...

    def value(self, expr: Any) -> npt.NDArray[Any]:
        """Return a constant's value."""
        ...

    def constant(self, value: npt.NDArray[Any]) -> str:
        """Return the initializer of a value."""
        ...

    def node(self, op: str, inputs: list[str], made: Var | str, **attrs: Any) -> str:
        """Add a node; return its result."""
        ...


def recurrent_node(writer: NodeWriter, var: Var, call: Any) -> str:
    """Write a call of the recurrence; return the tensor of its result, states first."""
    what, operands = read_recurrence(call)
    weights, (width, gates) = _weights(writer, var, operands["weights"])
    inputs = [writer.read(operands["x"]), writer.constant(np.eye(gates, dtype=np.float32)[None]), weights, ""]
    if "bias" in operands:
        own = writer.value(operands["bias"]).reshape(1, -1)
        inputs[3] = writer.constant(np.concatenate([np.zeros_like(own), own], axis=1))
    first = writer.constant(np.asarray([0]))
    states = [writer.node("Unsqueeze", [writer.read(operands[name]), first], f"{var.name}_{name}") if name in operands else ""
              for name in ("hidden", "cell")]  # fmt: skip
    inputs += ["", *states]
    if "peepholes" in operands:
        inputs.append(writer.constant(writer.value(operands["peepholes"]).reshape(1, -1)))
    while not inputs[-1]:
        inputs.pop()
    attrs: dict[str, Any] = {"hidden_size": width, "activations": [name.capitalize() for name in what.activations]}
    attrs |= {"direction": "reverse"} if what.backwards else {}
    attrs |= {"linear_before_reset": 1} if what.resets_products else {}
    attrs |= {"clip": what.clip} if what.clip else {}
    steps = writer.node(what.kind, inputs, f"{var.name}_steps", **attrs)
    if what.rounded:
        writer.roundings[steps] = RECURRENT_STATE
    ends = [f"{steps}_{name}" for name in ("hidden", "cell")[: what.states]]
    writer.nodes[-1].output.extend(ends)
    rows = writer.node("Squeeze", [steps, writer.constant(np.asarray([1]))], f"{var.name}_rows")
    return writer.node("Concat", [*ends, rows], var, axis=0) if ends else rows


def _weights(writer: NodeWriter, var: Var, weights: Expr) -> tuple[str, tuple[int, int]]:
    """Return the tensor of recurrent weights as ONNX has them, dequantized where they are integers, and their shape in ours."""
    call: Any = call_to(writer.view.definition(weights), "dequantize")
    if call is None:
        values = writer.value(weights)
        return writer.constant(np.ascontiguousarray(values.T)[None]), values.shape
    integers, scale = (writer.value(arg) for arg in call.args[:2])
    turned = np.ascontiguousarray(integers.T)[None]
    scales = np.broadcast_to(scale.reshape(-1), turned.shape[1:2]).astype(np.float32)
    inputs = [writer.constant(each) for each in (turned, scales, np.zeros(scales.shape, np.int8))]
    return writer.node("DequantizeLinear", inputs, f"{var.name}_weights", axis=1), integers.shape
