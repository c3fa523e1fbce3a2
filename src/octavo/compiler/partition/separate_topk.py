"""Let the values and the places of a topk of dequantized integers be two ops of one result each, which have integer kernels.

Before::

    both = R.topk(x, ret_type="both"); v = both[0]; i = both[1]        # x = R.dequantize(x_q, s, z)

After::

    v_topk = R.topk(x, ret_type="values"); v_q = R.quantize(v_topk, s, z); v = R.dequantize(v_q, s, z)
    i = R.topk(x, ret_type="indices")

Exact: what is chosen of integers is one of them. Values that are quantized so already are not quantized again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm import relax
from tvm.relax import TupleGetItem, Var
from tvm_ffi import structural_equal

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
from ...ir.identity import NameSupply
from ...ir.untyped import ops


def separate_topk(module: tvm.IRModule) -> tvm.IRModule:
    """Write values and places of a topk of integers as an op each, since an op with several results has no kernel."""
    view = view_of_main(module)
    names = NameSupply(view.variables)
    fields = [binding.var for binding in view.bindings if _data(view, binding.value) is not None]
    return with_values(module, view, {var: partial(_field, view, var, names) for var in fields})


def _data(view: DataflowView, value: Any) -> Any:
    """Return the dequantize of what a topk chooses from if `value` is one of its results; else None."""
    call = call_to(view.definition(value.tuple_value), "topk") if isinstance(value, TupleGetItem) else None
    data = None if call is None else call_to(view.definition(call.args[0]), "dequantize")
    shape = None if data is None else static_shape(data)
    if call is None or data is None or shape is None or dtype_of(data) != "float32":
        return None
    # What no kernel takes is computed once as it is, not twice.
    is_last = int(call.attrs.axis) % len(shape) == len(shape) - 1
    is_per_tensor = all(static_shape(arg) == () for arg in data.args[1:3])
    return data if is_per_tensor and (is_last or str(call.attrs.dtype) != "int64") else None


def _field(view: DataflowView, var: Var, names: NameSupply, writer: BodyWriter, renewed: Renewed) -> Any:
    field: Any = view.definition(var)
    topk: Any = view.definition(field.tuple_value)
    data, attrs = _data(view, field), topk.attrs
    kind = ("values", "indices")[field.index]
    made = ops.topk(renewed(topk.args[0]), int(attrs.k), int(attrs.axis), kind, bool(attrs.largest), str(attrs.dtype))
    if kind == "indices" or _is_quantized(view, var, data):
        return made
    values = writer.emit(names.fresh(f"{var.name}_topk"), made)
    scale, zero_point = data.args[1:3]
    quantized = relax.op.quantize(values, scale, zero_point, out_dtype=dtype_of(data.args[0]))
    return relax.op.dequantize(writer.emit(names.fresh(f"{var.name}_q"), quantized), scale, zero_point)


def _is_quantized(view: DataflowView, var: Var, data: Any) -> bool:
    """Return whether all that happens to values is that they become integers again."""
    user = view.only_user(var)
    call: Any = None if user is None else call_to(view.definition(user), "quantize")
    return call is not None and all(structural_equal(a, b) for a, b in zip(call.args[1:3], data.args[1:3], strict=True))
