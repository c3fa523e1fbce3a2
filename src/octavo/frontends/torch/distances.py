"""Our converters of PyTorch's distances, bilinear forms and ranks among sorted values, which TVM has not. Imports no PyTorch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, shape_of, sortable
from .ops import Arguments, Converter

_FEW = 25
"""Rows up to which PyTorch subtracts each pair; of more it multiplies them (cdist, compute_mode None)."""


def _cdist(args: Arguments) -> Any:
    """Return how far each row of x1 is from each of x2."""
    left, right, order = args["x1"], args["x2"], float(args["p"])
    counts, mode = [shape_of(each)[-2] for each in (left, right)], args.values.get("compute_mode") or 0
    is_few = all(isinstance(count, int) and count <= _FEW for count in counts)
    if order == 2 and mode != 2 and (mode == 1 or not is_few):
        return _by_products(args, left, right)
    left = args.emit(ops.expand_dims(left, len(shape_of(left)) - 1))
    right = args.emit(ops.expand_dims(right, len(shape_of(right)) - 2))
    return _length(args, args.step("differences", ops.subtract(left, right)), order)


def _by_products(args: Arguments, left: Any, right: Any) -> Any:
    """Root of |x|^2 + |y|^2 - 2 x y."""
    squares = [args.emit(ops.sum(args.emit(ops.multiply(each, each)), [-1], keepdims=True)) for each in (left, right)]
    axes = list(range(len(shape_of(right))))
    order = [*axes[:-2], axes[-1], axes[-2]]
    across = args.emit(ops.permute_dims(squares[1], order))
    products = args.step("products", ops.matmul(left, args.emit(ops.permute_dims(right, order))))
    twice = args.emit(ops.multiply(products, relax.const(2.0, dtype_of(left))))
    total = args.emit(ops.subtract(args.emit(ops.add(squares[0], across)), twice))
    return ops.sqrt(args.step("squared", ops.maximum(total, relax.const(0.0, dtype_of(left)))))


def _length(args: Arguments, differences: Any, order: float) -> Any:
    """Return the norm of an order along the last axis."""
    dtype = dtype_of(differences)
    if order == 2:
        return ops.sqrt(args.step("squared", ops.sum(args.emit(ops.multiply(differences, differences)), [-1])))
    amounts = args.emit(ops.abs(differences))
    if order == 0:
        return ops.sum(args.emit(ops.astype(args.emit(ops.greater(amounts, relax.const(0.0, dtype))), dtype)), [-1])
    if math.isinf(order):
        return ops.max(amounts, [-1])
    if order == 1:
        return ops.sum(amounts, [-1])
    total = args.emit(ops.sum(args.emit(ops.power(amounts, relax.const(order, dtype))), [-1]))
    return ops.power(total, relax.const(1 / order, dtype))


def _pdist(args: Arguments) -> Any:
    """Return how far rows are from each other: of each pair once."""
    x, count = args["self"], shape_of(args["self"])[0]
    if not isinstance(count, int):
        raise RejectedOpError(f"pairs of an open number of rows; {args.symbols.advice()}")
    pairs = (relax.const(each, "int64") for each in np.triu_indices(count, 1))
    left, right = (args.emit(ops.take(x, places, axis=0, mode="clip")) for places in pairs)
    return _length(args, args.step("differences", ops.subtract(left, right)), float(args["p"]))


def _bilinear(args: Arguments) -> Any:
    """Sum of left[i] * weight[o, i, j] * right[j]: a product with a matrix [i, o * j], whose parts the right side weighs."""
    left, right, weight = args["input1"], args["input2"], args["weight"]
    outputs, rows, columns = shape_of(weight)
    turned = args.emit(ops.permute_dims(weight, [1, 0, 2]))
    products = args.step("products", ops.matmul(left, args.emit(ops.reshape(turned, [rows, outputs * columns]))))
    ahead = shape_of(left)[:-1]
    parts = args.emit(ops.reshape(products, [*ahead, outputs, columns]))
    weighed = args.step("weighed", ops.multiply(parts, args.emit(ops.expand_dims(right, len(ahead)))))
    if args["bias"] is None:
        return ops.sum(weighed, [-1])
    return ops.add(args.step("sums", ops.sum(weighed, [-1])), args["bias"])


def _sorted_ranks(args: Arguments) -> Any:
    if args["sorter"] is not None:
        raise RejectedOpError("a sorter is not supported; give sorted values")
    return _ranks(args, args["sorted_sequence"], is_right=bool(args["right"] or args["side"] == "right"))


def _ranks(args: Arguments, among: Any, *, is_right: bool) -> Any:
    """Return how many of sorted values lie before each value, or up to it (`is_right`)."""
    values = args["self"]
    rank = len(shape_of(among))
    among = among if rank == 1 else args.emit(ops.expand_dims(among, rank - 1))
    values = args.emit(ops.expand_dims(values, len(shape_of(values))))
    compare = ops.less_equal if is_right else ops.less
    before = args.emit(ops.astype(args.emit(compare(among, values)), "int32"))
    count = ops.sum(before, [-1])
    return count if args["out_int32"] else ops.astype(args.emit(count), "int64")


def _kth(args: Arguments) -> Any:
    """Return the k-th least value along an axis, and where it is."""
    x = args["self"]
    return _at_place(args, x, int(args["dim"]) % len(shape_of(x)), int(args["k"]) - 1)


def _median(args: Arguments) -> Any:
    """Return the lesser of the two in the middle, of numbers that none of TVM's own functions sorts."""
    x = args["self"]
    if sortable(lambda value: value, x) is x:
        return NotImplemented
    axis = int(args["dim"]) % len(shape_of(x))
    return _at_place(args, x, axis, (shape_of(x)[axis] - 1) // 2)


def _at_place(args: Arguments, x: Any, axis: int, place: int) -> Any:
    def picked(values: Any) -> Any:
        part = args.emit(ops.strided_slice(args.emit(values), axes=[axis], begin=[place], end=[place + 1]))
        return part if args["keepdim"] else args.emit(ops.squeeze(part, [axis]))

    places = args.emit(ops.argsort(sortable(args.emit, x), axis, dtype="int64"))
    return picked(ops.gather_elements(x, places, axis)), picked(places)


DISTANCES: dict[str, Converter] = {
    "aten.bilinear.default": _bilinear,
    "aten.bucketize.Tensor": lambda args: _ranks(args, args["boundaries"], is_right=bool(args["right"])),
    "aten.cdist.default": _cdist,
    "aten.kthvalue.default": _kth,
    "aten.median.dim": _median,
    "aten.pdist.default": _pdist,
    "aten.searchsorted.Tensor": _sorted_ranks,
}
"""Our converters by op and overload."""
