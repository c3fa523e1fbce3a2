"""Ops written as plain Relax ops in one way for every source format: clamps, paddings, indices, running sums.

Knows no file format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst as Constant

from ..ir.untyped import ops
from ..runtime.shapes import largest
from ..runtime.size import Size
from .frontend import RejectedOpError
from .symbols import Symbols


def shape_of(expr: Any) -> list[Any]:
    """Return the shape of a tensor: ints, and PrimExprs where sizes are open."""
    if not isinstance(expr.ty, relax.TensorType) or expr.ty.shape is None:
        raise RejectedOpError("the shape of its input is not known before the run")
    dims: Any = expr.ty.shape
    return [int(dim) if isinstance(dim, tirx.IntImm) else dim for dim in dims]


def is_static(shape: Sequence[Any]) -> bool:
    """Return whether all sizes are known."""
    return all(isinstance(size, int) for size in shape)


def dtype_of(expr: Any) -> str:
    """Return the element type of a tensor."""
    return str(expr.ty.dtype)


def same_padding(
    size: Any, kernel: int, stride: int, dilation: int, *, lower: bool = False, symbols: Symbols | None = None
) -> tuple[Any, Any]:
    """Return the padding SAME before and after one axis: ceil(size / stride) results (TFLite, PyTorch, ONNX's auto_pad).

    The odd one of an uneven total goes after, or before if `lower` (ONNX operator reference, Conv). `symbols`: of an open size
    that is an expression; a Size knows its own.
    """
    wanted, taps = (size + stride - 1) // stride, dilation * (kernel - 1) + 1
    if taps == 1:
        return 0, 0
    total = (wanted - 1) * stride + taps - size
    if symbols is None and isinstance(total, Size):
        total = total if taps >= stride else largest((total, 0))
    elif symbols is None:
        total = max(total, 0)
    else:
        # wanted * stride is at least size: where windows leave no gaps, no greatest of two gets into the sizes of results.
        total = symbols.simplify(total) if taps >= stride else symbols.maximum(symbols.simplify(total), 0)
    small, large = total // 2, total - total // 2
    return (large, small) if lower else (small, large)


def padded(emit: Callable[[Any], Any], data: Any, axis: int, widths: tuple[Any, Any], fill: Any) -> Any:
    """Put as many values before and behind along an axis as open sizes say; Relax's own op takes constant widths only."""
    shape, dtype, parts = shape_of(data), dtype_of(data), [data]
    for at, width in enumerate(widths):
        if not isinstance(width, int) or width > 0:
            around: Any = [*shape[:axis], width, *shape[axis + 1 :]]
            parts.insert(at * len(parts), emit(ops.full(relax.ShapeExpr(around), relax.const(fill, dtype), dtype)))
    return data if len(parts) == 1 else emit(ops.concat(parts, axis))


def padded_for_windows(emit: Callable[[Any], Any], data: Any, windows: Mapping[int, tuple[Any, int, int]], fill: float) -> Any:
    """Pad axes of open sizes for ceil(size / stride) windows, to their extent.

    As much is put around as any size takes, then the extent is cut out: of that Relax sees which sizes it is equal to.

    Parameters
    ----------
    windows
        Axis -> what the first window begins ahead of it, the extent of a window, the stride.
    """
    shape = shape_of(data)
    widths, begins, ends = [0] * 2 * len(shape), list[Any](), list[Any]()
    for axis, (before, taps, stride) in windows.items():
        most = taps - 1 - (taps - 1) // 2
        widths[2 * axis : 2 * axis + 2] = most, most
        begins.append(most - before)
        ends.append(begins[-1] + ((shape[axis] + stride - 1) // stride - 1) * stride + taps)
    around = emit(ops.nn.pad(data, widths, pad_value=fill))
    return emit(ops.strided_slice(around, list(windows), begins, ends, assume_inbound=True))


def clamp(x: Any, low: float | None, high: float | None) -> Any:
    """Write a clamp to bounds that are known, None for none: clip of two, relu, maximum or minimum of one."""
    if low is not None and high is not None:
        # With min above max the result is max everywhere (min(max(x, low), high)), in ONNX as in PyTorch.
        return ops.clip(x, min(low, high), high)
    if low is not None:
        return ops.nn.relu(x) if low == 0 else ops.maximum(x, relax.const(low, dtype_of(x)))
    return x if high is None else ops.minimum(x, relax.const(high, dtype_of(x)))


def size_tensor(emit: Callable[[Any], Any], size: Any, dtype: str = "int64") -> Any:
    """Return a size as a tensor of one axis."""
    if isinstance(size, int):
        return relax.const(np.asarray([size], dtype), dtype)
    made = emit(ops.arange(size, size + 1, 1, "int64"))
    return made if dtype == "int64" else emit(ops.astype(made, dtype))


def nonnegative_indices(emit: Callable[[Any], Any], indices: Any, extent: Any, where: str) -> Any:
    """Count negative indices of axes of size `extent` from their start; of a constant, return a checked int64 array.

    `extent` is one size, or a known one for each place of the last axis. Where it is open, nothing can be checked.

    `where` names the axis in the error of an index that is out of range.
    """
    is_open = isinstance(extent, tirx.Expr)
    if isinstance(indices, Constant) and not is_open:
        sizes = np.asarray(extent, np.int64)
        values = indices.value.numpy().astype(np.int64)
        values = np.where(values < 0, values + sizes, values)
        if not ((values >= 0) & (values < sizes)).all():
            raise RejectedOpError(f"an index is out of range {where}")
        return values
    dtype = dtype_of(indices)
    sizes = size_tensor(emit, extent, dtype) if is_open else relax.const(np.asarray(extent).astype(dtype), dtype)
    wrapped = emit(ops.add(indices, sizes))
    return emit(ops.where(emit(ops.less(indices, relax.const(0, dtype))), wrapped, indices))


def sortable(emit: Callable[[Any], Any], x: Any) -> Any:
    """Return numbers of the same order: of few bits, and booleans, TVM's own sort reads memory that isn't theirs."""
    return emit(ops.astype(x, "int32")) if dtype_of(x) in ("bool", "int8", "uint8", "int16", "uint16") else x


def celu(emit: Callable[[Any], Any], x: Any, alpha: float) -> Any:
    """max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    if not alpha:
        raise RejectedOpError("alpha must not be 0")
    factor, one, zero = (relax.const(value, dtype_of(x)) for value in (alpha, 1.0, 0.0))
    grown = emit(ops.exp(emit(ops.divide(emit(ops.minimum(x, zero)) if alpha > 0 else x, factor))))
    below = emit(ops.minimum(emit(ops.multiply(factor, emit(ops.subtract(grown, one)))), zero))
    return ops.add(emit(ops.nn.relu(x)), below)


def running_sum(
    emit: Callable[[Any], Any],
    data: Any,
    shape: list[int],
    axis: int,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    combined: Callable[[Any, Any], Any] = ops.add,
    neutral: float = 0,
) -> Any:
    """Cumulative sum, or product, or maximum, in steps of 1, 2, 4 ... elements, for TVM's own op does not build.

    The tensor is shifted and combined with itself as many times as the axis has binary digits; `neutral` changes nothing.
    `axis` is counted from the front; `exclusive` leaves each element out of its own sum.
    """
    size = shape[axis]

    def shifted(value: Any, places: int) -> Any:
        dtype = dtype_of(data)
        gap = relax.const(np.full([places if i == axis else dim for i, dim in enumerate(shape)], neutral, dtype), dtype)
        begin, end = (places, size) if reverse else (0, size - places)
        kept = emit(ops.strided_slice(value, axes=[axis], begin=[begin], end=[end])) if places < size else None
        parts = [part for part in ([kept, gap] if reverse else [gap, kept]) if part is not None]
        return emit(ops.concat(parts, axis)) if len(parts) > 1 else parts[0]

    total = shifted(data, 1) if exclusive and size else data
    places = 1
    while places < size:
        total = emit(combined(total, shifted(total, places)))
        places *= 2
    return total


def open_running_sum(emit: Callable[[Any], Any], data: Any, axis: int, *, reverse: bool = False, exclusive: bool = False) -> Any:
    """Cumulative sum along an axis of open size: for each element all that stands before it, and itself, are summed."""
    shape = shape_of(data)
    places = emit(ops.arange(0, shape[axis], 1, "int64"))
    to, of = emit(ops.expand_dims(places, 1)), emit(ops.expand_dims(places, 0))
    compare = {
        (False, False): ops.less_equal,
        (False, True): ops.less,
        (True, False): ops.greater_equal,
        (True, True): ops.greater,
    }
    counts = emit(compare[reverse, exclusive](of, to))
    counts = emit(ops.reshape(counts, [shape[axis], shape[axis], *[1] * (len(shape) - axis - 1)]))
    zero = relax.const(0, dtype_of(data))
    return ops.sum(emit(ops.where(counts, emit(ops.expand_dims(data, axis)), zero)), axis=[axis + 1])
