"""Writes a float graph that computes the same with tensors rotated: its constants change, and no op. It chooses no tensor.

Before::

    y = R.nn.layer_norm(x, g, b); v = R.matmul(y, w); t = R.add(v, c); z = R.matmul(t, u)

After, where x, y and t are multiplied by orthogonal matrices R and S (numerics/rotation.py), with new values for all constants::

    y = R.nn.layer_norm(x, 1, 0); v = R.matmul(y, R g w S); t = R.add(v, (c + b w) S); z = R.matmul(t, S u)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ...numerics.rotation import rotate
from ..graph import Model
from ..graph.dataflow import call_to, op_name
from ..graph.new_constants import NewConstants
from ..graph.weighted import CONVOLUTIONS, WEIGHTED, Weighted, weighted
from ..identity import TensorId
from .group_finder import NORMS
from .rotations import Rotatable, Rotation, find_rotatable

Values = npt.NDArray[Any]


def rotated(model: Model, rotations: Mapping[TensorId, Rotation]) -> Model:
    """Return the model with its tensors rotated as `find_rotatable` allows."""
    if not rotations:
        return model
    last = _LAST.get(model)
    if last is None or last[0] != rotations:
        rotating = _Rotating(model, find_rotatable(model), rotations)
        for binding in rotating.new.view.bindings:
            rotating.change(binding.var, binding.value)
        last = _LAST[model] = dict(rotations), rotating.new.model_of()
    return last[1]


def forget_rotated(model: Model) -> None:
    """Let go of what a model was rotated to last: of a large one it takes as much memory as the model."""
    _LAST.pop(model, None)


_LAST: WeakKeyDictionary[Model, tuple[Mapping[TensorId, Rotation], Model]] = WeakKeyDictionary()
"""What models were rotated by last, and what that gave: planning, running and scoring one ask for the same."""


class _Rotating:
    """New constants of one model."""

    def __init__(self, model: Model, found: Rotatable, rotations: Mapping[TensorId, Rotation]) -> None:
        self.new, self._found, self._rotations = NewConstants(model), found, rotations
        self._shifts: dict[Var, Values] = {}
        """What norms add to the results of products."""

    def change(self, var: Var, value: Any) -> None:
        """Change what one op reads of the model's constants."""
        made, norm = self._of(var), self._found.norms.get(var)
        op = weighted(self.new.constants, value) if call_to(value, *WEIGHTED) is not None else None
        if isinstance(op, Weighted):
            self._change_weights(var, op, made)
        elif made is not None and norm is not None and norm.var.same_as(var):
            self._set(var, norm.gain, np.ones_like)
            if norm.shift is not None:
                self._set(var, norm.shift, np.zeros_like)
        elif made is not None and call_to(value, *NORMS) is not None:
            self._set(var, value.args[2], lambda values: _rotated(values, made))
        elif made is not None and call_to(value, "take") is not None:
            self._set(var, value.args[0], lambda values: _rotated(values, made))
        elif op_name(value) in ("add", "subtract", "concat"):
            joined: Any = self.new.view.definition(value.args[0]) if op_name(value) == "concat" else None
            shift = next((self._shifts[each] for each in value.args if isinstance(each, Var) and each in self._shifts), 0.0)
            is_same = made is None and isinstance(shift, float)
            for each in () if is_same else value.args if joined is None else joined.fields:
                self._set(var, each, lambda values: _rotated(values + np.reshape(shift, (-1,)), made))

    def _change_weights(self, var: Var, op: Weighted, made: tuple[Rotation, int] | None) -> None:
        data = self.new.view.root_of(op.call.args[0])
        read, norm = self._of(data), self._found.norms.get(data)
        if made is None and read is None:
            return
        is_matrix = call_to(op.call, *CONVOLUTIONS) is None
        layout = "IO" if is_matrix else str(op.call.attrs.kernel_layout)
        values = self.new.constants.value(op.weight).astype(np.float64)
        if norm is not None and self._of(norm.var) is not None:
            gain, shift = (None if each is None else self._value(each) for each in (norm.gain, norm.shift))
            if shift is not None and shift.any():
                self._shifts[var] = (shift[:, np.newaxis] * values).sum(axis=0)
            assert gain is not None, "a norm has factors"
            values = values * gain.reshape([-1 if each == "I" else 1 for each in layout])
        for known, axis in ((read, layout.index("I")), (made, layout.index("O"))):
            if known is not None:
                values = rotate(values, axis, known[0].size, known[0].starts)
        self.new.set(op.weight, values)

    def _set(self, reader: Var, arg: Expr, change: Callable[[Values], Values]) -> None:
        """Change a constant, if that makes it another: zeros that many ops read stay one."""
        constant = self.new.constants.find(arg)
        values = None if constant is None else self.new.constants.value(constant).astype(np.float64)
        if values is not None and not np.array_equal(change(values).reshape(values.shape), values):
            self.new.change(reader, arg, change)

    def _value(self, expr: Expr) -> Values:
        constant = self.new.constants.find(expr)
        assert constant is not None, "it is a constant of the model"
        return self.new.constants.value(constant).astype(np.float64).reshape(-1)

    def _of(self, var: Var) -> tuple[Rotation, int] | None:
        """Return how a variable is rotated, and its rank."""
        found = self._rotations.get(TensorId(var.name))
        return None if found is None else (found, self._found.groups.of[var].ndim)


def _rotated(values: Values, by: tuple[Rotation, int] | None) -> Values:
    """Return what is added to a tensor, for that tensor rotated."""
    if by is None:
        return values
    rotation, rank = by
    return rotate(values, rotation.axis - rank, rotation.size, rotation.starts)
