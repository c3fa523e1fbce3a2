"""Which known tensor holds all values of a variable: its own, or one that it was moved from or is moved to. Computes no value.

A source op may become several Relax ops (a convolution of rows gets a dimension before and loses it after; a recurrent op is
written out step by step), and only tensors of the source are known, by a profile say. Data that was merely moved keeps its range.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tvm.ir import GenericConst
from tvm.relax import Tuple, TupleGetItem, Var

from ...target.op_facts import movers
from ..identity import TensorId
from .dataflow import DataflowView, call_to, dtype_of, operand_vars, static_shape
from .nodes import elements

_KEPT = movers("view", "transpose", "reverse", "repeat", "split")
"""Ops whose result holds all values of their first operand and no others."""
_PADDED = "nn.pad"
"""Its result holds those values and, at most, 0, which belongs to every range."""
_CHOSEN = (*movers("select"), "nn.max_pool2d")
"""Ops whose result holds some values of their first operand and no others."""
_JOINED = movers("join")
"""Ops whose result holds all values of each operand."""
_OF_BOTH = ("maximum", "minimum")
"""Ops whose result holds some values of two operands and no others."""


class ValueSources:
    """Finds the known tensor that bounds a variable.

    Parameters
    ----------
    view
        Of the function.
    known
        Names of the tensors that are known.
    """

    def __init__(self, view: DataflowView, known: Container[object]) -> None:
        self._view = view
        self._known = known
        self._found: dict[Var, TensorId | None] = {}

    def source(self, var: Var) -> TensorId | None:
        """Return the known tensor whose range holds the values of `var`, None if there is none."""
        if var not in self._found:
            self._found[var] = None  # while it is looked for
            self._found[var] = self._own(var) or self._behind(var) or self._ahead(var)
        return self._found[var]

    def _own(self, var: Var) -> TensorId | None:
        return TensorId(var.name) if var.name in self._known else None

    def _behind(self, var: Var) -> TensorId | None:
        """Return the tensor that `var` was moved from, by parts that are put together again, too."""
        found = self._own(var)
        if found is None:
            behind = {self._behind(operand) for operand in self._data_operands(var)}
            found = behind.pop() if len(behind) == 1 else None
        return found

    def _data_operands(self, var: Var) -> list[Var]:
        """Return the variables of whose values, and no others, that of `var` is put together."""
        value: Any = self._view.definition(var)
        if isinstance(value, TupleGetItem):
            value = self._view.definition(value.tuple_value)
            return operand_vars(value.args[0])[:1] if call_to(value, "split") is not None else []
        call: Any = call_to(value, *_KEPT, *_CHOSEN, *_JOINED, *_OF_BOTH, _PADDED)
        if call is None or dtype_of(call) != "float32" or not _adds_nothing(call):
            return []
        operands = elements(call.args)[:2] if call_to(call, *_OF_BOTH) is not None else [call.args[0]]
        if call_to(call, *_JOINED) is not None:
            operands = elements(self._view.definition(call.args[0]).fields)
        data = [each for operand in operands for each in operand_vars(operand)]
        if len(data) < len(operands):
            return []
        return [root if (root := self._view.binding_of(each)) is not None else each for each in data]

    def _ahead(self, var: Var) -> TensorId | None:
        """Return the nearest tensor that takes over all values of `var`."""
        line, seen = [var], {var}
        while line:
            for user in self._view.users(line.pop(0)):
                if user in seen or not self._holds_operands(user):
                    continue
                seen.add(user)
                line.append(user)
                found = self._own(user)
                if found is not None:
                    return found
        return None

    def _holds_operands(self, var: Var) -> bool:
        """Return whether the value of `var` holds all values of each tensor that it reads."""
        value: Any = self._view.definition(var)
        if isinstance(value, (Var, Tuple)):
            return True
        if call_to(value, *_JOINED) is not None:
            return True
        call: Any = call_to(value, *_KEPT, _PADDED)
        if call is None or isinstance(call.args[0], GenericConst) or not _adds_nothing(call):
            return False
        return static_shape(call) is not None


def _adds_nothing(call: Any) -> bool:
    """Return whether an op adds no value but 0: padding may."""
    return call_to(call, _PADDED) is None or str(call.attrs.pad_mode) != "constant" or float(call.attrs.pad_value) == 0.0
