"""Rewriting what "main" returns. Nothing else of a module changes."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.relax import Expr, Var

from ..untyped import relax
from .dataflow import BodyWriter, DataflowView, replace_operands, with_main


def with_results(module: tvm.IRModule, names: Sequence[str], *, keep: bool = False) -> tvm.IRModule:
    """Return a module whose "main" returns a tuple of its variables of these names; what that doesn't need is left out.

    Parameters
    ----------
    keep
        Whether it returns what it returned before those.
    """
    view = DataflowView(module["main"])
    wanted = set(names)

    def body(writer: BodyWriter) -> Expr:
        new: dict[Var, Expr] = {}
        by_name: dict[str, Expr] = {param.name: param for param in view.function.params}
        for binding in view.bindings:
            name = binding.var.name
            value = replace_operands(binding.value, lambda var: new.get(var, var))
            is_output = name in wanted or (keep and view.is_returned(binding.var))
            by_name[name] = new[binding.var] = writer.emit(name, value, is_output=is_output)
        result = replace_operands(view.result, lambda var: new.get(var, var))
        fields = list(result.fields) if isinstance(result, relax.Tuple) else [result]
        return relax.Tuple([*(fields if keep else ()), *(by_name[name] for name in names)])

    return relax.transform.DeadCodeElimination(["main"])(with_main(module, body))
