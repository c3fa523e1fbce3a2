"""Our converters of PyTorch's recurrent layers, LSTM, GRU and RNN, of any number of layers. Imports no PyTorch.

TVM's multiply the input of every step by itself, and take one layer and known steps; PyTorch's decompositions trace each step,
which takes minutes. An LSTM whose hidden state is projected is left to the latter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.recurrence import GATES, Kind
from ...ir.untyped import ops
from ..recurrent_layers import Direction, RecurrentWriter
from ..relax_ops import shape_of
from .ops import Arguments, Converter

_ORDERS = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where PyTorch has the gates that lie side by side in ONNX's order."""


def is_projected(values: dict[str, Any]) -> bool:
    """Whether a layer has a matrix beside those of its gates and their biases."""
    matrices = (4 if values["has_biases"] else 2) * (2 if values["bidirectional"] else 1)
    return len(values["params"]) != matrices * int(values["num_layers"])


def _recurrent(args: Arguments, kind: Kind, activations: list[str]) -> Any:
    x, params, is_biased = args["input"], list(args["params"]), bool(args["has_biases"])
    states = list(args["hx"]) if kind == "LSTM" else [args["hx"]]
    writer = RecurrentWriter(
        builder=args.builder,
        symbols=args.symbols,
        kind=kind,
        hidden=shape_of(params[1])[1],
        resets_products=True,
        states=len(states),
    )
    if args["batch_first"]:
        x = args.emit(ops.permute_dims(x, [1, 0, 2]))
    directions, size = 2 if args["bidirectional"] else 1, 4 if is_biased else 2
    last: list[list[Any]] = [[] for _ in states]
    for layer in range(int(args["num_layers"])):
        outputs: list[Any] = []
        for turned in range(directions):
            place = layer * directions + turned
            weight, recurrence, *biases = (_in_order(writer, each) for each in params[place * size : (place + 1) * size])
            bias, recurrent_bias = biases or (None, None)
            direction = Direction(
                weight=weight, recurrence=recurrence, bias=bias, recurrent_bias=recurrent_bias, activations=activations
            )
            initial = [*(writer.row(state, place) for state in states), None][:2]
            output, *found = writer.run(direction, x, *initial, backwards=bool(turned))
            outputs.append(output)
            for each, state in zip(last, found, strict=False):
                each.append(args.emit(ops.expand_dims(state, 0)))
        x = _joined(args, outputs, axis=2)
    result = args.emit(ops.permute_dims(x, [1, 0, 2])) if args["batch_first"] else x
    return (result, *(_joined(args, each, axis=0) for each in last))


def _joined(args: Arguments, parts: list[Any], axis: int) -> Any:
    return args.emit(ops.concat(parts, axis)) if len(parts) > 1 else parts[0]


def _in_order(writer: RecurrentWriter, matrix: Any) -> Any:
    """Return weights or biases with their gates in ONNX's order."""
    order = _ORDERS[writer.kind]
    if len(order) == 1:
        return matrix
    assert shape_of(matrix)[0] == GATES[writer.kind] * writer.hidden, "a projected layer is decomposed"
    parts = [writer.part(matrix, 0, gate * writer.hidden, writer.hidden) for gate in order]
    if isinstance(matrix, Constant):
        return relax.const(np.concatenate([part.value.numpy() for part in parts]))
    return writer.emit(ops.concat(parts, 0))


RECURRENT: dict[str, Converter] = {
    "aten.gru.input": lambda args: _recurrent(args, "GRU", ["sigmoid", "tanh"]),
    "aten.lstm.input": lambda args: _recurrent(args, "LSTM", ["sigmoid", "tanh", "tanh"]),
    "aten.rnn_relu.input": lambda args: _recurrent(args, "RNN", ["relu"]),
    "aten.rnn_tanh.input": lambda args: _recurrent(args, "RNN", ["tanh"]),
}
"""Our converters by PyTorch op."""
