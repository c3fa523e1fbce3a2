"""Our converters of what writes values at places of a tensor, or adds them there. Imports no PyTorch.

TVM's own scattering does not build; see `frontends/placed.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..placed import scatter_elements, scatter_slices
from ..relax_ops import dtype_of, is_static, running_sum, shape_of
from .ops import Arguments, Converter

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add", "multiply": "mul"}


def _updates(args: Arguments) -> Any:
    """Return what is written, of the shape that the indices have: a number, or the first corner of a larger tensor."""
    shape = shape_of(args["index"])
    if "src" not in args.values:
        dtype = dtype_of(args["self"])
        if not is_static(shape):
            return args.step("value", ops.broadcast_to(relax.const(args["value"], dtype), shape))
        return relax.const(np.full(shape, args["value"]), dtype)
    updates = args["src"]
    if shape_of(updates) == shape:
        return updates
    return args.step("part", ops.strided_slice(updates, list(range(len(shape))), [0] * len(shape), shape))


def _scatter(args: Arguments) -> Any:
    """Write single elements, or one number, at places along an axis."""
    return _reduced(args, args["self"], _updates(args), "none")


def _reduced(args: Arguments, data: Any, updates: Any, reduction: str) -> Any:
    """Write single elements along an axis; whole slices where all elements of one have the same index."""
    axis, shape = int(args["dim"]) % max(len(shape_of(data)), 1), shape_of(data)
    shared = _shared_index(args, axis)
    if shared is None or [*shape[:axis], *shape[axis + 1 :]] != [*shape_of(updates)[:axis], *shape_of(updates)[axis + 1 :]]:
        return scatter_elements(args.emit, data, args["index"], updates, axis, reduction)
    return _slices(args, data, shared, updates, axis, reduction)


def _shared_index(args: Arguments, axis: int) -> Any:
    """Return the one index that all elements of a slice have, where the indices were expanded from such; else None."""
    index = args["index"]
    made: Any = args.builder.lookup_binding(index) if isinstance(index, relax.Var) else None
    if getattr(getattr(made, "op", None), "name", "") != "relax.broadcast_to":
        return None
    before = shape_of(made.args[0])
    same_rank = len(before) == len(shape_of(index))
    is_one = same_rank and all(size == 1 for place, size in enumerate(before) if place != axis)
    return made.args[0] if is_one and before[axis] == shape_of(index)[axis] else None


def _slices(args: Arguments, data: Any, index: Any, updates: Any, axis: int, reduction: str) -> Any:
    """Write slices at the places of an axis that `index` names."""
    order = [axis, *(place for place in range(len(shape_of(data))) if place != axis)]
    moves = order != sorted(order)
    if moves:
        data, updates = (args.emit(ops.permute_dims(value, order)) for value in (data, updates))
    places = args.emit(ops.reshape(index, [shape_of(updates)[0], 1]))
    result = scatter_slices(args.emit, data, places, updates, reduction)
    return ops.permute_dims(args.emit(result), [order.index(place) for place in range(len(order))]) if moves else result


def _scatter_add(args: Arguments) -> Any:
    return _reduced(args, args["self"], _updates(args), "add")


def _scatter_reduce(args: Arguments) -> Any:
    """Reduce with what is there, or, without `include_self`, with nothing."""
    data, kind, includes = args["self"], str(args["reduce"]), args.values.get("include_self", True)
    dtype, updates = dtype_of(data), _updates(args)
    if kind == "mean":
        return _mean(args, data, updates, includes=includes)
    reduction = _REDUCTIONS[kind]
    if not includes:
        ends: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        nothing = {"add": 0, "mul": 1, "max": ends.min, "min": ends.max}[reduction]
        data = args.emit(_reduced(args, data, relax.const(np.full(shape_of(updates), nothing, dtype), dtype), "none"))
    return _reduced(args, data, updates, reduction)


def _mean(args: Arguments, data: Any, updates: Any, *, includes: bool) -> Any:
    dtype, shape = dtype_of(data), shape_of(data)
    if not dtype.startswith("float"):
        raise RejectedOpError(f"a mean of {dtype} is not supported")
    if not includes:
        data = args.emit(_reduced(args, data, relax.const(np.zeros(shape_of(updates)), dtype), "none"))
    total = args.emit(_reduced(args, data, updates, "add"))
    start = relax.const(np.full(shape, float(includes)), dtype)
    counts = args.emit(_reduced(args, start, relax.const(np.ones(shape_of(updates)), dtype), "add"))
    return ops.divide(total, args.emit(ops.maximum(counts, relax.const(1.0, dtype))))


def _index_add(args: Arguments) -> Any:
    """Add slices at places of an axis."""
    data, updates, alpha = args["self"], args["source"], args["alpha"]
    if alpha != 1:
        updates = args.emit(ops.multiply(updates, relax.const(alpha, dtype_of(updates))))
    return _slices(args, data, args["index"], updates, int(args["dim"]) % len(shape_of(data)), "add")


def _index_copy(args: Arguments) -> Any:
    data = args["self"]
    return _slices(args, data, args["index"], args["source"], int(args["dim"]) % len(shape_of(data)), "none")


def _index_put(args: Arguments) -> Any:
    """Write slices at the places that indices of axes name, or add to what is there."""
    x, values, declared = args["self"], args["values"], list(args["indices"])
    axes = [axis for axis, index in enumerate(declared) if index is not None]
    indices, shape = [declared[axis] for axis in axes], shape_of(x)
    if any(dtype_of(index) not in ("int32", "int64") for index in indices):
        return _put_where(args, x, indices, values)
    named = list(np.broadcast_shapes(*(shape_of(index) for index in indices)))
    wide = [index if shape_of(index) == named else args.emit(ops.broadcast_to(index, named)) for index in indices]
    columns = [args.emit(ops.reshape(args.emit(ops.astype(index, "int64")), [*named, 1])) for index in wide]
    places = columns[0] if len(columns) == 1 else args.step("places", ops.concat(columns, -1))
    others = [axis for axis in range(len(shape)) if axis not in axes]
    ahead = axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0
    rest = [shape[axis] for axis in others]
    wanted = [*rest[:ahead], *named, *rest[ahead:]]
    if shape_of(values) != wanted:
        values = args.step("values", ops.broadcast_to(values, wanted))
    order, count = [*axes, *others], len(named)
    if ahead:  # what the indices name comes first
        values = args.emit(
            ops.permute_dims(values, [*range(ahead, ahead + count), *range(ahead), *range(ahead + count, len(wanted))])
        )
    moves = order != sorted(order)
    data = args.emit(ops.permute_dims(x, order)) if moves else x
    result = scatter_slices(args.emit, data, places, values, "add" if args["accumulate"] else "none")
    return ops.permute_dims(args.emit(result), [order.index(axis) for axis in range(len(shape))]) if moves else result


def _put_where(args: Arguments, x: Any, indices: list[Any], values: Any) -> Any:
    """Write one number where a boolean is true."""
    if len(indices) > 1 or any(size != 1 for size in shape_of(values)) or args["accumulate"]:
        raise RejectedOpError("booleans say how many values are written; write torch.where(mask, values, x)")
    mask, shape = indices[0], shape_of(x)
    ones = [1] * (len(shape) - len(shape_of(mask)))
    mask = args.emit(ops.reshape(mask, [*shape_of(mask), *ones])) if ones else mask
    return ops.where(mask, args.emit(ops.reshape(values, [])), x)


def _slice_scatter(args: Arguments) -> Any:
    """Write a slice of an axis: what lies before it, the new one, and what lies behind, joined; with a step, row by row."""
    x, updates = args["self"], args["src"]
    axis = int(args["dim"]) % len(shape_of(x))
    size = shape_of(x)[axis]
    if not all(isinstance(each, int | None) for each in (size, args["start"], args["end"])):
        return NotImplemented
    places = range(size)[slice(args["start"], args["end"], int(args["step"]))]
    if places.step != 1:
        return _slices(args, x, relax.const(np.array(places), "int64"), updates, axis, "none")
    return _between(args, x, updates, axis, places)


def _between(args: Arguments, x: Any, updates: Any, axis: int, places: range) -> Any:
    if not places:
        return x
    ends = [(0, places.start), (places.stop, shape_of(x)[axis])]
    before, behind = (
        [args.emit(ops.strided_slice(x, axes=[axis], begin=[begin], end=[end]))] if begin < end else [] for begin, end in ends
    )
    parts = [*before, updates, *behind]
    return ops.concat(parts, axis) if len(parts) > 1 else updates


def _select_scatter(args: Arguments) -> Any:
    """Write one slice, which has no axis of its own."""
    x = args["self"]
    axis = int(args["dim"]) % len(shape_of(x))
    size = shape_of(x)[axis]
    if not isinstance(size, int):
        return NotImplemented
    place = int(args["index"]) % size
    return _between(args, x, args.emit(ops.expand_dims(args["src"], axis)), axis, range(place, place + 1))


def _masked_scatter(args: Arguments) -> Any:
    """Write values one after another where a mask is true: each place reads as many values in as there are true ones before."""
    x, shape = args["self"], shape_of(args["self"])
    mask = args["mask"] if shape_of(args["mask"]) == shape else args.emit(ops.broadcast_to(args["mask"], shape))
    flat = args.emit(ops.astype(args.emit(ops.reshape(mask, [-1])), "int64"))
    counts = args.emit(running_sum(args.emit, flat, shape_of(flat), 0))
    places = args.emit(ops.maximum(args.emit(ops.subtract(counts, relax.const(1, "int64"))), relax.const(0, "int64")))
    values = args.emit(ops.take(args.emit(ops.reshape(args["source"], [-1])), places, axis=0, mode="clip"))
    return ops.where(mask, args.emit(ops.reshape(values, shape)), x)


PLACING: dict[str, Converter] = {
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_put.default": _index_put,
    "aten.masked_scatter.default": _masked_scatter,
    "aten.scatter.reduce": _scatter_reduce,
    "aten.scatter.src": _scatter,
    "aten.scatter.value": _scatter,
    "aten.scatter.value_reduce": _scatter_reduce,
    "aten.scatter_add.default": _scatter_add,
    "aten.scatter_reduce.two": _scatter_reduce,
    "aten.select_scatter.default": _select_scatter,
    "aten.slice_scatter.default": _slice_scatter,
}
"""Our converters by op and overload."""
