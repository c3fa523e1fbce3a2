"""Our converters of what picks values by index. Imports no PyTorch.

One index is a slice, which moves integers. Many are taken with bounds: TVM's converters leave them out, and its code then reads
wherever an index points. Indices of two axes pick pairs, where TVM's converter picks all combinations.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..placed import scatter_elements, scatter_slices
from ..relax_ops import dtype_of, nonnegative_indices, shape_of
from .ops import Arguments, Converter


def _select(args: Arguments) -> Any:
    """One index of an axis, which goes."""
    x, axis, index = args["self"], int(args["dim"]), int(args["index"])
    shape = shape_of(x)
    axis %= len(shape)
    index = index + shape[axis] if index < 0 else index
    part = args.step("slice", ops.strided_slice(x, axes=[axis], begin=[index], end=[index + 1], assume_inbound=True))
    return ops.squeeze(part, [axis])


def _from_start(args: Arguments, indices: Any, size: int) -> Any:
    return nonnegative_indices(args.emit, indices, size, f"on an axis of {size}")


def _expression(indices: Any) -> Any:
    return relax.const(indices, "int64") if isinstance(indices, np.ndarray) else indices


def _taken(args: Arguments, x: Any, indices: Any, axis: int) -> Any:
    """Take along an axis, whose place the dimensions of `indices` (NumPy for constants, none negative) take."""
    shape, indices = shape_of(x), _expression(indices)
    axis %= len(shape)
    wanted = shape_of(indices)
    flat = indices if len(wanted) == 1 else args.emit(ops.reshape(indices, [-1]))
    if isinstance(indices, Constant):
        flat = relax.const(indices.value.numpy().reshape(-1), "int64")
    result = ops.take(x, flat, axis=axis, mode="clip")
    if len(wanted) == 1:
        return result
    return ops.reshape(args.step("rows", result), [*shape[:axis], *wanted, *shape[axis + 1 :]])


def _index_select(args: Arguments) -> Any:
    x, axis = args["self"], int(args["dim"])
    return _taken(args, x, _from_start(args, args["index"], shape_of(x)[axis]), axis)


def _embedding(args: Arguments) -> Any:
    weight = args["weight"]
    return _taken(args, weight, _from_start(args, args["indices"], shape_of(weight)[0]), 0)


def _index(args: Arguments) -> Any:
    """Indices of axes side by side, which count as one axis. Where booleans choose, TVM's converter does it."""
    x = args["self"]
    declared = [(axis, index) for axis, index in enumerate(args["indices"]) if index is not None]
    if any(dtype_of(index) not in ("int32", "int64") for _, index in declared):
        return NotImplemented
    axes, shape = [axis for axis, _ in declared], shape_of(x)
    if not axes or axes != list(range(axes[0], axes[0] + len(axes))):
        raise RejectedOpError(f"it picks along the axes {axes}; only axes side by side are supported")
    places: Any = None
    for axis, index in declared:
        index = _from_start(args, index, shape[axis])
        places = index if places is None else _joined(args, places, index, shape[axis])
    if len(axes) > 1:
        merged = math.prod(shape[axis] for axis in axes)
        x = args.step("merged", ops.reshape(x, [*shape[: axes[0]], merged, *shape[axes[-1] + 1 :]]))
    return _taken(args, x, places, axes[0])


def _joined(args: Arguments, first: Any, second: Any, size: int) -> Any:
    """Return first * size + second."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return first * size + second
    first, second = (args.emit(ops.astype(_expression(side), "int64")) for side in (first, second))
    return args.emit(ops.add(args.emit(ops.multiply(first, relax.const(size, "int64"))), second))


def _scatter(args: Arguments) -> Any:
    """Write single elements, or one number, at places along an axis."""
    index, values = args["index"], args.values
    shape = shape_of(index)
    if "src" in values:
        updates = values["src"]
        if shape_of(updates) != shape:  # of a larger one its first corner
            updates = args.step("part", ops.strided_slice(updates, list(range(len(shape))), [0] * len(shape), shape))
    else:
        updates = relax.const(np.full(shape, values["value"]), dtype_of(args["self"]))
    return scatter_elements(args.emit, args["self"], index, updates, int(args["dim"]))


def _index_put(args: Arguments) -> Any:
    """Write slices at the places that indices of the first axes name, or add to what is there."""
    x, indices = args["self"], [index for index in args["indices"] if index is not None]
    if len(indices) != len(args["indices"]) or any(dtype_of(index) not in ("int32", "int64") for index in indices):
        return NotImplemented
    if len({tuple(shape_of(index)) for index in indices}) > 1:
        raise RejectedOpError("its indices have several shapes; give them one, by torch.broadcast_tensors")
    shape, named = shape_of(x), shape_of(indices[0])
    columns = [args.emit(ops.reshape(args.emit(ops.astype(index, "int64")), [*named, 1])) for index in indices]
    places = columns[0] if len(columns) == 1 else args.step("places", ops.concat(columns, -1))
    wanted, updates = [*named, *shape[len(indices) :]], args["values"]
    if shape_of(updates) != wanted:
        updates = args.step("values", ops.broadcast_to(updates, wanted))
    return scatter_slices(args.emit, x, places, updates, "add" if args["accumulate"] else "none")


INDICES: dict[str, Converter] = {
    "aten.embedding.default": _embedding,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.index_select.default": _index_select,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.select.int": _select,
}
"""Our converters by op and overload."""
