"""Integer divisions that end no process: by 0, and of the least number by -1, for which processors raise a signal.

Before, in a function that TVM made of an op::

    y[i] = truncdiv(a[i], b[i])

After, where b[i] is known at run time only::

    y[i] = Select(b[i] == 0, 0, Select(b[i] == -1, 0 - a[i], truncdiv(a[i], Select(b[i] == 0 or b[i] == -1, 1, b[i]))))

ONNX leaves the result open; it is NumPy's: 0 by 0, for quotients and remainders alike. What is divided by sizes stays as it is.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad
from tvm.tirx import Div, FloorDiv, FloorMod, Mod, PrimFunc

from ..untyped import tirx

_DIVISIONS = (Div, FloorDiv, FloorMod, Mod)
_REMAINDERS = (FloorMod, Mod)


def guard_divisions(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with divisions of integers by values of tensors guarded; the same one where there are none."""
    changed: dict[Any, Any] = {}
    for var, function in module.functions_items():
        if isinstance(function, PrimFunc) and _divides(function):
            changed[var] = function.with_body(tvm_ffi.structural_map(function.body, [(kind, _guarded) for kind in _DIVISIONS]))
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return result


def guarded_divisions() -> Any:
    """Return `guard_divisions` as a pass, to stand right behind LegalizeOps."""
    return tvm.transform.module_pass(lambda module, _: guard_divisions(module), opt_level=0, name="GuardDivisions")


def _divides(function: Any) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(function.body, (_DIVISIONS, lambda node: found.append(_is_by_values(node))))
    return any(found)


def _is_by_values(node: Any) -> bool:
    """Return whether integers are divided by what is loaded from a tensor."""
    if "int" not in str(node.ty.dtype):
        return False
    loads: list[Any] = []
    tvm_ffi.structural_walk(node.b, (TensorLoad, loads.append))
    return bool(loads)


def _guarded(node: Any) -> Any:
    if not _is_by_values(node):
        return node
    a, b, dtype = node.a, node.b, str(node.ty.dtype)
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    is_zero, is_signed = b == zero, not dtype.startswith("uint")
    is_minus_one = b == tirx.const(-1, dtype) if is_signed else None
    is_special = is_zero if is_minus_one is None else tirx.any(is_zero, is_minus_one)
    result = type(node)(a, tirx.Select(is_special, one, b))
    if isinstance(node, _REMAINDERS):
        return tirx.Select(is_special, zero, result)
    negative = result if is_minus_one is None else tirx.Select(is_minus_one, zero - a, result)
    return tirx.Select(is_zero, zero, negative)
