"""Replace each part of a split by a slice of its input: what placement and the rules of kernels know has one result.

Before::

    parts = R.split(x, indices_or_sections=[2, 5], axis=1); y = parts[1]

After::

    y = R.strided_slice(x, axes=[1], begin=[2], end=[5])

Exact. The split itself goes where all that reads it are such parts.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.relax import Expr, TupleGetItem

from ..untyped import relax
from .dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands, static_shape, view_of_main, with_main


def split_to_slices(module: tvm.IRModule) -> tvm.IRModule:
    """Write each part of a split as a slice, since an op with several results has no kernel."""
    view = view_of_main(module)
    slices = {binding.var: part for binding in view.bindings if (part := _slice(view, binding.value)) is not None}
    if not slices:
        return module
    returned = set(operand_vars(view.result))
    splits = (view.definition(var).tuple_value for var in slices)
    gone = {split for split in splits if split not in returned and all(user in slices for user in view.users(split))}
    mapping: dict[Any, Expr] = {}

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            if binding.var in gone:
                continue
            value = replace_operands(slices.get(binding.var, binding.value), lambda var: mapping.get(var, var))
            mapping[binding.var] = writer.emit(binding.var.name, value, is_output=binding.var in returned)
        return replace_operands(view.result, lambda var: mapping.get(var, var))

    return with_main(module, body)


def _slice(view: DataflowView, value: Any) -> Expr | None:
    """Return the slice that a field of a split is, None if `value` is no such field."""
    if not isinstance(value, TupleGetItem):
        return None
    call = call_to(view.definition(value.tuple_value), "split")
    shape = None if call is None else static_shape(call.args[0])
    if call is None or shape is None:
        return None
    axis = int(call.attrs.axis) % len(shape)
    # The parts' own types tell where they lie, whether the split is by positions or by a count.
    extents: list[int] = []
    for part in list(call.ty.fields)[: value.index + 1]:
        extent: Any = getattr(part.shape.values[axis], "value", None)
        if extent is None:
            return None
        extents.append(int(extent))
    return relax.op.strided_slice(call.args[0], axes=[axis], begin=[sum(extents[:-1])], end=[sum(extents)])
