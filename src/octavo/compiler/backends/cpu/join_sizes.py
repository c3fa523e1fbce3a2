"""Sizes that a fused function takes in two ways, as numbers and as dimensions: all become dimensions.

FuseOps gives a function as one shape the dimensions that none of its tensors has, and as parameters of their own the numbers that
an op takes (`arange` from an open size on). FuseTIR takes either; where there are both it renames a variable twice, and fails.

Before::

    def fused_arange_add(past: T.int64, tir_vars: R.Shape([sequence])) -> R.Tensor((sequence,), "int64")

After::

    def fused_arange_add(tir_vars: R.Shape([sequence, past])) -> R.Tensor((sequence,), "int64")
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import Call, GlobalVar, PrimType
from tvm.relax import Expr, ShapeType, Var

from ....ir.graph.dataflow import BodyWriter, attrs_of, replace_operands, typed, view_of_main, with_main
from ....ir.untyped import relax


def join_sizes(module: tvm.IRModule) -> tvm.IRModule:
    """Make the numbers among a fused function's parameters dimensions, where it has dimensions for parameters, too."""
    found = {var: function for var, function in module.functions.items() if _has_both(function)}
    if not found:
        return module
    functions: dict[GlobalVar, Any] = dict(module.functions.items())
    joined = {var: GlobalVar(var.name_hint) for var in found}  # a variable's type can't change
    for var in found:
        new = functions[joined[var]] = _joined(functions.pop(var))
        relax.expr._update_type(joined[var], new.ty)
    view = view_of_main(module)

    def body(writer: BodyWriter) -> Expr:
        mapping: dict[Var, Expr] = {}
        for binding in view.bindings:
            value: Any = replace_operands(binding.value, lambda var: mapping.get(var, var))
            if isinstance(value, Call) and value.op in found:
                value = _call(value, found[value.op], joined[value.op])
            mapping[binding.var] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping.get(var, var))

    return with_main(tvm.IRModule(functions, attrs=module.attrs), body)


def _has_both(function: Any) -> bool:
    if not isinstance(function, relax.Function) or not attrs_of(function).get("Primitive"):
        return False
    kinds = [type(param.ty) for param in function.params]
    return ShapeType in kinds and PrimType in kinds


def _joined(function: Any) -> Any:
    *params, shape = function.params
    numbers = [param for param in params if isinstance(param.ty, PrimType)]
    dimensions = relax.Var(shape.name, ShapeType([*shape.ty.values, *numbers]))
    kept = [param for param in params if not isinstance(param.ty, PrimType)]
    return relax.Function([*kept, dimensions], function.body, function.ret_ty, function.is_pure, function.attrs, function.span)


def _call(call: Any, function: Any, joined: GlobalVar) -> Any:
    *given, shape = call.args
    are_numbers = [isinstance(param.ty, PrimType) for param in function.params[:-1]]
    numbers = [each for each, is_number in zip(given, are_numbers, strict=True) if is_number]
    tensors = [each for each, is_number in zip(given, are_numbers, strict=True) if not is_number]
    return typed(relax.Call(joined, [*tensors, relax.ShapeExpr([*shape.values, *numbers])]), call.ty)
