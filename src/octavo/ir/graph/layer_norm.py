"""Layer normalization written in plain ops, as exporters do where a file's ops have none. Read here; nothing is rewritten.

Over the last axis, m = mean(x), d = x - m, v = mean(d ** 2) or max(mean(x ** 2) - m ** 2, 0), r = 1 / sqrt(v + epsilon), one of

y = d * r * gamma + beta;    y = d * (r * gamma) + beta;    y = x * (r * gamma) + (beta - m * (r * gamma))

PyTorch's exporter writes the first, Flax the second, Keras the third.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from .dataflow import DataflowView, call_to, static_shape
from .group_norm import ConstantOf


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PlainNorm:
    """What is normalized, the constants of one number for each element of a row, and the variables of the steps in order.

    `is_ratio` says that it is of the first form.
    """

    data: Var
    gamma: Expr
    beta: Expr
    epsilon: float
    members: tuple[Var, ...]
    is_ratio: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Parts:
    """What a form is made of, before it is known whether the parts belong together.

    `scale` is the root, or its inverse, that rows are multiplied or divided by; `shifted` what it is the root of.
    """

    data: Expr
    mean: Expr
    scale: Expr
    shifted: Expr
    gamma: Expr
    beta: Expr


def plain_layer_norm(view: DataflowView, last: Var, constant: ConstantOf) -> PlainNorm | None:
    """Return the normalization that ends in the sum `last`, if nobody else reads a step of it."""
    if call_to(view.definition(last), "add") is None:
        return None
    for form in (_of_ratio, _of_factor, _of_line):
        reader = _Reader(view, constant)
        parts = form(reader, last)
        norm = None if parts is None else _normalization(reader, parts, last, is_ratio=form is _of_ratio)
        if norm is not None:
            return norm
    return None


def _of_ratio(reader: _Reader, last: Var) -> _Parts | None:
    """Read d / sqrt(v + epsilon) * gamma + beta, or d * r in place of the ratio."""
    total, beta = reader.with_constant(last, "add")
    scaled, gamma = reader.with_constant(total, "multiply")
    ratio = reader.call(scaled, "divide", "multiply")
    if ratio is None or gamma is None or beta is None:
        return None
    is_ratio = call_to(ratio, "divide") is not None
    for distance, scale in (ratio.args,) if is_ratio else (ratio.args, ratio.args[::-1]):
        found = reader.difference(distance)
        shifted = None if found is None else reader.rooted(scale) if is_ratio else reader.inverse(scale)
        if found is not None and shifted is not None:
            return _Parts(data=found[0], mean=found[1], scale=scale, shifted=shifted, gamma=gamma, beta=beta)
    return None


def _of_factor(reader: _Reader, last: Var) -> _Parts | None:
    """Read d * (r * gamma) + beta."""
    total, beta = reader.with_constant(last, "add")
    product = reader.call(total, "multiply")
    for distance, factor in () if product is None else (product.args, product.args[::-1]):
        found = reader.difference(distance)
        scale, gamma = (None, None) if found is None else reader.with_constant(factor, "multiply")
        shifted = reader.inverse(scale)
        if found is not None and scale is not None and shifted is not None and gamma is not None and beta is not None:
            return _Parts(data=found[0], mean=found[1], scale=scale, shifted=shifted, gamma=gamma, beta=beta)
    return None


def _of_line(reader: _Reader, last: Var) -> _Parts | None:
    """Read x * (r * gamma) + (beta - m * (r * gamma))."""
    total = reader.call(last, "add")
    for left, right in () if total is None else (total.args, total.args[::-1]):
        shift = reader.call(right, "subtract")
        moved = None if shift is None else reader.call(shift.args[1], "multiply")
        product = None if moved is None else reader.call(left, "multiply")
        if shift is None or moved is None or product is None:
            continue
        for data, factor in (product.args, product.args[::-1]):
            means = [arg for arg in moved.args if not reader.is_same(arg, factor)]
            scale, gamma = reader.with_constant(factor, "multiply") if len(means) == 1 else (None, None)
            shifted = reader.inverse(scale)
            if scale is not None and shifted is not None and gamma is not None:
                return _Parts(data=data, mean=means[0], scale=scale, shifted=shifted, gamma=gamma, beta=shift.args[0])
    return None


def _normalization(reader: _Reader, parts: _Parts, last: Var, *, is_ratio: bool) -> PlainNorm | None:
    """Return the normalization that the parts are, None where they are none."""
    view, data = reader.view, parts.data
    variance, epsilon = reader.with_constant(parts.shifted, "add")
    number, shape = reader.number(epsilon), static_shape(data)
    if not isinstance(data, Var) or number is None or not shape or not reader.is_variance(variance, data):
        return None
    rows = (*shape[:-1], 1)
    if static_shape(parts.mean) != rows or static_shape(parts.scale) != rows or not reader.is_mean(parts.mean, data):
        return None
    ends = [reader.row_constant(end, shape[-1]) for end in (parts.gamma, parts.beta)]
    members = tuple(binding.var for binding in view.bindings if binding.var in reader.seen)
    if not all(ends) or static_shape(last) != shape or not members or not members[-1].same_as(last):
        return None
    if any(view.is_returned(member) or any(user not in members for user in view.users(member)) for member in members[:-1]):
        return None
    return PlainNorm(data=data, gamma=parts.gamma, beta=parts.beta, epsilon=number, members=members, is_ratio=is_ratio)


class _Reader:
    """Reads steps backwards; `seen` are the variables that it went through."""

    def __init__(self, view: DataflowView, constant: ConstantOf) -> None:
        self.seen: set[Var] = set()
        self.view = view
        self._constant = constant

    def call(self, expr: Expr | None, *names: str) -> Any:
        """Return the call of one of these ops that an expression is bound to."""
        var = None if expr is None else self.view.binding_of(expr)
        call = None if var is None else call_to(self.view.definition(var), *names)
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

    def number(self, value: Expr | None) -> float | None:
        """Return the one number of a constant."""
        array = None if value is None else self._constant(value)
        return float(np.ravel(array)[0]) if array is not None and array.size == 1 else None

    def row_constant(self, value: Expr, width: int) -> bool:
        """Return whether an expression is a constant of one number for each element of a row."""
        shape = static_shape(value)
        return bool(shape) and shape[-1] == width == math.prod(shape) and self._constant(value) is not None

    def is_same(self, one: Expr, other: Expr) -> bool:
        """Return whether two expressions are names of one variable."""
        return isinstance(one, Var) and isinstance(other, Var) and self.view.root_of(one).same_as(self.view.root_of(other))

    def difference(self, expr: Expr) -> tuple[Expr, Expr] | None:
        """Return the operands of a subtraction."""
        call = self.call(expr, "subtract")
        return None if call is None else (call.args[0], call.args[1])

    def rooted(self, expr: Expr | None) -> Expr | None:
        """Return what an expression is the square root of."""
        call = self.call(expr, "sqrt")
        return None if call is None else call.args[0]

    def inverse(self, expr: Expr | None) -> Expr | None:
        """Return of what an expression is the inverse of the square root."""
        call = self.call(self._of_rows(expr), "rsqrt", "divide")
        if call is None or call_to(call, "rsqrt") is not None:
            return None if call is None else call.args[0]
        return self.rooted(call.args[1]) if self.number(call.args[0]) == 1.0 else None

    def is_variance(self, expr: Expr | None, data: Expr) -> bool:
        """Return whether an expression is the variance of each row, about its mean or as a difference of two means."""
        expr = self._of_rows(expr)
        maximum = self.call(expr, "maximum")
        if maximum is not None:
            place = next((place for place, arg in enumerate(maximum.args) if self.number(arg) == 0.0), None)
            if place is None:
                return False
            expr = self._of_rows(maximum.args[1 - place])
        two = self.call(expr, "subtract")
        if two is not None:
            square = self._square_of(self._of_rows(two.args[1]))
            of = self._square_of(self._mean_of(two.args[0]))
            alike = static_shape(two.args[0]) == static_shape(two.args[1])
            return alike and of is not None and self.is_same(of, data) and square is not None and self.is_mean(square, data)
        distance = self._square_of(self._mean_of(expr))
        found = None if distance is None else self.difference(distance)
        if found is None:
            return False
        rows = (*(static_shape(data) or ())[:-1], 1)
        return self.is_same(found[0], data) and static_shape(found[1]) == rows and self.is_mean(found[1], data)

    def is_mean(self, expr: Expr, data: Expr) -> bool:
        """Return whether an expression is the mean of each row."""
        of = self._mean_of(expr)
        return of is not None and self.is_same(of, data)

    def _mean_of(self, expr: Expr | None) -> Expr | None:
        """Return what an expression is the mean of over the last axis: in one op, or a sum times a number."""
        expr = self._of_rows(expr)
        call = self.call(expr, "mean", "multiply", "divide")
        share = 1.0
        if call is not None and call_to(call, "mean") is None:
            total, factor = self.with_constant(expr, "multiply" if call_to(call, "multiply") is not None else "divide")
            number = self.number(factor)
            share = 0.0 if not number else number if call_to(call, "multiply") is not None else 1 / number
            call = self.call(self._of_rows(total), "sum")
        shape = None if call is None else static_shape(call.args[0])
        if call is None or not shape or [int(axis) % len(shape) for axis in call.attrs.axis or ()] != [len(shape) - 1]:
            return None
        is_mean = call_to(call, "mean") is not None or math.isclose(share * shape[-1], 1.0, rel_tol=1e-6)
        return call.args[0] if is_mean else None

    def _square_of(self, expr: Expr | None) -> Expr | None:
        """Return what an expression is the square of."""
        call = self.call(expr, "power", "multiply", "square")
        if call is None or (call_to(call, "power") is not None and self.number(call.args[1]) != 2.0):
            return None
        return call.args[0] if call_to(call, "multiply") is None or self.is_same(call.args[0], call.args[1]) else None

    def _of_rows(self, expr: Expr | None) -> Expr | None:
        """Return an expression of one number for each row before axes of one element were put to it or taken away."""
        while (call := self.call(expr, "reshape", "expand_dims", "squeeze")) is not None:
            expr = call.args[0]
        return expr
