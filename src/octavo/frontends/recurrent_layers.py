"""Recurrent layers (LSTM, GRU, RNN) written as products, sums and activations, in one way for every source format.

The input's products of all steps are one matmul, before the first; a step adds the product of what the step before it left. Steps
of an open number, or very many, are one op (`ir.graph.recurrence`), whose products stay float.

Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..ir.graph.recurrence import GATES, Kind, Recurrence, recurrence
from ..ir.untyped import ops
from .frontend import RejectedOpError
from .relax_ops import is_static, shape_of
from .symbols import Symbols

_MAX_STEPS = 1024
"""How many steps are written out."""
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"sigmoid": ops.sigmoid, "tanh": ops.tanh, "relu": ops.nn.relu}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Direction:
    """One direction of a recurrent layer: what it multiplies by, and how it activates.

    Matrices are (gates * width, inputs), gates in ONNX's order.
    """

    weight: Any
    recurrence: Any
    bias: Any | None
    recurrent_bias: Any | None
    activations: list[str]
    peepholes: list[Any] = field(default_factory=list[Any])
    clip: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RecurrentWriter:
    """Writes the steps of one layer; every value is bound to a variable.

    Gates lie side by side in ONNX's order: input, output, forget, cell of an LSTM; update, reset, hidden of a GRU.

    Parameters
    ----------
    hidden
        Width of the hidden state.
    resets_products
        Whether a GRU's reset gate multiplies the product with the hidden state, not that state.
    states
        How many states behind the last step are read: none, the hidden state, the cell as well.
    rounded
        Whether each step rounds what meets the weights, which are dequantized.
    """

    builder: Any
    symbols: Symbols
    kind: Kind
    hidden: int
    resets_products: bool
    states: int
    rounded: bool = False

    def emit(self, value: Any) -> Any:
        """Bind a value to a variable."""
        return self.builder.emit(value)

    def _add(self, a: Any, b: Any | None) -> Any:
        return a if b is None else self.emit(ops.add(a, b))

    def _times(self, a: Any, b: Any) -> Any:
        return self.emit(ops.multiply(a, b))

    def part(self, x: Any, axis: int, first: int, count: int) -> Any:
        """Return `count` elements of an axis; of a constant, a constant."""
        if isinstance(x, Constant):
            return relax.const(np.ascontiguousarray(np.take(x.value.numpy(), range(first, first + count), axis)))
        if first == 0 and self.symbols.is_equal(shape_of(x)[axis], count):
            return x
        return self.emit(ops.strided_slice(x, axes=[axis], begin=[first], end=[first + count], assume_inbound=True))

    def row(self, x: Any, index: int) -> Any:
        """Return x[index]."""
        chosen, shape = self.part(x, 0, index, 1), shape_of(x)[1:]
        if isinstance(chosen, Constant):
            return relax.const(chosen.value.numpy().reshape(shape))
        return self.emit(ops.reshape(chosen, shape))

    def _turned(self, matrix: Any) -> Any:
        if isinstance(matrix, Constant):
            return relax.const(np.ascontiguousarray(matrix.value.numpy().T))
        return self.emit(ops.permute_dims(matrix, [1, 0]))

    def _is_known(self, value: Any) -> bool:
        """Return whether a value is computed of constants alone."""
        if isinstance(value, relax.Var):
            value = self.builder.lookup_binding(value)
        return isinstance(value, Constant) or (isinstance(value, relax.Call) and all(map(self._is_known, _tensors(value))))

    def _gate(self, x: Any, index: int) -> Any:
        """Return one gate of those side by side in the last axis."""
        return self.part(x, len(shape_of(x)) - 1, index * self.hidden, self.hidden)

    def gates(self, x: Any) -> list[Any]:
        """Return the gates side by side in the last axis."""
        return [self._gate(x, index) for index in range(shape_of(x)[-1] // self.hidden)]

    def _inputs(self, d: Direction, x: Any) -> Any:
        """Return what all steps take from outside."""
        steps, batch, features = shape_of(x)
        flat = self.emit(ops.reshape(x, [steps * batch, features]))
        if not _is_identity(d.weight):  # a file that has the products: what `export_onnx` writes
            flat = self.emit(ops.matmul(flat, self._turned(d.weight)))
        product = self._add(flat, None if _is_zero(d.bias) else d.bias)
        return self.emit(ops.reshape(product, [steps, batch, GATES[self.kind] * self.hidden]))

    def _looped(self, d: Direction, x: Any, hidden: Any, cell: Any, *, backwards: bool) -> tuple[Any, Any, Any]:
        """Return what `run` does, of one op for all steps."""
        steps = shape_of(x)[0]
        given = {"bias": d.recurrent_bias, "hidden": hidden, "cell": cell if self.kind == "LSTM" else None}
        if d.peepholes:
            if not all(isinstance(each, Constant) for each in d.peepholes):
                raise RejectedOpError("its peepholes are computed; over open steps they must be constant")
            given["peepholes"] = relax.const(np.stack([each.value.numpy() for each in d.peepholes]))
        others = {name: value for name, value in given.items() if value is not None}
        what = Recurrence(
            kind=self.kind,
            activations=tuple(d.activations),
            operands=tuple(others),
            backwards=backwards,
            resets_products=self.kind == "GRU" and self.resets_products,
            states=self.states,
            clip=d.clip,
            rounded=self.rounded,
        )
        recurrent = self._turned(d.recurrence)
        if not self._is_known(recurrent) or not (d.recurrent_bias is None or isinstance(d.recurrent_bias, Constant)):
            raise RejectedOpError(
                f"its weights are computed; over open steps they must be constant; {self.symbols.advice(steps)}"
            )
        result = self.emit(recurrence(self._inputs(d, x), recurrent, others, what))
        first, second = (
            self.emit(ops.reshape(self.part(result, 0, place, 1), shape_of(result)[1:])) if place < self.states else None
            for place in range(2)
        )
        return self.part(result, 0, self.states, steps), first, second

    def run(self, d: Direction, x: Any, hidden: Any, cell: Any, *, backwards: bool) -> tuple[Any, Any, Any]:
        """Return the states of all steps, in the order of the input, and the last hidden state and cell.

        Parameters
        ----------
        x
            (steps, batch, inputs).
        hidden, cell
            The states before the first step, (batch, width); None for zeros.
        """
        steps, batch, _ = shape_of(x)
        if self.rounded or not isinstance(steps, int) or not 0 < steps <= _MAX_STEPS:
            return self._looped(d, x, hidden, cell, backwards=backwards)
        hidden, cell = (self._zeros(batch) if state is None else state for state in (hidden, cell))
        inputs = self._inputs(d, x)
        turned = self._turned(d.recurrence)
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.kind]
        states: list[Any] = []
        for index in reversed(range(steps)) if backwards else range(steps):
            hidden, cell = step(d, self.row(inputs, index), turned, hidden, cell)
            states.append(self.emit(ops.reshape(hidden, [1, batch, self.hidden])))
        ordered = states[::-1] if backwards else states
        full = self.emit(ops.concat(ordered, axis=0)) if len(ordered) > 1 else ordered[0]
        return full, hidden, cell

    def _zeros(self, batch: Any) -> Any:
        shape: list[Any] = [batch, self.hidden]
        is_known = is_static(shape)
        return relax.const(np.zeros(shape, np.float32)) if is_known else self.emit(ops.zeros(relax.ShapeExpr(shape), "float32"))

    def _clipped(self, d: Direction, value: Any) -> Any:
        return self.emit(ops.clip(value, -d.clip, d.clip)) if d.clip else value

    def _activated(self, d: Direction, which: int, value: Any) -> Any:
        return self.emit(ACTIVATIONS[d.activations[which]](value))

    def _peeped(self, d: Direction, value: Any, which: int, cell: Any) -> Any:
        return self._add(value, self._times(d.peepholes[which], cell)) if d.peepholes else value

    def _lstm(self, d: Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self._add(self._add(x, self.emit(ops.matmul(hidden, recurrence))), d.recurrent_bias)
        i, o, f, c = self.gates(total)
        i = self._activated(d, 0, self._clipped(d, self._peeped(d, i, 0, cell)))
        f = self._activated(d, 0, self._clipped(d, self._peeped(d, f, 2, cell)))
        c = self._activated(d, 1, self._clipped(d, c))
        cell = self._add(self._times(f, cell), self._times(i, c))
        o = self._activated(d, 0, self._clipped(d, self._peeped(d, o, 1, cell)))
        return self._times(o, self._activated(d, 2, cell)), cell

    def _gru(self, d: Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        size, bias = self.hidden, d.recurrent_bias
        ahead = None if bias is None else self.part(bias, 0, 0, 2 * size)
        first = self._add(self.emit(ops.matmul(hidden, self.part(recurrence, 1, 0, 2 * size))), ahead)
        z, r = self.gates(self._clipped(d, self._add(self.part(x, 1, 0, 2 * size), first)))
        z, r = self._activated(d, 0, z), self._activated(d, 0, r)
        own = None if bias is None else self.part(bias, 0, 2 * size, size)
        last = self.part(recurrence, 1, 2 * size, size)
        if self.resets_products:
            remembered = self._times(r, self._add(self.emit(ops.matmul(hidden, last)), own))
        else:
            remembered = self._add(self.emit(ops.matmul(self._times(r, hidden), last)), own)
        h = self._activated(d, 1, self._clipped(d, self._add(self.part(x, 1, 2 * size, size), remembered)))
        kept = self.emit(ops.subtract(relax.const(1.0, "float32"), z))
        return self._add(self._times(kept, h), self._times(z, hidden)), cell

    def _rnn(self, d: Direction, x: Any, recurrence: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self._add(self._add(x, self.emit(ops.matmul(hidden, recurrence))), d.recurrent_bias)
        return self._activated(d, 0, self._clipped(d, total)), cell


def _is_identity(matrix: Any) -> bool:
    values = matrix.value.numpy() if isinstance(matrix, Constant) else np.zeros((0, 1))
    return values.shape[0] == values.shape[1] and np.array_equal(values, np.eye(len(values)))


def _tensors(call: Any) -> list[Any]:
    return [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]


def _is_zero(bias: Any | None) -> bool:
    return isinstance(bias, Constant) and not bias.value.numpy().any()
