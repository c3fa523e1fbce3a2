"""Matrices that a graph repeats: heads of keys and values that several heads of queries share. It knows no quantization."""

from __future__ import annotations

from tvm.relax import Var

from ...runtime.size import is_open
from .dataflow import DataflowView, call_to, static_shape


def repeated_matrices(view: DataflowView, var: Var) -> tuple[Var, int, tuple[Var, ...]] | None:
    """Return what `var` repeats along its last axis but two, how often each, and the variables that do it.

    repeat(x, axis=-3), or expand_dims(x, -3), tile or broadcast_to along the new axis, reshape.
    """
    once = call_to(view.definition(var), "repeat")
    if once is not None:
        x, own = once.args[0], static_shape(once.args[0]) or ()
        is_along = once.attrs.axis is not None and len(own) >= 3 and int(once.attrs.axis) % len(own) == len(own) - 3
        return (x, int(once.attrs.repeats), (var,)) if is_along and isinstance(x, Var) else None
    reshape = call_to(view.definition(var), "reshape")
    wide = reshape.args[0] if reshape is not None else None
    repeat = call_to(view.definition(wide), "tile", "broadcast_to") if isinstance(wide, Var) else None
    column = repeat.args[0] if repeat is not None else None
    expand = call_to(view.definition(column), "expand_dims") if isinstance(column, Var) else None
    x = expand.args[0] if expand is not None else None
    if not isinstance(wide, Var) or not isinstance(column, Var) or not isinstance(x, Var):
        return None
    own, one, many, flat = (static_shape(each) or () for each in (x, column, wide, var))
    if len(own) < 3 or len(many) != len(own) + 1:
        return None
    *batch, shared, rows, columns = own
    group = many[len(own) - 2]
    is_repeat = one == (*batch, shared, 1, rows, columns) and many == (*batch, shared, group, rows, columns)
    if not is_repeat or is_open(group) or flat != (*batch, shared * group, rows, columns):
        return None
    return x, group, (var, wide, column)
