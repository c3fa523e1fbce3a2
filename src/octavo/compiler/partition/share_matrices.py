"""Multiply by matrices that several heads share once for all of these heads, in place of copies of them.

Before::

    k = R.reshape(R.tile(R.expand_dims(x, 2), (1, 1, 4, 1, 1)), (1, 32, keys, 64))      # x: (1, 8, keys, 64)
    y = R.matmul(q, R.permute_dims(k, (0, 1, 3, 2)))                                     # q: (1, 32, rows, 64)

After: the rows of the heads that share a matrix are those of one ::

    y = R.reshape(R.matmul(R.reshape(q, (1, 8, 4 * rows, 64)), R.permute_dims(x, (0, 1, 3, 2))), (1, 32, rows, keys))

A decoder's step reads keys and values of all tokens before it: their copies cost more than its products. Exact. Requires nothing.
Ensures that y keeps its variable. What is quantized stays as it is: attention in integers reads shared heads where they lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    BodyWriter,
    DataflowView,
    Renewed,
    call_to,
    dtype_of,
    static_shape,
    view_of_main,
    with_values,
)
from ...ir.graph.repeats import repeated_matrices
from ...ir.identity import NameSupply
from ...ir.qdq.runtime_inputs import product_operand
from ...ir.qdq.values import dequantized
from ...ir.untyped import relax


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Shared:
    """A product: what it multiplies, the matrices that are shared, by how many heads, and how their axes are permuted."""

    a: Var
    b: Var
    group: int
    axes: tuple[int, ...] | None


def share_matrices(module: tvm.IRModule) -> tvm.IRModule:
    """Multiply by matrices that several heads share once for all of these heads, in place of copies of them."""
    view = view_of_main(module)
    names = NameSupply(view.variables)
    found = {binding.var: shared for binding in view.bindings if (shared := _shared(view, binding.var)) is not None}
    return with_values(module, view, {var: partial(_product, var, shared, names) for var, shared in found.items()})


def _shared(view: DataflowView, var: Var) -> _Shared | None:
    call = call_to(view.definition(var), "matmul")
    if call is None or dtype_of(var) != "float32" or static_shape(var) is None:
        return None
    a, b = call.args
    is_quantized = any(_is_quantized(view, arg, by_column=place > 0) for place, arg in enumerate(call.args))
    if not isinstance(a, Var) or not isinstance(b, Var) or is_quantized:
        return None
    permute, axes, rank = call_to(view.definition(b), "permute_dims"), None, len(static_shape(b) or ())
    if permute is not None and isinstance(permute.args[0], Var):
        order = permute.attrs.axes
        axes = tuple(range(rank)[::-1] if order is None else (int(axis) % rank for axis in order))
        b = permute.args[0]
    repeated, shape = repeated_matrices(view, b), static_shape(a)
    is_alike = axes is None or axes[:-2] == tuple(range(rank - 2))
    if repeated is None or shape is None or not is_alike or shape[:-2] != (static_shape(b) or ())[:-2]:
        return None
    matrices, group, _ = repeated
    return None if _is_quantized(view, matrices) else _Shared(a=a, b=matrices, group=group, axes=axes)


def _is_quantized(view: DataflowView, arg: Expr, *, by_column: bool = False) -> bool:
    return dequantized(view, arg) is not None or product_operand(view, arg, by_column=by_column) is not None


def _product(var: Var, shared: _Shared, names: NameSupply, writer: BodyWriter, renewed: Renewed) -> Expr:
    def emit(name: str, expr: Any) -> Var:
        return writer.emit(names.fresh(f"{var.name}_{name}"), expr)

    *batch, heads, rows, inner = _dimensions(shared.a)
    of_group = relax.ShapeExpr([*batch, heads // shared.group, rows * shared.group, inner])
    matrices = renewed(shared.b)
    if shared.axes is not None:
        matrices = emit("shared", relax.op.permute_dims(matrices, list(shared.axes)))
    product = relax.op.matmul(emit("group", relax.op.reshape(renewed(shared.a), of_group)), matrices)
    return relax.op.reshape(emit("of_groups", product), relax.ShapeExpr(_dimensions(var)))


def _dimensions(var: Var) -> list[Any]:
    ty: Any = var.ty
    return list(ty.shape.values)
