"""Writing values at places of a tensor, in plain Relax ops: TVM's own scattering does not build. Knows no file format.

Scattering is gathering seen from the other side: each element of the result is the last update that names its place, or what was
there; or all updates of its place are added, multiplied, or compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ..ir.untyped import ops
from ..runtime.shapes import TYPICAL
from .frontend import RejectedOpError
from .relax_ops import dtype_of, is_static, nonnegative_indices, shape_of
from .symbols import Symbols, advice_of, names_in

_MAX_PAIRS = 1 << 22
"""Places times updates that are compared where places are known at run time only."""

Emit = Callable[[Any], Any]
"""Binds an expression to a variable."""


def scatter_slices(emit: Emit, data: Any, indices: Any, updates: Any, reduction: str = "none") -> Any:
    """Write slices at places that tuples of indices name; the sizes of slices may be open."""
    shape, named = shape_of(data), shape_of(indices)
    depth = named[-1]
    known = (*named, *shape[: depth if isinstance(depth, int) else None])
    if not is_static(known):
        problem = "it writes along axes of open sizes, or as many slices as a size says"
        raise RejectedOpError(f"{problem}; {advice_of(names_in(known))}")
    if depth > len(shape):
        raise RejectedOpError(f"indices of {depth} axes into {shape}")
    outer, inner = shape[:depth], shape[depth:]
    strides = [math.prod(outer[i + 1 :]) for i in range(depth)]
    count = math.prod(named[:-1])
    if not isinstance(indices, Constant):
        indices = emit(ops.reshape(emit(ops.astype(indices, "int64")), [count, depth]))
    index = nonnegative_indices(emit, indices, outer, f"of {outer}")
    if isinstance(index, np.ndarray):
        places: Any = (index.reshape(count, depth) * strides).sum(axis=1)
    else:
        weighted = emit(ops.multiply(index, relax.const(np.asarray(strides, np.int64).reshape(1, depth), "int64")))
        places = emit(ops.sum(weighted, axis=[1]))
    return _placed(emit, reduction, data, places, (updates, count), math.prod(outer), math.prod(inner))


def scatter_elements(emit: Emit, data: Any, indices: Any, updates: Any, axis: int, reduction: str = "none") -> Any:
    """Write single elements at places along one axis; all other sizes may be open where indices name all of these axes."""
    shape, named = shape_of(data), shape_of(indices)
    axis %= max(len(shape), 1)
    others = [(size, count) for at, (size, count) in enumerate(zip(shape, named, strict=True)) if at != axis]
    is_along = is_static((shape[axis], named[axis])) and all(Symbols(()).is_equal(*each) for each in others) if shape else False
    if is_along and not isinstance(indices, Constant):
        return _along(emit, (data, indices, updates), axis, reduction)
    if not is_static((*shape, *named)):
        problem = "it writes to a part of axes of open sizes, or along such a one"
        raise RejectedOpError(f"{problem}; {advice_of(names_in((*shape, *named)))}")
    rest = np.indices(named).astype(np.int64)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    own = sum(rest[i] * strides[i] for i in range(len(shape)) if i != axis) + np.zeros(named, np.int64)
    if not isinstance(indices, Constant):
        indices = emit(ops.astype(indices, "int64"))
    index = nonnegative_indices(emit, indices, shape[axis], f"on axis {axis} of {shape}")
    if isinstance(index, np.ndarray):
        places: Any = (own + index * strides[axis]).reshape(-1)
    else:
        scaled = emit(ops.multiply(index, relax.const(strides[axis], "int64")))
        places = emit(ops.reshape(emit(ops.add(scaled, relax.const(own, "int64"))), [-1]))
    return _placed(emit, reduction, data, places, (updates, math.prod(named)), math.prod(shape), 1)


def _along(emit: Emit, tensors: tuple[Any, Any, Any], axis: int, reduction: str) -> Any:
    """Write along one axis what updates have at the same place of all other axes."""
    last = len(shape_of(tensors[0])) - 1
    order = [*(at for at in range(last + 1) if at != axis), axis]
    data, indices, updates = tensors if axis == last else (emit(ops.permute_dims(each, order)) for each in tensors)
    shape, size, count = shape_of(data), shape_of(data)[-1], shape_of(indices)[-1]
    index = nonnegative_indices(emit, emit(ops.astype(indices, "int64")), size, f"on axis {axis}")
    here = relax.const(np.arange(size).reshape(size, 1), "int64")
    meets = emit(ops.equal(here, emit(ops.reshape(index, [*shape[:-1], 1, count]))))
    if reduction == "none":
        # The last update that names a place, behind what was there.
        number = relax.const(size + np.arange(count), "int64")
        chosen = emit(ops.max(emit(ops.where(meets, number, here)), axis=[-1]))
        result = emit(ops.gather_elements(emit(ops.concat([data, updates], last)), chosen, last))
    else:
        nothing, over, joined = _kind_of(reduction, dtype_of(data))
        wide = emit(ops.reshape(updates, [*shape[:-1], 1, count]))
        parts = emit(over(emit(ops.where(meets, wide, relax.const(nothing, dtype_of(data)))), axis=[-1]))
        result = emit(joined(data, parts))
    return result if axis == last else ops.permute_dims(result, [*range(axis), last, *range(axis, last)])


def _kind_of(reduction: str, dtype: str) -> tuple[Any, Callable[..., Any], Callable[..., Any]]:
    """Return what changes nothing in a reduction, and its ops over an axis and of two tensors."""
    ends: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    kinds = {
        "add": (0, ops.sum, ops.add),
        "mul": (1, ops.prod, ops.multiply),
        "max": (ends.min, ops.max, ops.maximum),
        "min": (ends.max, ops.min, ops.minimum),
    }
    if reduction not in kinds:
        raise RejectedOpError(f"reduction {reduction!r} is none of none, {', '.join(kinds)}")
    return kinds[reduction]


def _reduced(emit: Emit, reduction: str, data: Any, places: Any, counted: tuple[Any, int], rows: int, width: Any) -> Any:
    """Return `data` as `rows` rows, each with the updates that name it added, multiplied, or the greatest or least of all."""
    (updates, count), dtype = counted, dtype_of(data)
    nothing, over, joined = _kind_of(reduction, dtype)
    if rows * count * (width if isinstance(width, int) else TYPICAL) > _MAX_PAIRS:
        raise RejectedOpError(f"{count} updates of {rows} places by reduction {reduction!r} are too many; split the op")
    here = np.arange(rows).reshape(rows, 1, 1)
    if isinstance(places, np.ndarray):
        meets: Any = relax.const(here == places.reshape(1, count, 1), "bool")
    else:
        meets = emit(ops.equal(relax.const(here, "int64"), emit(ops.reshape(places, [1, count, 1]))))
    wide = emit(ops.reshape(updates, [1, count, width]))
    parts = emit(over(emit(ops.where(meets, wide, relax.const(nothing, dtype))), axis=[1]))
    return ops.reshape(emit(joined(emit(ops.reshape(data, [rows, width])), parts)), shape_of(data))


def _placed(emit: Emit, reduction: str, data: Any, places: Any, counted: tuple[Any, int], rows: int, width: Any) -> Any:
    """Return `data` as `rows` rows, row i of the updates, `counted`, at row places[i], the last where several name one."""
    shape, (updates, count) = shape_of(data), counted
    if not count or not rows or (isinstance(width, int) and not width):
        return data
    if reduction != "none":
        return _reduced(emit, reduction, data, places, counted, rows, width)
    if isinstance(places, np.ndarray):
        source = np.arange(rows, dtype=np.int64)
        source[places] = rows + np.arange(count)
        chosen: Any = relax.const(source, "int64")
    else:
        if rows * count > _MAX_PAIRS:
            raise RejectedOpError(f"{count} updates at run-time indices of {rows} places; make the indices constant")
        here = relax.const(np.arange(rows).reshape(rows, 1), "int64")
        meets = emit(ops.equal(here, emit(ops.reshape(places, [1, count]))))
        order = relax.const(rows + np.arange(count).reshape(1, count), "int64")
        chosen = emit(ops.max(emit(ops.where(meets, order, here)), axis=[1]))
    parts = [emit(ops.reshape(data, [rows, width])), emit(ops.reshape(updates, [count, width]))]
    taken = emit(ops.take(emit(ops.concat(parts, 0)), chosen, axis=0, mode="clip"))
    return ops.reshape(taken, shape)
