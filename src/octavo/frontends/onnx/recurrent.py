"""Our converters of ONNX's recurrent ops, LSTM, GRU and RNN: unrolled into products, sums and activations.

The input's products of all steps are one matmul, before the first; a step adds the product of what the step before it left. Steps
of an open number, or very many, are one op (`ir.graph.recurrence`), whose products stay float.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.recurrence import GATES, Kind, Recurrence, recurrence
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import is_static, shape_of
from .ops import Converter, NodeContext, input_at

_MAX_STEPS = 1024
"""How many steps are written out."""
_DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"sigmoid": ops.sigmoid, "tanh": ops.tanh, "relu": ops.nn.relu}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Direction:
    """One direction of a recurrent op: what it multiplies by, and how it activates."""

    weight: Any
    recurrence: Any
    bias: Any | None
    recurrent_bias: Any | None
    peepholes: list[Any]
    activations: list[str]
    clip: float


class _Writer:
    """Writes the steps of one node; every value is bound to a variable.

    Gates lie side by side in ONNX's order: input, output, forget, cell of an LSTM; update, reset, hidden of a GRU.
    """

    def __init__(self, context: NodeContext) -> None:
        self.context = context
        self.hidden = int(context.attrs.get("hidden_size", 0))

    def emit(self, value: Any) -> Any:
        return self.context.builder.emit(value)

    def add(self, a: Any, b: Any | None) -> Any:
        return a if b is None else self.emit(ops.add(a, b))

    def times(self, a: Any, b: Any) -> Any:
        return self.emit(ops.multiply(a, b))

    def part(self, x: Any, axis: int, first: int, count: int) -> Any:
        """Return `count` elements of an axis; of a constant, a constant."""
        if isinstance(x, Constant):
            return relax.const(np.ascontiguousarray(np.take(x.value.numpy(), range(first, first + count), axis)))
        if first == 0 and self.context.symbols.is_equal(shape_of(x)[axis], count):
            return x
        return self.emit(ops.strided_slice(x, axes=[axis], begin=[first], end=[first + count], assume_inbound=True))

    def row(self, x: Any, index: int) -> Any:
        """Return x[index]."""
        chosen, shape = self.part(x, 0, index, 1), shape_of(x)[1:]
        if isinstance(chosen, Constant):
            return relax.const(chosen.value.numpy().reshape(shape))
        return self.emit(ops.reshape(chosen, shape))

    def turned(self, matrix: Any) -> Any:
        if isinstance(matrix, Constant):
            return relax.const(np.ascontiguousarray(matrix.value.numpy().T))
        return self.emit(ops.permute_dims(matrix, [1, 0]))

    def gate(self, x: Any, index: int) -> Any:
        """Return one gate of those side by side in the last axis."""
        return self.part(x, len(shape_of(x)) - 1, index * self.hidden, self.hidden)

    def gates(self, x: Any) -> list[Any]:
        return [self.gate(x, index) for index in range(shape_of(x)[-1] // self.hidden)]

    def inputs(self, d: _Direction, x: Any) -> Any:
        """Return what all steps take from outside."""
        steps, batch, features = shape_of(x)
        flat = self.emit(ops.reshape(x, [steps * batch, features]))
        if not _is_identity(d.weight):  # a file that has the products: what `export_onnx` writes
            flat = self.emit(ops.matmul(flat, self.turned(d.weight)))
        product = self.add(flat, None if _is_zero(d.bias) else d.bias)
        return self.emit(ops.reshape(product, [steps, batch, GATES[self.context.op] * self.hidden]))

    def looped(self, d: _Direction, x: Any, hidden: Any, cell: Any, *, backwards: bool) -> tuple[Any, Any, Any]:
        """Return what `run` does, of one op for all steps."""
        context, steps = self.context, shape_of(x)[0]
        given = {"bias": d.recurrent_bias, "hidden": hidden, "cell": cell if context.op == "LSTM" else None}
        if d.peepholes:
            if not all(isinstance(each, Constant) for each in d.peepholes):
                raise RejectedOpError("its peepholes are computed; over open steps they must be constant")
            given["peepholes"] = relax.const(np.stack([each.value.numpy() for each in d.peepholes]))
        others = {name: value for name, value in given.items() if value is not None}
        states = max((count for count in (1, 2) if context.is_read(count)), default=0)
        what = Recurrence(
            kind=cast("Kind", context.op),
            activations=tuple(d.activations),
            operands=tuple(others),
            backwards=backwards,
            resets_products=context.op == "GRU" and bool(context.attrs.get("linear_before_reset", 0)),
            states=states,
            clip=d.clip,
        )
        recurrent = self.turned(d.recurrence)
        if not isinstance(recurrent, Constant) or not (d.recurrent_bias is None or isinstance(d.recurrent_bias, Constant)):
            raise RejectedOpError(
                f"its weights are computed; over open steps they must be constant; {context.symbols.advice(steps)}"
            )
        result = self.emit(recurrence(self.inputs(d, x), recurrent, others, what))
        first, second = (
            self.emit(ops.reshape(self.part(result, 0, place, 1), shape_of(result)[1:])) if place < states else None
            for place in range(2)
        )
        return self.part(result, 0, states, steps), first, second

    def run(self, d: _Direction, x: Any, hidden: Any, cell: Any, *, backwards: bool) -> tuple[Any, Any, Any]:
        """Return the states of all steps, in the order of the input, and the last hidden state and cell."""
        steps, batch, _ = shape_of(x)
        inputs = self.inputs(d, x)
        turned = self.turned(d.recurrence)
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.context.op]
        states: list[Any] = []
        for index in reversed(range(steps)) if backwards else range(steps):
            hidden, cell = step(d, self.row(inputs, index), turned, hidden, cell)
            states.append(self.emit(ops.reshape(hidden, [1, batch, self.hidden])))
        ordered = states[::-1] if backwards else states
        full = self.emit(ops.concat(ordered, axis=0)) if len(ordered) > 1 else ordered[0]
        return full, hidden, cell

    def _clipped(self, d: _Direction, value: Any) -> Any:
        return self.emit(ops.clip(value, -d.clip, d.clip)) if d.clip else value

    def _activated(self, d: _Direction, which: int, value: Any) -> Any:
        return self.emit(_ACTIVATIONS[d.activations[which]](value))

    def _peeped(self, d: _Direction, value: Any, which: int, cell: Any) -> Any:
        return self.add(value, self.times(d.peepholes[which], cell)) if d.peepholes else value

    def _lstm(self, d: _Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self.add(self.add(x, self.emit(ops.matmul(hidden, recurrence))), d.recurrent_bias)
        i, o, f, c = self.gates(total)
        i = self._activated(d, 0, self._clipped(d, self._peeped(d, i, 0, cell)))
        f = self._activated(d, 0, self._clipped(d, self._peeped(d, f, 2, cell)))
        c = self._activated(d, 1, self._clipped(d, c))
        cell = self.add(self.times(f, cell), self.times(i, c))
        o = self._activated(d, 0, self._clipped(d, self._peeped(d, o, 1, cell)))
        return self.times(o, self._activated(d, 2, cell)), cell

    def _gru(self, d: _Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        size, bias = self.hidden, d.recurrent_bias
        ahead = None if bias is None else self.part(bias, 0, 0, 2 * size)
        first = self.add(self.emit(ops.matmul(hidden, self.part(recurrence, 1, 0, 2 * size))), ahead)
        z, r = self.gates(self._clipped(d, self.add(self.part(x, 1, 0, 2 * size), first)))
        z, r = self._activated(d, 0, z), self._activated(d, 0, r)
        own = None if bias is None else self.part(bias, 0, 2 * size, size)
        last = self.part(recurrence, 1, 2 * size, size)
        if self.context.attrs.get("linear_before_reset", 0):
            remembered = self.times(r, self.add(self.emit(ops.matmul(hidden, last)), own))
        else:
            remembered = self.add(self.emit(ops.matmul(self.times(r, hidden), last)), own)
        h = self._activated(d, 1, self._clipped(d, self.add(self.part(x, 1, 2 * size, size), remembered)))
        kept = self.emit(ops.subtract(relax.const(1.0, "float32"), z))
        return self.add(self.times(kept, h), self.times(z, hidden)), cell

    def _rnn(self, d: _Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self.add(self.add(x, self.emit(ops.matmul(hidden, recurrence))), d.recurrent_bias)
        return self._activated(d, 0, self._clipped(d, total)), cell


def _recurrent(context: NodeContext, inputs: list[Any]) -> Any:
    """Unroll the steps; shapes follow `layout`: 0 has steps first, 1 samples."""
    writer = _Writer(context)
    x, weight, layout = inputs[0], inputs[1], int(context.attrs.get("layout", 0))
    if layout:
        x = writer.emit(ops.permute_dims(x, [1, 0, 2]))
    steps, batch, _ = shape_of(x)
    count = shape_of(weight)[0]
    writer.hidden = shape_of(weight)[1] // GATES[context.op]
    if context.attrs.get("input_forget", 0):
        raise RejectedOpError("input_forget is not supported")
    _check_lengths(input_at(inputs, 4), steps)
    is_loop = not isinstance(steps, int) or not 0 < steps <= _MAX_STEPS
    initial = [_initial(writer, input_at(inputs, index), layout) for index in (5, 6)]
    if not is_loop:
        zeros = None if None not in initial else _zeros([count, batch, writer.hidden])
        initial = [zeros if state is None else state for state in initial]
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(context.text("direction", "forward"))
    if backwards is None or len(backwards) != count:
        raise RejectedOpError(f"direction {context.text('direction', 'forward')!r} and weights of {count} directions")
    results: list[tuple[Any, ...]] = []
    for index, turned in enumerate(backwards):
        states = [None if state is None else writer.row(state, index) for state in initial]
        run = writer.looped if is_loop else writer.run
        results.append(run(_direction(writer, inputs, index), x, *states, backwards=turned))
    full = [writer.emit(ops.reshape(states[0], [steps, 1, batch, writer.hidden])) for states in results]
    parts = [(full, 1)]
    for place in range(1, max(index + 1 for index in range(3) if context.is_read(index))):
        parts.append(([writer.emit(ops.reshape(one[place], [1, batch, writer.hidden])) for one in results], 0))
    joined = [writer.emit(ops.concat(each, axis)) if count > 1 else each[0] for each, axis in parts]
    if layout:
        orders = ([2, 0, 1, 3], [1, 0, 2], [1, 0, 2])
        joined = [writer.emit(ops.permute_dims(value, order)) for value, order in zip(joined, orders, strict=False)]
    return joined[0] if len(context.node.output) == 1 else relax.Tuple(joined[: len(context.node.output)])


def _is_identity(matrix: Any) -> bool:
    values = matrix.value.numpy() if isinstance(matrix, Constant) else np.zeros((0, 1))
    return values.shape[0] == values.shape[1] and np.array_equal(values, np.eye(len(values)))


def _is_zero(bias: Any | None) -> bool:
    return isinstance(bias, Constant) and not bias.value.numpy().any()


def _check_lengths(lengths: Any | None, steps: Any) -> None:
    if lengths is None:
        return
    if not isinstance(steps, int):
        raise RejectedOpError("sequence_lens over open steps is not supported; pad and mask")
    if not isinstance(lengths, Constant) or (lengths.value.numpy() != steps).any():
        raise RejectedOpError(f"sequence_lens other than a constant of {steps} for every sample is not supported; pad and mask")


def _initial(writer: _Writer, state: Any | None, layout: int) -> Any | None:
    return writer.emit(ops.permute_dims(state, [1, 0, 2])) if layout and state is not None else state


def _zeros(shape: list[Any]) -> Any:
    return relax.const(np.zeros(shape, np.float32)) if is_static(shape) else ops.zeros(relax.ShapeExpr(shape), "float32")


def _direction(writer: _Writer, inputs: list[Any], index: int) -> _Direction:
    """Return what direction `index` takes of the node's inputs and attributes."""
    context, op = writer.context, writer.context.op
    bias, peepholes = input_at(inputs, 3), input_at(inputs, 7) if op == "LSTM" else None
    both = [None, None]
    if bias is not None:
        row, half = writer.row(bias, index), GATES[op] * writer.hidden
        both = [writer.part(row, 0, 0, half), writer.part(row, 0, half, half)]
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in context.attrs.get("activations", [])]
    own = len(_DEFAULTS[op])
    chosen = names[index * own : (index + 1) * own] or _DEFAULTS[op]
    unknown = next((name for name in chosen if name.lower() not in _ACTIVATIONS), None)
    if unknown is not None:
        raise RejectedOpError(f"activation {unknown!r} is none of Sigmoid, Tanh, Relu")
    return _Direction(
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
