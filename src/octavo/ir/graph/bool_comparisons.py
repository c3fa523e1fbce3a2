"""Comparisons of booleans, which TVM's code generation takes for those of floats: LLVM then refuses the whole program.

Before, in a function that TVM made of an op::

    y[i] = a[i] == b[i]                                 # bool

After::

    y[i] = Cast("uint8", a[i]) == Cast("uint8", b[i])
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.tirx import EQ, GE, GT, LE, LT, NE, PrimFunc

from ..untyped import tirx

_COMPARISONS = (EQ, NE, LT, LE, GT, GE)


def compare_as_integers(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with booleans compared as integers; the same one where none are compared."""
    changed: dict[Any, Any] = {}
    for var, function in module.functions_items():
        if isinstance(function, PrimFunc) and _compares(function):
            changed[var] = function.with_body(tvm_ffi.structural_map(function.body, [(kind, _cast) for kind in _COMPARISONS]))
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return result


def compared_as_integers() -> Any:
    """Return `compare_as_integers` as a pass, to stand behind LegalizeOps."""
    return tvm.transform.module_pass(lambda module, _: compare_as_integers(module), opt_level=0, name="CompareAsIntegers")


def _compares(function: Any) -> bool:
    found: list[bool] = []
    tvm_ffi.structural_walk(function.body, (_COMPARISONS, lambda node: found.append(_is_of_booleans(node))))
    return any(found)


def _is_of_booleans(node: Any) -> bool:
    return str(node.a.ty.dtype) == "bool"


def _cast(node: Any) -> Any:
    return type(node)(tirx.Cast("uint8", node.a), tirx.Cast("uint8", node.b)) if _is_of_booleans(node) else node
