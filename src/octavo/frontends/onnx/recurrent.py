"""Our converters of ONNX's recurrent ops, LSTM, GRU and RNN: their attributes, layouts and directions."""

from __future__ import annotations

from typing import Any, cast

from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.recurrence import GATES, Kind
from ...ir.graph.recurrence_steps import ACTIVATIONS
from ...ir.untyped import ops
from ...target.vocabulary import RECURRENT_STATE
from ..frontend import RejectedOpError
from ..recurrent_layers import Direction, RecurrentWriter
from ..relax_ops import shape_of
from .ops import Converter, NodeContext, input_at

_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}


def _recurrent(context: NodeContext, inputs: list[Any]) -> Any:
    """Write all steps as one op; shapes follow `layout`: 0 has steps first, 1 samples."""
    x, weight, layout = inputs[0], inputs[1], int(context.attrs.get("layout", 0))
    writer = RecurrentWriter(
        builder=context.builder,
        symbols=context.symbols,
        kind=cast("Kind", context.op),
        hidden=shape_of(weight)[1] // GATES[context.op],
        resets_products=bool(context.attrs.get("linear_before_reset", 0)),
        states=max((count for count in (1, 2) if context.is_read(count)), default=0),
        rounded=context.roundings.get(context.node.output[0]) == RECURRENT_STATE,
    )
    if layout:
        x = writer.emit(ops.permute_dims(x, [1, 0, 2]))
    steps, batch, _ = shape_of(x)
    count = shape_of(weight)[0]
    if context.attrs.get("input_forget", 0):
        raise RejectedOpError("input_forget is not supported")
    _check_lengths(input_at(inputs, 4), steps)
    initial = [_initial(writer, input_at(inputs, index), layout) for index in (5, 6)]
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(context.text("direction", "forward"))
    if backwards is None or len(backwards) != count:
        raise RejectedOpError(f"direction {context.text('direction', 'forward')!r} and weights of {count} directions")
    results: list[tuple[Any, ...]] = []
    for index, turned in enumerate(backwards):
        states = [None if state is None else writer.row(state, index) for state in initial]
        results.append(writer.run(_direction(context, writer, inputs, index), x, *states, backwards=turned))
    full = [writer.emit(ops.reshape(states[0], [steps, 1, batch, writer.hidden])) for states in results]
    parts = [(full, 1)]
    for place in range(1, max(index + 1 for index in range(3) if context.is_read(index))):
        parts.append(([writer.emit(ops.reshape(one[place], [1, batch, writer.hidden])) for one in results], 0))
    joined = [writer.emit(ops.concat(each, axis)) if count > 1 else each[0] for each, axis in parts]
    if layout:
        orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        joined = [writer.emit(ops.permute_dims(value, order)) for value, order in zip(joined, orders, strict=False)]
    return joined[0] if len(context.node.output) == 1 else relax.Tuple(joined[: len(context.node.output)])


def _check_lengths(lengths: Any | None, steps: Any) -> None:
    if lengths is None:
        return
    if not isinstance(steps, int):
        raise RejectedOpError("sequence_lens over open steps is not supported; pad and mask")
    if not isinstance(lengths, Constant) or (lengths.value.numpy() != steps).any():
        raise RejectedOpError(f"sequence_lens other than a constant of {steps} for every sample is not supported; pad and mask")


def _initial(writer: RecurrentWriter, state: Any | None, layout: int) -> Any | None:
    return writer.emit(ops.permute_dims(state, [1, 0, 2])) if layout and state is not None else state


def _direction(context: NodeContext, writer: RecurrentWriter, inputs: list[Any], index: int) -> Direction:
    """Return what direction `index` takes of the node's inputs and attributes."""
    op = context.op
    bias, peepholes = input_at(inputs, 3), input_at(inputs, 7) if op == "LSTM" else None
    both = [None, None]
    if bias is not None:
        row, half = writer.row(bias, index), GATES[op] * writer.hidden
        both = [writer.part(row, 0, 0, half), writer.part(row, 0, half, half)]
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in context.attrs.get("activations", [])]
    own = len(_DEFAULTS[op])
    chosen = names[index * own : (index + 1) * own] or _DEFAULTS[op]
    unknown = next((name for name in chosen if name.lower() not in ACTIVATIONS), None)
    if unknown is not None:
        raise RejectedOpError(f"activation {unknown!r} is none of Sigmoid, Tanh, Relu")
    return Direction(
        weight=writer.row(inputs[1], index),
        recurrence=writer.row(inputs[2], index),
        bias=both[0],
        recurrent_bias=both[1],
        peepholes=[] if peepholes is None else writer.gates(writer.row(peepholes, index)),
        activations=[name.lower() for name in chosen],
        clip=float(context.attrs.get("clip", 0.0)),
    )


CONVERTERS: dict[str, Converter] = {"GRU": _recurrent, "LSTM": _recurrent, "RNN": _recurrent}
"""Our converters by ONNX op."""
