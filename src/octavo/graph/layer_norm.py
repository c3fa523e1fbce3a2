"""Layer normalization written in plain ops, as exporters do where a file's ops have none. Read here; nothing is rewritten.

m = mean(x); d = x - m; v = mean(d ** 2); y = d / sqrt(v + epsilon) * gamma + beta        # over the last axis
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from .dataflow import DataflowView, call_to, static_shape
from .group_norm import ConstantOf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlainNorm:
    """What is normalized, the constants of one number for each element of a row, and the variables of the steps in order."""

    data: Var
    gamma: Expr
    beta: Expr
    epsilon: float
    members: tuple[Var, ...]


def plain_layer_norm(view: DataflowView, last: Var, constant: ConstantOf) -> PlainNorm | None:
    """Return the normalization that ends in the sum `last`, if nobody else reads a step of it."""
    reader = _Reader(view, constant)
    total, beta = reader.with_constant(last, "add")
    scaled, gamma = reader.with_constant(total, "multiply")
    ratio = reader.call(scaled, "divide")
    root = None if ratio is None else reader.call(ratio.args[1], "sqrt")
    shifted, epsilon = reader.with_constant(None if root is None else root.args[0], "add")
    variance = reader.mean(shifted)
    distance = None if ratio is None else view.binding_of(ratio.args[0])
    if variance is None or distance is None or not reader.is_square(variance, distance):
        return None
    difference = reader.call(distance, "subtract")
    mean = None if difference is None else reader.mean(difference.args[1])
    data = None if difference is None else difference.args[0]
    if mean is None or not isinstance(data, Var) or not isinstance(mean, Var):
        return None
    if not view.root_of(data).same_as(view.root_of(mean)) or beta is None or gamma is None or epsilon is None:
        return None
    number, width = reader.number(epsilon), (static_shape(data) or (0,))[-1]
    if number is None or any(static_shape(values) != (width,) for values in (gamma, beta)):
        return None
    members = tuple(binding.var for binding in view.bindings if binding.var in reader.seen)
    if any(user not in members for member in members[:-1] for user in view.users(member)):
        return None
    if not members or not members[-1].same_as(last) or any(view.is_returned(member) for member in members[:-1]):
        return None
    return PlainNorm(data=data, gamma=gamma, beta=beta, epsilon=number, members=members)


class _Reader:
    """Reads steps backwards; `seen` are the variables that it went through."""

    def __init__(self, view: DataflowView, constant: ConstantOf) -> None:
        self.seen: set[Var] = set()
        self._view = view
        self._constant = constant

    def call(self, expr: Expr | None, *names: str) -> Any:
        """Return the call of one of these ops that an expression is bound to."""
        var = None if expr is None else self._view.binding_of(expr)
        call = None if var is None else call_to(self._view.definition(var), *names)
        if call is not None and var is not None:
            self.seen.add(var)
        return call

    def with_constant(self, expr: Expr | None, name: str) -> tuple[Expr | None, Expr | None]:
        """Return the two operands of an op, the constant second."""
        call = self.call(expr, name)
        for computed, other in () if call is None else (call.args, call.args[::-1]):
            if self._constant(other) is not None:
                return computed, other
        return None, None

    def mean(self, expr: Expr | None) -> Expr | None:
        """Return what an expression is the mean of over the last axis, which stays."""
        call = self.call(expr, "mean")
        shape = None if call is None else static_shape(call.args[0])
        if call is None or shape is None or not call.attrs.keepdims:
            return None
        axes = [int(axis) % len(shape) for axis in call.attrs.axis or ()]
        return call.args[0] if axes == [len(shape) - 1] else None

    def is_square(self, expr: Expr, of: Var) -> bool:
        """Return whether an expression is the square of a variable."""
        call = self.call(expr, "power", "multiply", "square")
        if call is None:
            return False
        operands = [self._view.binding_of(arg) for arg in call.args]
        if operands[0] is None or not operands[0].same_as(of):
            return False
        if call_to(call, "power") is not None:
            return self.number(call.args[1]) == 2.0
        return all(operand is not None and operand.same_as(of) for operand in operands)

    def number(self, value: Expr) -> float | None:
        """Return the one number of a constant."""
        array = self._constant(value)
        return float(np.ravel(array)[0]) if array is not None and array.size == 1 else None
