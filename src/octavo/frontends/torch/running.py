"""Our converters of PyTorch's running sums, products and extremes, for TVM's do not build. Imports no PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.untyped import ops
from ..relax_ops import dtype_of, running_sum, shape_of
from .ops import Arguments, Converter


def _running(args: Arguments, x: Any, **combination: Any) -> Any:
    shape = shape_of(x)
    return running_sum(args.emit, x, shape, int(args["dim"]) % len(shape), **combination) if shape else x


def _total(args: Arguments, **combination: Any) -> Any:
    """Of integers 64 bits, unless a dtype is asked for."""
    x = args["self"]
    wanted = dtype_of(x) if args["dtype"] is None else str(args["dtype"]).removeprefix("torch.")
    if args["dtype"] is None and not wanted.startswith("float"):
        wanted = "int64"
    return _running(args, x if wanted == dtype_of(x) else args.emit(ops.astype(x, wanted)), **combination)


def _extreme(combined: Callable[[Any, Any], Any], end: str) -> Converter:
    """Where the extremes are is None: a node that reads it is rejected."""

    def convert(args: Arguments) -> Any:
        dtype = dtype_of(args["self"])
        ends: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
        return (args.emit(_running(args, args["self"], combined=combined, neutral=getattr(ends, end))), None)

    return convert


def _logarithm_of_sum(args: Arguments) -> Any:
    """log(exp(a) + exp(b)) of two sums is the greater one plus log(1 + exp(-|a - b|))."""
    emit, x = args.emit, args["self"]

    def joined(left: Any, right: Any) -> Any:
        differences = emit(ops.negative(emit(ops.abs(emit(ops.subtract(left, right))))))
        less = emit(ops.log(emit(ops.add(emit(ops.exp(differences)), ops.ones_like(differences)))))
        return ops.add(emit(ops.maximum(left, right)), less)

    return _running(args, x, combined=joined, neutral=float(np.finfo(dtype_of(x)).min))


RUNNING: dict[str, Converter] = {
    "aten.cummax.default": _extreme(ops.maximum, "min"),
    "aten.cummin.default": _extreme(ops.minimum, "max"),
    "aten.cumprod.default": lambda args: _total(args, combined=ops.multiply, neutral=1),
    "aten.cumsum.default": _total,
    "aten.logcumsumexp.default": _logarithm_of_sum,
}
"""Our converters by op and overload."""
