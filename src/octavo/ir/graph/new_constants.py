"""Other values for constants of a model: where several ops read one, each has its own. It decides no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ..identity import TensorId
from ..identity.naming import NameSupply
from ..untyped import relax
from .constants import Constant, Constants
from .dataflow import BodyWriter, DataflowView, replace_operands
from .model import Model, rewritten

Values = npt.NDArray[Any]


class NewConstants:
    """New values of a model's constants.

    Parameters
    ----------
    model
        It stays as it is.
    kept_as
        What stands for a new value of a constant: the same numbers, in less memory. None: the value itself.
    """

    def __init__(self, model: Model, kept_as: Callable[[TensorId, Values], Values] | None = None) -> None:
        self.model, self.view, self._kept_as = model, DataflowView(model.module["main"]), kept_as
        self.constants = Constants(self.view, model.params)
        self.names = NameSupply([*model.tensors, *self.view.names])
        self.params = dict(model.params)
        self._own: dict[Var, dict[Var, Var]] = {}

    def change(self, reader: Var, arg: Expr, change: Callable[[Values], Values]) -> None:
        """Change the constant that an op reads, if it is one, given in float64 as read: a copy where others read it, too."""
        constant = self.constants.find(arg)
        if constant is None:
            return
        before = self.constants.value(constant)
        values = change(before.astype(np.float64)).reshape(before.shape)
        if not constant.moves and len(self.view.users(constant.root)) > 1:
            root = constant.root
            new = self.param(root.name, self.params[constant.name])
            self._own.setdefault(reader, {})[root] = new
            constant = replace(constant, root=new)
        self.set(constant, values)

    def set(self, constant: Constant, values: Values) -> None:
        """Change a constant that nothing else reads, given as read."""
        new = np.empty(constant.size, np.float32)
        new[constant.positions.reshape(-1) if constant.moves else slice(None)] = values.reshape(-1)
        new = new.reshape(self.model.params.get(constant.name, self.params[constant.name]).shape)
        self.params[constant.name] = new if self._kept_as is None else self._kept_as(constant.name, new)

    def param(self, name: str, value: Values) -> Var:
        """Return the variable of a new constant."""
        new = relax.Var(self.names.fresh(name), relax.TensorType(list(value.shape), "float32"))
        self.params[TensorId(new.name)] = value
        return new

    def model_of(self, emit: Callable[[BodyWriter, Var, Expr], Var] | None = None, more: Iterable[Var] = ()) -> Model:
        """Return the model with them.

        Parameters
        ----------
        emit
            Writes a binding, given its value of what was written before; as it is by default.
        more
            Constants that it reads besides.
        """
        mapping: dict[Var, Expr] = {}

        def plain(out: BodyWriter, var: Var, value: Expr) -> Var:
            return out.emit(var.name, value, is_output=self.view.is_returned(var))

        def body(out: BodyWriter) -> Expr:
            for binding in self.view.bindings:
                own = self._own.get(binding.var, {})
                value = replace_operands(binding.value, lambda var, own=own: own.get(var, mapping.get(var, var)))
                mapping[binding.var] = (emit or plain)(out, binding.var, value)
            return replace_operands(self.view.result, lambda var: mapping.get(var, var))

        own = [param for each in self._own.values() for param in each.values()]
        if emit is None and not own:
            return replace(self.model, params=self.params)
        return rewritten(self.model, body, [*self.view.function.params, *more, *own], self.params)
