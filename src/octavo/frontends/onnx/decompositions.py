"""Our converters of ONNX ops that TVM lowers to code that does not build here: CumSum, scattering, Celu; and of TopK.

All become plain ops. Scattering is gathering seen from the other side: each element of the result is the last update that names
its place, or what was there. Ops whose results' shapes depend on values are refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.dataflow import call_to
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import celu, dtype_of, nonnegative_indices, running_sum, shape_of
from .ops import Converter, NodeContext

_MAX_PAIRS = 1 << 22
"""Places times updates that are compared where places are known at run time only."""


def _cumsum(context: NodeContext, inputs: list[Any]) -> Any:
    data = inputs[0]
    if not isinstance(inputs[1], Constant):
        raise RejectedOpError("its axis must be constant")
    shape = shape_of(data)
    axis = int(inputs[1].value.numpy().reshape(-1)[0])
    if not -len(shape) <= axis < len(shape):
        raise RejectedOpError(f"axis {axis} is none of {shape}")
    reverse, exclusive = (bool(context.attrs.get(name, 0)) for name in ("reverse", "exclusive"))
    return running_sum(context.builder.emit, data, shape, axis % len(shape), reverse=reverse, exclusive=exclusive)


def _celu(context: NodeContext, inputs: list[Any]) -> Any:
    return celu(context.builder.emit, inputs[0], float(context.attrs.get("alpha", 1.0)))


def _of_open_shape(context: NodeContext, inputs: list[Any]) -> Any:
    del context, inputs
    raise RejectedOpError(
        "the shape of its result depends on values, which must be known before the run; cut the model ahead of it"
    )


def _top_k(context: NodeContext, inputs: list[Any]) -> Any:
    """Ask for the values and for the places of quantized data by an op each: kernels give one of them.

    Float data is left to TVM, which sorts once for both.
    """
    data, emit = inputs[0], context.builder.emit
    made = context.builder.lookup_binding(data) if isinstance(data, relax.Var) else None
    is_quantized = call_to(made, "dequantize") is not None
    if len(inputs) < 2 or not isinstance(inputs[1], Constant):
        return None
    if not is_quantized:
        return _top_k_of_integers(context, data, int(inputs[1].value.numpy().reshape(-1)[0]))
    shape, count = shape_of(data), int(inputs[1].value.numpy().reshape(-1)[0])
    axis = int(context.attrs.get("axis", -1))
    if not -len(shape) <= axis < len(shape) or not 1 <= count <= shape[axis]:
        raise RejectedOpError(f"the {count} greatest along axis {axis} of {shape}")
    largest = bool(context.attrs.get("largest", 1))
    return relax.Tuple([emit(ops.topk(data, count, axis, part, largest, "int64")) for part in ("values", "indices")])


_SORTED_AS = {"uint64": "int64", "uint32": "int64", "uint16": "int32", "int16": "int32"}


def _top_k_of_integers(context: NodeContext, data: Any, count: int) -> Any:
    """Sort integers as others that TVM knows, those of 64 bits with the first one turned round; None for other data."""
    dtype, emit = dtype_of(data), context.builder.emit
    if dtype not in _SORTED_AS:
        return None
    wide = _SORTED_AS[dtype]
    low = relax.const(np.iinfo(np.int64).min, "int64") if dtype == "uint64" else None
    signed = emit(ops.astype(data, wide))
    signed = signed if low is None else emit(ops.bitwise_xor(signed, low))
    axis, largest = int(context.attrs.get("axis", -1)), bool(context.attrs.get("largest", 1))
    found = emit(ops.topk(signed, count, axis, "both", largest, "int64"))
    values, places = (emit(relax.TupleGetItem(found, at)) for at in (0, 1))
    values = values if low is None else emit(ops.bitwise_xor(values, low))
    return relax.Tuple([emit(ops.astype(values, dtype)), places])


def _scatter_nd(context: NodeContext, inputs: list[Any]) -> Any:
    """Write slices at places that tuples of indices name."""
    data, indices, updates = inputs
    shape, named = shape_of(data), shape_of(indices)
    depth = named[-1]
    if depth > len(shape):
        raise RejectedOpError(f"indices of {depth} axes into {shape}")
    outer, inner = shape[:depth], shape[depth:]
    strides = [math.prod(outer[i + 1 :]) for i in range(depth)]
    count = math.prod(named[:-1])
    emit = context.builder.emit
    if not isinstance(indices, Constant):
        indices = emit(ops.reshape(emit(ops.astype(indices, "int64")), [count, depth]))
    index = nonnegative_indices(emit, indices, outer, f"of {outer}")
    if isinstance(index, np.ndarray):
        places: Any = (index.reshape(count, depth) * strides).sum(axis=1)
    else:
        weighted = emit(ops.multiply(index, relax.const(np.asarray(strides, np.int64).reshape(1, depth), "int64")))
        places = emit(ops.sum(weighted, axis=[1]))
    return _placed(context, data, places, updates, math.prod(outer), math.prod(inner))


def _scatter_elements(context: NodeContext, inputs: list[Any]) -> Any:
    """Write single elements at places along one axis."""
    data, indices, updates = inputs
    shape, named = shape_of(data), shape_of(indices)
    axis = int(context.attrs.get("axis", 0)) % max(len(shape), 1)
    rest = np.indices(named).astype(np.int64)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    own = sum(rest[i] * strides[i] for i in range(len(shape)) if i != axis) + np.zeros(named, np.int64)
    emit = context.builder.emit
    if not isinstance(indices, Constant):
        indices = emit(ops.astype(indices, "int64"))
    index = nonnegative_indices(emit, indices, shape[axis], f"on axis {axis} of {shape}")
    if isinstance(index, np.ndarray):
        places: Any = (own + index * strides[axis]).reshape(-1)
    else:
        scaled = emit(ops.multiply(index, relax.const(strides[axis], "int64")))
        places = emit(ops.reshape(emit(ops.add(scaled, relax.const(own, "int64"))), [-1]))
    return _placed(context, data, places, updates, math.prod(shape), 1)


def _reduced(context: NodeContext, data: Any, places: Any, updates: Any, rows: int, width: int) -> Any:
    """Return `data` as `rows` rows, each with the updates that name it added, multiplied, or the greatest or least of all."""
    emit, dtype, reduction = context.builder.emit, dtype_of(data), context.text("reduction", "none")
    count = math.prod(shape_of(updates)) // max(width, 1)
    ends: Any = np.finfo(dtype) if dtype.startswith("float") else np.iinfo(dtype)
    kinds = {
        "add": (0, ops.sum, ops.add),
        "mul": (1, ops.prod, ops.multiply),
        "max": (ends.min, ops.max, ops.maximum),
        "min": (ends.max, ops.min, ops.minimum),
    }
    if reduction not in kinds:
        raise RejectedOpError(f"reduction {reduction!r} is none of none, {', '.join(kinds)}")
    if rows * count * width > _MAX_PAIRS:
        raise RejectedOpError(f"{count} updates of {rows} places by reduction {reduction!r} are too many; split the op")
    nothing, over, joined = kinds[reduction]
    here = np.arange(rows).reshape(rows, 1, 1)
    if isinstance(places, np.ndarray):
        meets: Any = relax.const(here == places.reshape(1, count, 1), "bool")
    else:
        meets = emit(ops.equal(relax.const(here, "int64"), emit(ops.reshape(places, [1, count, 1]))))
    wide = emit(ops.reshape(updates, [1, count, width]))
    parts = emit(over(emit(ops.where(meets, wide, relax.const(nothing, dtype))), axis=[1]))
    return ops.reshape(emit(joined(emit(ops.reshape(data, [rows, width])), parts)), shape_of(data))


def _placed(context: NodeContext, data: Any, places: Any, updates: Any, rows: int, width: int) -> Any:
    """Return `data` as `rows` rows with row i of `updates` at row places[i], the last where several name one."""
    emit, shape = context.builder.emit, shape_of(data)
    count = math.prod(shape_of(updates)) // max(width, 1)
    if not count or not rows or not width:
        return data
    if context.text("reduction", "none") != "none":
        return _reduced(context, data, places, updates, rows, width)
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


CONVERTERS: dict[str, Converter] = {
    "Celu": _celu,
    "Compress": _of_open_shape,
    "CumSum": _cumsum,
    "NonMaxSuppression": _of_open_shape,
    "NonZero": _of_open_shape,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
    "Unique": _of_open_shape,
}
"""Our converters by ONNX op."""
