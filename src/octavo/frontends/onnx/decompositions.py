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
from ..relax_ops import celu, nonnegative_indices, running_sum, shape_of
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
    if not is_quantized or len(inputs) < 2 or not isinstance(inputs[1], Constant):
        return None
    shape, count = shape_of(data), int(inputs[1].value.numpy().reshape(-1)[0])
    axis = int(context.attrs.get("axis", -1))
    if not -len(shape) <= axis < len(shape) or not 1 <= count <= shape[axis]:
        raise RejectedOpError(f"the {count} greatest along axis {axis} of {shape}")
    largest = bool(context.attrs.get("largest", 1))
    return relax.Tuple([emit(ops.topk(data, count, axis, part, largest, "int64")) for part in ("values", "indices")])


def _scatter_nd(context: NodeContext, inputs: list[Any]) -> Any:
    """Write slices at places that tuples of indices name."""
    data, indices, updates = inputs
    _check_reduction(context)
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
    _check_reduction(context)
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


def _check_reduction(context: NodeContext) -> None:
    reduction = context.text("reduction", "none")
    if reduction != "none":
        raise RejectedOpError(f"reduction {reduction!r} is not supported; none is")


def _placed(context: NodeContext, data: Any, places: Any, updates: Any, rows: int, width: int) -> Any:
    """Return `data` as `rows` rows with row i of `updates` at row places[i], the last where several name one."""
    emit, shape = context.builder.emit, shape_of(data)
    count = math.prod(shape_of(updates)) // max(width, 1)
    if not count or not rows or not width:
        return data
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
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
    "Unique": _of_open_shape,
}
"""Our converters by ONNX op."""
