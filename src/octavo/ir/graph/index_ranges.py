"""Which integers an input may hold that picks rows of a table: token ids, say. Reads the graph, changes nothing.

    less(ids, 0) ; add(ids, 2000) ; where(.., .., ids) ; take(table[2000, 64], .., axis=0)      ids: -2000 to 1999

Kernels bring any index into range, so that none reads memory that isn't the table's; ONNX, PyTorch and TFLite alike call such an
index an error, and who fed it wants to know. Of those that the graph computes see `computed_indices`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant
from tvm.relax import Var

from ...runtime.size import is_open
from .dataflow import DataflowView, call_to, dtype_of, static_shape

_KEEPS_VALUES = ("reshape", "flatten", "squeeze", "expand_dims", "permute_dims", "broadcast_to", "astype")


def index_ranges(module: tvm.IRModule, inputs: Sequence[Var]) -> Mapping[str, tuple[int, int]]:
    """Return the least and the greatest index of each such input of "main", by the name of its variable."""
    found: dict[str, tuple[int, int]] = {}
    names = {var.name for var in inputs if "int" in dtype_of(var)}
    if not names:
        return found
    view = DataflowView(module["main"])
    for binding in view.bindings:
        call = call_to(binding.value, "take")
        shape = None if call is None else static_shape(call.args[0])
        if call is None or not shape or not isinstance(call.args[1], Var):
            continue
        size = shape[0 if call.attrs.axis is None else int(call.attrs.axis)]
        if is_open(size):
            continue
        var, least = _source(view, call.args[1], size)
        if var.name in names:
            low, high = found.get(var.name, (least, size - 1))
            found[var.name] = max(low, least), min(high, size - 1)
    return found


def _source(view: DataflowView, index: Var, size: int) -> tuple[Var, int]:
    """Return the variable whose integers an index has, and the least that it may have."""
    index, least = _unchanged(view, index), 0
    chosen = call_to(view.definition(index), "where")
    if chosen is not None and isinstance(chosen.args[2], Var) and _counts_from_end(view, chosen, size):
        index, least = _unchanged(view, chosen.args[2]), -size
    return index, least


def _counts_from_end(view: DataflowView, chosen: relax.Call, size: int) -> bool:
    """Return whether a choice adds the size of the axis to what is negative."""
    condition, wrapped, index = chosen.args
    if not isinstance(condition, Var) or not isinstance(wrapped, Var):
        return False
    less, added = call_to(view.definition(condition), "less"), call_to(view.definition(wrapped), "add")
    if less is None or added is None or not (less.args[0].same_as(index) and added.args[0].same_as(index)):
        return False
    dims = [each.value.numpy() if isinstance(each, Constant) else None for each in (less.args[1], added.args[1])]
    return all(value is not None and value.ndim == 0 and int(value) == want for value, want in zip(dims, (0, size), strict=True))


def _unchanged(view: DataflowView, var: Var) -> Var:
    """Return the variable before ops that keep each integer."""
    while (call := call_to(view.definition(var), *_KEEPS_VALUES)) is not None and isinstance(call.args[0], Var):
        if np.dtype(dtype_of(call.args[0])).kind not in "iu":
            break
        var = call.args[0]
    return var
