"""Open sizes in the IR: from TVM's expressions in the shapes of tensors to sizes, and back."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from tvm import relax
from tvm.ir import PrimType
from tvm_ffi import structural_walk

from ...errors import ModelError
from ...runtime.shapes import largest, smallest
from ...runtime.size import Size, expressed_by
from ..untyped import tirx
from .nodes import elements

_BINARY: dict[type[Any], Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Div: lambda a, b: a // b,  # of sizes, which are no less than 0, both round down
    tirx.Mod: lambda a, b: a % b,
    tirx.Max: lambda a, b: largest((a, b)),
    tirx.Min: lambda a, b: smallest((a, b)),
}


def size_of(expression: Any) -> int | Size | None:
    """Return a dimension of a tensor as a size; None for an expression that sizes don't have."""
    if isinstance(expression, tirx.IntImm):
        return int(expression.value)
    if isinstance(expression, tirx.Var):
        return Size.named(str(expression.name))
    if isinstance(expression, tirx.Cast):
        return size_of(expression.value)
    operation = _BINARY.get(type(expression))
    if operation is None:
        return None
    left, right = size_of(expression.a), size_of(expression.b)
    return None if left is None or right is None else operation(left, right)


def open_dimensions(function: relax.Function) -> dict[str, Any]:
    """Return the variables of a function's open dimensions, by their names.

    Raises
    ------
    ModelError
        Two of them have one name.
    """
    found: dict[str, Any] = {}
    for var in _dimensions_in(function.params):
        if str(var.name) in found:
            raise ModelError(f"two open dimensions of main have one name, {var.name!r}; give each a name of its own")
        found[str(var.name)] = var
    return found


@contextmanager
def sizes_of(function: relax.Function, others: Collection[str] = ()) -> Generator[None]:
    """Let TVM take sizes for expressions of a function's open dimensions, and of others by name, meanwhile."""
    known = {**open_dimensions(function), **{name: tirx.Var(name, "int64") for name in others}}
    with expressed_by(known.__getitem__) if known else nullcontext():
        yield


@contextmanager
def sizes_in(params: Sequence[relax.Var]) -> Generator[None]:
    """Let TVM take sizes for expressions of the open dimensions of parameters, meanwhile; where none is open, as before."""
    found = {str(var.name): var for var in _dimensions_in(params)}
    if not found:
        yield
        return
    with expressed_by(found.__getitem__):
        yield


def _dimensions_in(params: Sequence[relax.Var]) -> list[Any]:
    """Return the variables of the open dimensions of parameters, also those that stand in a multiple alone."""
    found: dict[int, Any] = {}

    def note(var: Any) -> None:
        found[hash(var)] = var

    for param in params:
        shape = getattr(param.ty, "shape", None)
        for dim in elements(shape.values) if isinstance(shape, relax.ShapeExpr) else ():
            if not isinstance(dim, tirx.IntImm):
                structural_walk(dim, (tirx.Var, note))
    return list(found.values())


def buffers_and_dimensions(function: Any) -> tuple[list[Any], list[Any]]:
    """Return the arguments of a PrimFunc: its buffers, and the variables of its open dimensions."""
    params = list(function.params)
    return [each for each in params if not is_dimension(each)], [each for each in params if is_dimension(each)]


def is_dimension(expression: Any) -> bool:
    """Return whether an argument of a PrimFunc, or of its call, is a size and no tensor."""
    return isinstance(expression.ty, PrimType)
