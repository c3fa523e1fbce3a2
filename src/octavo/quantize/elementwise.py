"""Functions of one tensor, element by element: the ops that a table of 256 entries stands for together. Decides nothing else."""

from __future__ import annotations

from typing import Any

from tvm.relax import Expr, Var

from ..graph.dataflow import DataflowView, call_to, dtype_of, operand_vars, static_shape
from ..numerics import ELEMENTWISE
from .constants import Constants, root_of


def function_of_one(view: DataflowView, constants: Constants, first: Var) -> tuple[Var, tuple[Var, ...]] | None:
    """Return the tensor that a run of elementwise ops reads, and the ops: as many as end in one value that others read.

    For x * sigmoid(x), from the variable of the sigmoid: x and the variables of both. None if the op reads two tensors, is not
    elementwise, or changes the shape.
    """
    source = _only_source(view, constants, first, None, ())
    if source is None:
        return None
    members = [first]
    longest: tuple[Var, ...] = ()
    position = next(index for index, binding in enumerate(view.bindings) if binding.var.same_as(first))
    for binding in view.bindings[position:]:
        var = binding.var
        if not var.same_as(first):
            if not any(operand in members for operand in _roots(view, binding.value)):
                continue
            if _only_source(view, constants, var, source, members) is None:
                continue
            members.append(var)
        open_ends = [member for member in members if _is_read_outside(view, member, members)]
        if len(open_ends) == 1 and open_ends[0].same_as(var) and dtype_of(var) == "float32":
            longest = tuple(members)
    return (source, longest) if longest else None


def _only_source(
    view: DataflowView, constants: Constants, var: Var, source: Var | None, members: list[Var] | tuple[Var, ...]
) -> Var | None:
    """Return the tensor outside `members` that an elementwise op reads (or `source`), None if there is another one."""
    value: Any = view.definition(var)
    if not _is_elementwise(value):
        return None
    for operand in value.args:
        if _is_scalar(view, constants, operand):
            continue
        roots = [root_of(view, name) for name in operand_vars(operand)]
        if len(roots) != 1:
            return None
        if roots[0] in members:
            continue
        if source is not None and not roots[0].same_as(source):
            return None
        source = roots[0]
    if source is None or static_shape(source) is None or static_shape(source) != static_shape(var):
        return None
    return source


def _is_elementwise(value: Any) -> bool:
    cast = call_to(value, "astype")
    return str(cast.attrs.dtype) in ("float32", "bool") if cast is not None else call_to(value, *ELEMENTWISE) is not None


def _is_scalar(view: DataflowView, constants: Constants, operand: Expr) -> bool:
    """Return whether an operand is a plain number, or a constant of one element that widens nothing."""
    if isinstance(getattr(operand, "value", None), (int, float)):
        return True
    shape = static_shape(operand)
    return constants.is_constant(operand) and shape is not None and all(extent == 1 for extent in shape)


def _roots(view: DataflowView, value: Expr) -> list[Var]:
    return [root_of(view, operand) for operand in operand_vars(value)]


def _is_read_outside(view: DataflowView, var: Var, members: list[Var]) -> bool:
    return view.is_returned(var) or any(user not in members for user in view.users(var))
