"""Folding constants: what is computed of the model's constants alone becomes a constant, to be quantized as any other.

Weights that the graph slices, stacks or normalizes, masks and tables of positions that it builds. Constants that are only moved
(reshaped, transposed) stay as they are: whoever reads them sees through.

Before::

    s = R.split(weights, 2); w = s[0]; y = R.matmul(x, w)

After, with the value of `w`::

    y = R.matmul(x, w)          # w is a parameter
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import Op
from tvm.relax import Expr, Var

from ..graph import Model
from ..graph.constants import Constants
from ..graph.dataflow import BodyWriter, DataflowView, call_to, operand_vars, replace_operands, static_shape, write_function
from ..graph.evaluate import FAILURES, Array, run_once
from ..identity import TensorId
from ..untyped import relax

_KEPT = ("quantize", "dequantize", "call_tir", "call_dps_packed", "call_pure_packed")
"""Ops that say how a constant is stored, or that anybody may have written."""


def folded_constants(model: Model) -> dict[Var, Array]:
    """Return the values of the variables that are computed of constants and read by something that is not.

    Where TVM cannot compute them, none: the model then computes them as it did.
    """
    view = DataflowView(model.module["main"])
    constants = Constants(view, model.params)
    computed = _computed_of_constants(view, constants)
    wanted = [var for var in computed if _is_read_by_others(view, var, computed) and constants.find(var) is None]
    if not wanted:
        return {}
    needed = _needed(view, wanted)
    try:
        values = _evaluate(model, view, [var for var in computed if var in needed], wanted)
    except FAILURES:
        return {}
    return dict(zip(wanted, values, strict=True))


def _computed_of_constants(view: DataflowView, constants: Constants) -> dict[Var, None]:
    found: dict[Var, None] = {}
    for binding in view.bindings:
        value: Any = binding.value
        if isinstance(value, relax.Call) and (not isinstance(value.op, Op) or call_to(value, *_KEPT) is not None):
            continue
        if all(operand in found or constants.find(operand) is not None for operand in operand_vars(value)) and _is_known(value):
            found[binding.var] = None
    return found


def _is_known(value: Any) -> bool:
    """Return whether the sizes of a tensor, or of those of a tuple, are numbers."""
    fields = value.ty.fields if isinstance(value.ty, relax.TupleType) else [value.ty]
    return all(isinstance(field, relax.TensorType) for field in fields) and all(
        field.shape is not None and all(hasattr(extent, "value") for extent in field.shape) for field in fields
    )


def _is_read_by_others(view: DataflowView, var: Var, computed: dict[Var, None]) -> bool:
    return static_shape(var) is not None and not view.is_returned(var) and any(user not in computed for user in view.users(var))


def _needed(view: DataflowView, wanted: list[Var]) -> set[Var]:
    found: set[Var] = set()
    line = list(wanted)
    while line:
        var = line.pop()
        if var not in found:
            found.add(var)
            line.extend(operand_vars(view.definition(var)))
    return found


def _evaluate(model: Model, view: DataflowView, order: list[Var], wanted: list[Var]) -> list[Array]:
    read = dict.fromkeys(operand for var in order for operand in operand_vars(view.definition(var)))
    params = [var for var in read if TensorId(var.name) in model.params]
    builder = relax.BlockBuilder()
    emitted: dict[Var, Expr] = {}

    def body(writer: BodyWriter) -> Expr:
        for var in order:
            value = replace_operands(view.definition(var), lambda operand: emitted.get(operand, operand))
            emitted[var] = writer.emit(var.name, value, is_output=var in wanted)
        return relax.Tuple([emitted[var] for var in wanted])

    write_function(builder, "main", params, body)
    # A number is kept as one element of one dimension.
    arrays = [model.params[TensorId(param.name)].reshape(static_shape(param) or ()) for param in params]
    return run_once(builder.get(), arrays, tvm.target.Target("llvm"))
