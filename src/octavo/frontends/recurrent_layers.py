"""Recurrent layers (LSTM, GRU, RNN) written in one way for every source format.

The input's products of all steps are one matmul, before the first; the steps are one op (`ir.graph.recurrence`), of as many as
there are. Where their weights are computed, those of a known number are written out.

Knows no file format.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..ir.graph.recurrence import GATES, Kind, Recurrence, recurrence
from ..ir.graph.recurrence_steps import write_steps
from ..ir.untyped import ops
from .frontend import RejectedOpError
from .relax_ops import shape_of
from .symbols import Symbols


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
    """Writes one layer; every value is bound to a variable.

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

    def run(self, d: Direction, x: Any, hidden: Any, cell: Any, *, backwards: bool) -> tuple[Any, Any, Any]:
        """Return the states of all steps, in the order of the input, and the last hidden state and cell that are read, else None.

        Parameters
        ----------
        x
            (steps, batch, inputs).
        hidden, cell
            The states before the first step, (batch, width); None for zeros.
        """
        steps, batch, _ = shape_of(x)
        peepholes = self._stacked(d.peepholes) if d.peepholes else None
        given = {
            "bias": d.recurrent_bias,
            "hidden": hidden,
            "cell": cell if self.kind == "LSTM" else None,
            "peepholes": peepholes,
        }
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
        weights, inputs = self._turned(d.recurrence), self._inputs(d, x)
        if all(self._is_known(value) for value in (weights, d.recurrent_bias, peepholes) if value is not None):
            result = self.emit(recurrence(inputs, weights, others, what))
        elif isinstance(steps, int) and not self.rounded:
            result = write_steps(what, {"x": inputs, "weights": weights, **others}, self.emit)
        else:
            raise RejectedOpError(
                f"its weights are computed; over open steps they must be constant; {self.symbols.advice(steps)}"
            )
        first, second = (
            self.emit(ops.reshape(self.part(result, 0, place, 1), [batch, self.hidden])) if place < self.states else None
            for place in range(2)
        )
        return self.part(result, 0, self.states, steps), first, second

    def _stacked(self, parts: list[Any]) -> Any:
        """Return peepholes as one operand, (3, width)."""
        if all(isinstance(each, Constant) for each in parts):
            return relax.const(np.stack([each.value.numpy() for each in parts]))
        return self.emit(ops.concat([self.emit(ops.reshape(each, [1, self.hidden])) for each in parts], 0))


def _is_identity(matrix: Any) -> bool:
    values = matrix.value.numpy() if isinstance(matrix, Constant) else np.zeros((0, 1))
    return values.shape[0] == values.shape[1] and np.array_equal(values, np.eye(len(values)))


def _tensors(call: Any) -> list[Any]:
    return [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]


def _is_zero(bias: Any | None) -> bool:
    return isinstance(bias, Constant) and not bias.value.numpy().any()
