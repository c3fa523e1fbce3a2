"""Constants as ops read them: which parameter stands behind an expression, and how it was moved. Nothing is rewritten here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ..identity import TensorId
from .dataflow import DataflowView, call_to, static_shape
from .moving import CONSTANT_MOVERS, apply_mover


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Constant:
    """A parameter as an op reads it.

    Parameters
    ----------
    root
        The parameter of "main".
    moves
        The variables that reshape or transpose it, in order; empty where it is read as it is.
    positions
        int64, of the shape the op reads: the flat index in the parameter of each element.
    """

    root: Var
    moves: tuple[Var, ...]
    positions: npt.NDArray[np.int64]

    @property
    def name(self) -> TensorId:
        """The parameter's name."""
        return TensorId(self.root.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape the op reads."""
        return self.positions.shape

    def root_axis(self, axis: int) -> int | None:
        """Return the parameter's axis that runs along `axis` of what the op reads, or None if there is none."""
        if not self.moves:
            return axis
        root_shape = static_shape(self.root) or ()
        size = self.shape[axis]
        along = np.moveaxis(self.positions, axis, 0).reshape(size, -1)
        for candidate, dim in enumerate(root_shape):
            if dim != size:
                continue
            index = (along // int(np.prod(root_shape[candidate + 1 :], dtype=np.int64))) % dim
            if np.array_equal(index, np.broadcast_to(np.arange(size)[:, None], index.shape)):
                return candidate
        return None


class Constants:
    """Finds the parameter behind an expression of one function.

    Parameters
    ----------
    view
        Of an unbound "main".
    params
        The model's constants by variable name.
    """

    def __init__(self, view: DataflowView, params: Mapping[TensorId, npt.NDArray[Any]]) -> None:
        self._view = view
        self._params = params

    def find(self, expr: Expr) -> Constant | None:
        """Return the constant behind `expr`, or None where an input or a computed value stands behind it."""
        value = self._view.definition(expr)
        if isinstance(value, Var):
            data = self._params.get(TensorId(value.name))
            if data is None:
                return None
            return Constant(root=value, moves=(), positions=np.arange(data.size, dtype=np.int64).reshape(data.shape))
        call = call_to(value, *CONSTANT_MOVERS)
        var = self._view.binding_of(expr)
        inner = None if call is None else self.find(call.args[0])
        if call is None or inner is None or var is None:
            return None
        return Constant(root=inner.root, moves=(*inner.moves, var), positions=apply_mover(call, inner.positions))

    def value(self, constant: Constant) -> npt.NDArray[Any]:
        """Return the values as the op reads them."""
        return self._params[constant.name].reshape(-1)[constant.positions]

    def is_constant(self, expr: Expr) -> bool:
        """Return whether `expr` is a parameter, moved or not, or a literal."""
        value = self._view.definition(expr)
        if isinstance(value, GenericConst):
            return True
        while (call := call_to(value, *CONSTANT_MOVERS)) is not None and self._view.binding_of(expr) is not None:
            expr = call.args[0]
            value = self._view.definition(expr)
        return isinstance(value, Var) and TensorId(value.name) in self._params
