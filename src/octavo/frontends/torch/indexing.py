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


def _take(args: Arguments) -> Any:
    """Read values by their places in all of a tensor, row by row."""
    x, count = args["self"], math.prod(shape_of(args["self"]))
    places = _from_start(args, args["index"], count)
    return _taken(args, args.emit(ops.reshape(x, [count])), places, 0)


def _where_true(index: Any) -> list[Any]:
    """Return an index for each axis of known booleans; others as they are."""
    if not isinstance(index, Constant) or dtype_of(index) != "bool":
        return [index]
    return [relax.const(places, "int64") for places in np.nonzero(index.value.numpy())]


def _index(args: Arguments) -> Any:
    """Indices of axes side by side, which count as one axis; others come first. Booleans must be known: where they are true."""
    x = args["self"]
    declared: list[tuple[int, Any]] = []
    for index in args["indices"]:
        axis = declared[-1][0] + 1 if declared else 0
        declared += [(axis + place, each) for place, each in enumerate(_where_true(index))]
    declared = [(axis, index) for axis, index in declared if index is not None]
    if any(dtype_of(index) not in ("int32", "int64") for _, index in declared):
        return NotImplemented
    axes, shape = [axis for axis, _ in declared], shape_of(x)
    if axes != list(range(axes[0], axes[0] + len(axes))):
        order = [*axes, *(axis for axis in range(len(shape)) if axis not in axes)]
        x, shape = args.step("moved", ops.permute_dims(x, order)), [shape[axis] for axis in order]
        axes = list(range(len(axes)))
        declared = list(zip(axes, (index for _, index in declared), strict=True))
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


def _unfold(args: Arguments) -> Any:
    """Windows along an axis as a new one behind all others."""
    x, shape, size, step = args["self"], shape_of(args["self"]), int(args["size"]), int(args["step"])
    axis = int(args["dimension"]) % len(shape)
    if not isinstance(shape[axis], int):
        raise RejectedOpError(f"windows along an axis of open size are not supported; {args.symbols.advice()}")
    places = np.arange(0, shape[axis] - size + 1, step)[:, None] + np.arange(size)
    order = [*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1]
    return ops.permute_dims(args.emit(_taken(args, x, places, axis)), order)


def _as_strided(args: Arguments) -> Any:
    """Refuse: TVM's converter reshapes, where strides count in memory, whose order a transposed tensor's is not."""
    raise RejectedOpError("strides count values in memory, which has no order here; use reshape, permute or unfold")


_SUM, _MEAN = 0, 1


def _embedding_bag(args: Arguments) -> Any:
    """Sum, mean or maximum of the rows of each bag; bags lie one behind the other, from an offset each on."""
    weight, indices = args["weight"], args["indices"]
    rows = args.step("rows", _taken(args, weight, _from_start(args, indices, shape_of(weight)[0]), 0))
    mode, dtype, padding = int(args["mode"]), dtype_of(weight), args.values.get("padding_idx")
    if args["per_sample_weights"] is not None:
        rows = args.emit(ops.multiply(rows, args.emit(ops.expand_dims(args["per_sample_weights"], 1))))
    if padding is not None and padding >= 0:
        raise RejectedOpError("padding_idx is not supported; give bags without padding")
    count, width = shape_of(indices)[0], shape_of(weight)[1]
    size = _bag_size(args, count)
    if size is not None:
        shape: Any = [args.sizes.shape(args.result[0])[0], size, width]
        bags = args.emit(ops.reshape(rows, relax.ShapeExpr(shape)))
        reduce = ops.sum if mode == _SUM else ops.mean if mode == _MEAN else ops.max
        return (args.emit(reduce(bags, axis=[1])), None, None, None)
    if mode not in (_SUM, _MEAN) or not isinstance(count, int):
        raise RejectedOpError("bags of several sizes are supported as sums and means, of a known number of indices")
    starts = args["offsets"]
    starts = starts if dtype_of(starts) == "int64" else args.emit(ops.astype(starts, "int64"))
    ends = relax.const(np.asarray([count]), "int64")
    if args["include_last_offset"]:
        bags_count = shape_of(starts)[0] - 1
        starts, ends = (
            args.emit(ops.strided_slice(starts, axes=[0], begin=[first], end=[first + bags_count])) for first in range(2)
        )
    else:
        ends = args.emit(ops.concat([args.emit(ops.strided_slice(starts, [0], [1], [shape_of(starts)[0]])), ends], 0))
    places = relax.const(np.arange(count).reshape(1, -1), "int64")
    starts, ends = (args.emit(ops.expand_dims(side, 1)) for side in (starts, ends))
    member = args.emit(ops.logical_and(args.emit(ops.greater_equal(places, starts)), args.emit(ops.less(places, ends))))
    total = args.emit(ops.matmul(args.emit(ops.astype(member, dtype)), rows))
    if mode == _MEAN:
        sizes = args.emit(
            ops.astype(args.emit(ops.maximum(args.emit(ops.subtract(ends, starts)), relax.const(1, "int64"))), dtype)
        )
        total = args.emit(ops.divide(total, sizes))
    return (total, None, None, None)


def _bag_size(args: Arguments, count: Any) -> int | None:
    """Return the size that all bags have: that of rows of a matrix, whose offsets PyTorch counts; None if it is not clear."""
    offsets = args["offsets"]
    if isinstance(offsets, Constant):
        ends = offsets.value.numpy().astype(np.int64)
        ends = ends if args["include_last_offset"] else np.append(ends, count)
        sizes = set(np.diff(ends).tolist()) if isinstance(count, int) and ends[0] == 0 and ends[-1] == count else set()
        return sizes.pop() if len(sizes) == 1 and min(sizes) > 0 else None
    made: Any = args.builder.lookup_binding(offsets) if isinstance(offsets, relax.Var) else None
    if getattr(getattr(made, "op", None), "name", "") != "relax.arange" or args["include_last_offset"]:
        return None
    begin, end, step = (getattr(field, "value", field) for field in made.args)
    is_even = isinstance(step, int | np.integer) or hasattr(step, "value")
    if not is_even or int(begin) != 0 or not args.symbols.is_equal(end, count):
        return None
    return int(step)


INDICES: dict[str, Converter] = {
    "aten._embedding_bag.default": _embedding_bag,
    "aten._embedding_bag_forward_only.default": _embedding_bag,
    "aten.as_strided.default": _as_strided,
    "aten.embedding.default": _embedding,
    "aten.embedding_bag.default": _embedding_bag,
    "aten.embedding_bag.padding_idx": _embedding_bag,
    "aten.index.Tensor": _index,
    "aten.index_select.default": _index_select,
    "aten.select.int": _select,
    "aten.take.default": _take,
    "aten.unfold.default": _unfold,
}
"""Our converters by op and overload."""
