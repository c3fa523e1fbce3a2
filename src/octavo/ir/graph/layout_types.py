"""Types of calls whose inference takes long, once for each: of ops that know layouts. It changes no call."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.ir import GenericConst, Type
from tvm.relax import Expr
from tvm_ffi import StructuralKey

_LAYOUT_OPS = frozenset(
    tvm.ir.Op.get(f"relax.{name}")
    for name in (
        "nn.conv1d",
        "nn.conv2d",
        "nn.conv1d_transpose",
        "nn.conv2d_transpose",
        "nn.max_pool2d",
        "nn.avg_pool2d",
        "nn.adaptive_avg_pool2d",
        "image.resize2d",
    )
)
"""TVM proves things of their layouts symbol by symbol: that takes 1 to 2 ms for a call, as long as all else that a pass does."""

_known: dict[StructuralKey, Type] = {}
"""By op, attributes and operand types. A few entries for each network: no call and no constant is kept."""

_update_type: Any = tvm.get_global_func("relax.UpdateType")


def normalized(builder: relax.BlockBuilder, value: Expr) -> Expr:
    """Return what a builder makes of a value: in A-normal form, with its type."""
    if not isinstance(value, relax.Call) or value.op not in _LAYOUT_OPS or isinstance(value.ty, relax.TensorType):
        return builder.normalize(value)
    operands = value.args[:]
    if not all(isinstance(each, (relax.Var, GenericConst)) for each in operands):
        return builder.normalize(value)
    key = StructuralKey([value.op, value.attrs, *(each.ty for each in operands)])
    ty = _known.get(key)
    if ty is None:
        value = builder.normalize(value)
        _known[key] = value.ty
    else:
        _update_type(value, ty)
    return value
