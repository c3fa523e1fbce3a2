"""Reshapes whose sizes are sums become views of the same memory, as TVM's own pass makes of the others.

Before::

    y = R.call_tir(cls.reshape, (x, past, sequence), out_ty=R.Tensor((batch, 2, 1, past + sequence, 8), "float32"))

After::

    y = R.reshape(x, R.shape([batch, 2, 1, past + sequence, 8]))

TVM asks whether a function's places are its operand's, which it sees of no size that is a sum: a cache would be copied wherever
its shape changes. What "main" returns is left as it is.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm.ir import GlobalVar
from tvm.relax import Expr

from ....ir.graph.dataflow import BodyWriter, attrs_of, call_to, eliminate_dead_code, replace_operands, view_of_main, with_main
from ....ir.graph.kernel_attributes import VIEW_ATTR
from ....ir.untyped import relax


def rewrite_views(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with a view in place of each call of a function that is one."""
    view = view_of_main(module)

    def is_call_of_view(value: Any) -> bool:
        call = call_to(value, "call_tir")
        return call is not None and isinstance(call.args[0], GlobalVar) and VIEW_ATTR in attrs_of(module[call.args[0]])

    found = {each.var for each in view.bindings if not view.is_returned(each.var) and is_call_of_view(each.value)}
    if not found:
        return module

    def body(writer: BodyWriter) -> Expr:
        mapping: dict[Any, Expr] = {}
        for binding in view.bindings:
            value: Any = replace_operands(binding.value, lambda var: mapping.get(var, var))
            if binding.var in found:
                value = relax.op.reshape(value.args[1].fields[0], value.ty_args[0].shape)
            mapping[binding.var] = writer.emit(binding.var.name, value, is_output=view.is_returned(binding.var))
        return replace_operands(view.result, lambda var: mapping.get(var, var))

    return eliminate_dead_code(with_main(module, body))
