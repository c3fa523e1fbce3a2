"""Constants as ops read them: which parameter stands behind an expression, and how it was moved. Nothing is rewritten here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm.ir import GenericConst
from tvm.relax import Expr, Var

from ..identity import TensorId
from .dataflow import DataflowView, call_to, static_shape
from .moving import CONSTANT_MOVERS, ScalarT, apply_mover


@dataclass(frozen=True, kw_only=True, eq=False)
class Constant:
    """A parameter as an op reads it.

    Parameters
    ----------
    root
        The parameter of "main".
    moves
        The variables that reshape or transpose it, in order; empty where it is read as it is.
    calls
        What binds these.
    root_shape, shape
        That of the parameter, and the one that the op reads.
    """

    root: Var
    moves: tuple[Var, ...]
    calls: tuple[Any, ...]
    root_shape: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def name(self) -> TensorId:
        """The parameter's name."""
        return TensorId(self.root.name)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @cached_property
    def positions(self) -> npt.NDArray[np.int64]:
        """The flat index in the parameter of each element that the op reads."""
        return self.as_read(np.arange(self.size, dtype=np.int64).reshape(self.root_shape))

    def as_read(self, array: npt.NDArray[ScalarT]) -> npt.NDArray[ScalarT]:
        """Return what the op reads where the parameter is this array: a view of it, if that can be."""
        for call in self.calls:
            array = apply_mover(call, array)
        return array

    def root_axis(self, axis: int) -> int | None:
        """Return the parameter's axis that runs along `axis` of what the op reads, or None if there is none."""
        if not self.moves:
            return axis
        size = self.shape[axis]
        places = np.arange(size, dtype=np.int32)
        along = places.reshape([-1 if each == axis else 1 for each in range(len(self.shape))])
        for candidate, dim in enumerate(self.root_shape):
            if dim == size:
                here = places.reshape([-1 if each == candidate else 1 for each in range(len(self.root_shape))])
                if (self.as_read(np.broadcast_to(here, self.root_shape)) == along).all():
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
        value, moves = self._behind(expr)
        data = self._params.get(TensorId(value.name)) if isinstance(value, Var) else None
        if data is None or not isinstance(value, Var):
            return None
        shape = static_shape(moves[-1][0]) if moves else data.shape
        assert shape is not None, "a constant's shape is known"
        variables, calls = (tuple(each[part] for each in moves) for part in (0, 1))
        return Constant(root=value, moves=variables, calls=calls, root_shape=data.shape, shape=shape)

    def value(self, constant: Constant) -> npt.NDArray[Any]:
        """Return the values as the op reads them, not to be written to."""
        found = np.asarray(constant.as_read(self._params[constant.name]), order="C").view()
        found.flags.writeable = False
        return found

    def numbers(self, expr: Expr) -> npt.NDArray[Any] | None:
        """Return the values of a parameter, moved or not, or of a literal."""
        found = self.find(expr)
        if found is not None:
            return self.value(found)
        literal = self._view.definition(expr)
        return literal.value.numpy() if isinstance(literal, GenericConst) else None

    def is_constant(self, expr: Expr) -> bool:
        """Return whether `expr` is a parameter, moved or not, or a literal."""
        value, moves = self._behind(expr)
        return TensorId(value.name) in self._params if isinstance(value, Var) else isinstance(value, GenericConst) and not moves

    def _behind(self, expr: Expr) -> tuple[Expr, list[tuple[Var, Any]]]:
        """Return what stands behind an expression, and the variables that move it, in order, each with its call."""
        value, moves = self._view.definition(expr), list[tuple[Var, Any]]()
        while (call := call_to(value, *CONSTANT_MOVERS)) is not None and (var := self._view.binding_of(expr)) is not None:
            moves.append((var, call))
            expr = call.args[0]
            value = self._view.definition(expr)
        return value, moves[::-1]
