"""Reductions along open axes start before their loops, for an axis may have no elements.

Before, in a function that TVM legalised::

    for i, k in T.grid(n, s):
        with T.sblock("sum"):
            with T.init():
                y[i] = 0
            y[i] = y[i] + x[i, k]

After::

    for i in range(n):
        with T.sblock("sum_init"):
            y[i] = 0
        for k in range(s):
            with T.sblock("sum_update"):
                y[i] = y[i] + x[i, k]

TVM starts within the loop, where k is 0: where s is 0 the result would be what its memory held.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import SBlock
from tvm.tirx import IntImm, IterVar, PrimFunc

from ....ir.untyped import s_tir


def start_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Start reductions along open axes before their loops; a module without any is left as it is."""
    changed = {
        var: _started(function, names)
        for var, function in module.functions_items()
        if isinstance(function, PrimFunc) and (names := _open_reductions(function))
    }
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return result


def _open_reductions(function: Any) -> list[str]:
    """Return the blocks that reduce along an axis of open size."""
    found: list[str] = []

    def note(block: Any) -> None:
        if block.init is not None and any(
            each.iter_type == IterVar.CommReduce and not isinstance(each.dom.extent, IntImm) for each in block.iter_vars
        ):
            found.append(str(block.name_hint))

    tvm_ffi.structural_walk(function.body, (SBlock, note))
    return found


def _started(function: Any, names: list[str]) -> Any:
    schedule = s_tir.Schedule(function)
    for name in names:
        block = schedule.get_sblock(name)
        reduced = sum(each.iter_type == IterVar.CommReduce for each in schedule.get(block).iter_vars)
        # The innermost loops; of a window that pixels choose they are the only ones, in a block of its own.
        schedule.decompose_reduction(block, schedule.get_loops(block)[-reduced])
    return schedule.mod["main"].with_attrs(function.attrs)
