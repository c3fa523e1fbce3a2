"""A recurrence over a known number of steps, written out as products, sums and activations: where no kernel takes the op.

It is so where its weights are computed, and for back ends without the kernel. The op itself is `recurrence`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from ..untyped import ops
from .nodes import elements
from .recurrence import Recurrence

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"sigmoid": ops.sigmoid, "tanh": ops.tanh, "relu": ops.nn.relu}


def write_steps(what: Recurrence, operands: Mapping[str, Any], emit: Callable[[Any], Any]) -> Any:
    """Return what the op gives, (states + steps, batch, width), of operands by name; `emit` binds each expression."""
    return _Steps(what, operands, emit).write()


@dataclass(frozen=True, slots=True)
class _Steps:
    what: Recurrence
    operands: Mapping[str, Any]
    emit: Callable[[Any], Any]

    def write(self) -> Any:
        x, what = self.operands["x"], self.what
        first, batch, _ = elements(x.ty.shape.values)
        steps = int(first)
        state: list[Any] = [batch, self.width]
        zeros = self.emit(ops.zeros(relax.ShapeExpr(state), "float32"))
        hidden, cell = (self.operands.get(name, zeros) for name in ("hidden", "cell"))
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[what.kind]
        rows: list[Any] = []
        for index in reversed(range(steps)) if what.backwards else range(steps):
            row = self.emit(ops.reshape(self._part(x, 0, index, 1), [batch, what.gates * self.width]))
            hidden, cell = step(row, hidden, cell)
            rows.append(hidden)
        found = [*(hidden, cell)[: what.states], *(rows[::-1] if what.backwards else rows)]
        return self.emit(ops.concat([self.emit(ops.reshape(each, [1, *state])) for each in found], axis=0))

    @property
    def width(self) -> int:
        """Width of a state."""
        return int(self.operands["weights"].ty.shape[0])

    def _part(self, x: Any, axis: int, first: int, count: int) -> Any:
        if isinstance(x, GenericConst):
            return relax.const(np.ascontiguousarray(np.take(x.value.numpy(), range(first, first + count), axis)))
        return self.emit(ops.strided_slice(x, axes=[axis], begin=[first], end=[first + count], assume_inbound=True))

    def _gates(self, x: Any, first: int = 0, count: int | None = None) -> Any:
        """Return some gates of those side by side in the last axis."""
        count = self.what.gates if count is None else count
        if first == 0 and count == self.what.gates:
            return x
        return self._part(x, len(x.ty.shape) - 1, first * self.width, count * self.width)

    def _single(self, x: Any, count: int) -> list[Any]:
        return [self._part(x, 1, gate * self.width, self.width) for gate in range(count)]

    def _add(self, a: Any, b: Any | None) -> Any:
        return a if b is None else self.emit(ops.add(a, b))

    def _times(self, a: Any, b: Any) -> Any:
        return self.emit(ops.multiply(a, b))

    def _product(self, state: Any, first: int = 0, count: int | None = None) -> Any:
        return self.emit(ops.matmul(state, self._gates(self.operands["weights"], first, count)))

    def _bias(self, first: int = 0, count: int | None = None) -> Any | None:
        bias = self.operands.get("bias")
        return None if bias is None else self._gates(bias, first, count)

    def _activated(self, which: int, value: Any) -> Any:
        clip = self.what.clip
        if clip and which < 2:
            value = self.emit(ops.clip(value, -clip, clip))
        return self.emit(ACTIVATIONS[self.what.activations[which]](value))

    def _peeped(self, value: Any, which: int, cell: Any) -> Any:
        peepholes = self.operands.get("peepholes")
        if peepholes is None:
            return value
        return self._add(value, self._times(self._part(peepholes, 0, which, 1), cell))

    def _lstm(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self._add(self._add(x, self._product(hidden)), self._bias())
        i, o, f, c = self._single(total, 4)
        i = self._activated(0, self._peeped(i, 0, cell))
        f = self._activated(0, self._peeped(f, 2, cell))
        cell = self._add(self._times(f, cell), self._times(i, self._activated(1, c)))
        o = self._activated(0, self._peeped(o, 1, cell))
        return self._times(o, self._activated(2, cell)), cell

    def _gru(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        ahead = self._add(self._gates(x, 0, 2), self._add(self._product(hidden, 0, 2), self._bias(0, 2)))
        z, r = (self._activated(0, gate) for gate in self._single(ahead, 2))
        if self.what.resets_products:
            remembered = self._times(r, self._add(self._product(hidden, 2, 1), self._bias(2, 1)))
        else:
            remembered = self._add(self._product(self._times(r, hidden), 2, 1), self._bias(2, 1))
        new = self._activated(1, self._add(self._gates(x, 2, 1), remembered))
        kept = self.emit(ops.subtract(relax.const(1.0, "float32"), z))
        return self._add(self._times(kept, new), self._times(z, hidden)), cell

    def _rnn(self, x: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        total = self._add(self._add(x, self._product(hidden)), self._bias())
        return self._activated(0, total), cell
