"""Our converters of ONNX ops that TVM lowers to code that does not build here: CumSum, scattering, Celu; and of TopK.

All become plain ops. Ops whose results' shapes depend on values are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.dataflow import call_to
from ...ir.graph.suppression import Suppression, suppression
from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..placed import scatter_elements, scatter_slices
from ..relax_ops import celu, dtype_of, is_static, running_sum, shape_of
from .graph import dtype_name
from .ops import Converter, NodeContext, known_value


def _cumsum(context: NodeContext, inputs: list[Any]) -> Any:
    data = inputs[0]
    if not isinstance(inputs[1], Constant):
        raise RejectedOpError("its axis must be constant")
    shape = shape_of(data)
    axis = int(inputs[1].value.numpy().reshape(-1)[0])
    if not -len(shape) <= axis < len(shape):
        raise RejectedOpError(f"axis {axis} is none of {shape}")
    reverse, exclusive = (bool(context.attrs.get(name, 0)) for name in ("reverse", "exclusive"))
    if not is_static(shape):
        raise RejectedOpError(f"its sizes must be known; {context.symbols.advice()}")
    combination: dict[str, Any] = {"combined": ops.multiply, "neutral": 1} if context.op == "CumProd" else {}
    return running_sum(context.builder.emit, data, shape, axis % len(shape), reverse=reverse, exclusive=exclusive, **combination)


def _eye_like(context: NodeContext, inputs: list[Any]) -> Any:
    """Ones along a diagonal: a constant."""
    rows, columns = shape_of(inputs[0])
    if not is_static((rows, columns)):
        raise RejectedOpError(f"its sizes must be known; {context.symbols.advice()}")
    given = context.attrs.get("dtype")
    dtype = dtype_of(inputs[0]) if given is None else dtype_name(int(given))
    return relax.const(np.eye(rows, columns, int(context.attrs.get("k", 0)), np.dtype(dtype)), dtype)


def _celu(context: NodeContext, inputs: list[Any]) -> Any:
    return celu(context.builder.emit, inputs[0], float(context.attrs.get("alpha", 1.0)))


def _compress(context: NodeContext, inputs: list[Any]) -> Any:
    """Take what a known condition names."""
    data, condition = inputs
    if not isinstance(condition, Constant):
        return _of_open_shape(context, inputs)
    emit = context.builder.emit
    axis = context.attrs.get("axis")
    data = emit(ops.reshape(data, [-1])) if axis is None else data
    size = shape_of(data)[int(axis or 0)]
    places = np.flatnonzero(condition.value.numpy().reshape(-1)[:size])
    if not places.size:
        raise RejectedOpError("its condition names nothing, and a result without elements is not computed")
    return ops.take(data, relax.const(places.astype(np.int64), "int64"), axis=int(axis or 0), mode="clip")


def _non_max_suppression(context: NodeContext, inputs: list[Any]) -> Any:
    """Choose boxes: one op, of as many rows as may be chosen; that its result ends the graph, `_counted` sees to."""
    boxes, scores, *others = inputs
    bounds = [
        None if value is None else known_value(value, what).reshape(-1) for value, what in zip(others, _BOUNDS, strict=False)
    ]
    given = [None if value is None or not value.size else value[0].item() for value in bounds] + [None] * 3
    shape = shape_of(scores)
    if not is_static((*shape, *shape_of(boxes))) or dtype_of(boxes) != "float32":
        raise RejectedOpError(f"it chooses of float32 boxes of fixed sizes; {context.symbols.advice()}")
    what = Suppression(most=min(int(given[0] or 0), shape[2]), overlap=float(given[1] or 0.0), score=given[2])
    if what.most < 1 or 0 in shape:
        raise RejectedOpError("its max_output_boxes_per_class lets it choose no box")
    emit = context.builder.emit
    if context.attrs.get("center_point_box", 0):
        middle, extent = (emit(ops.strided_slice(boxes, [2], [at], [at + 2])) for at in (0, 2))
        half = emit(ops.multiply(extent, relax.const(0.5, "float32")))
        boxes = emit(ops.concat([emit(ops.subtract(middle, half)), emit(ops.add(middle, half))], 2))
    return suppression(boxes, scores, what)


_BOUNDS = ("max_output_boxes_per_class", "iou_threshold", "score_threshold")


def _of_open_shape(context: NodeContext, inputs: list[Any]) -> Any:
    del context, inputs
    raise RejectedOpError(
        "the shape of its result depends on values, which must be known before the run; cut the model ahead of it"
    )


def _top_k(context: NodeContext, inputs: list[Any]) -> Any:
    """Ask for the values and for the places of quantized data by an op each: kernels give one of them.

    Float data is left to TVM, which sorts once for both, but for the sets of ops before the one that it knows.
    """
    data, emit = inputs[0], context.builder.emit
    if context.opset < 11:
        count = context.attrs.get("k") if len(inputs) < 2 else known_value(inputs[1], "k").reshape(-1)[0]
        return _found(context, emit(ops.topk(data, int(count or 0), int(context.attrs.get("axis", -1)), "both", True, "int64")))
    made = context.builder.lookup_binding(data) if isinstance(data, relax.Var) else None
    is_quantized = call_to(made, "dequantize") is not None
    if len(inputs) < 2 or not isinstance(inputs[1], Constant):
        return None
    if not is_quantized and not context.attrs.get("sorted", 1):  # in any order: the one that TVM knows
        count, largest = int(inputs[1].value.numpy().reshape(-1)[0]), bool(context.attrs.get("largest", 1))
        return _found(context, emit(ops.topk(data, count, int(context.attrs.get("axis", -1)), "both", largest, "int64")))
    if not is_quantized:
        return _top_k_of_integers(context, data, int(inputs[1].value.numpy().reshape(-1)[0]))
    shape, count = shape_of(data), int(inputs[1].value.numpy().reshape(-1)[0])
    axis = int(context.attrs.get("axis", -1))
    if not -len(shape) <= axis < len(shape) or not 1 <= count <= shape[axis]:
        raise RejectedOpError(f"the {count} greatest along axis {axis} of {shape}")
    largest = bool(context.attrs.get("largest", 1))
    return relax.Tuple([emit(ops.topk(data, count, axis, part, largest, "int64")) for part in ("values", "indices")])


_SORTED_AS = {"uint64": "int64", "uint32": "int64", "uint16": "int32", "int16": "int32"}


def _found(context: NodeContext, both: Any) -> Any:
    return relax.Tuple([context.builder.emit(relax.TupleGetItem(both, at)) for at in (0, 1)])


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
    values, places = _found(context, emit(ops.topk(signed, count, axis, "both", largest, "int64"))).fields
    values = values if low is None else emit(ops.bitwise_xor(values, low))
    return relax.Tuple([emit(ops.astype(values, dtype)), places])


def _scatter_nd(context: NodeContext, inputs: list[Any]) -> Any:
    data, indices, updates = inputs
    return scatter_slices(context.builder.emit, data, indices, updates, context.text("reduction", "none"))


def _scatter_elements(context: NodeContext, inputs: list[Any]) -> Any:
    axis, reduction = int(context.attrs.get("axis", 0)), context.text("reduction", "none")
    data, indices, updates = inputs
    return scatter_elements(context.builder.emit, data, indices, updates, axis, reduction)


CONVERTERS: dict[str, Converter] = {
    "Celu": _celu,
    "Compress": _compress,
    "CumProd": _cumsum,
    "CumSum": _cumsum,
    "EyeLike": _eye_like,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _of_open_shape,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _top_k,
    "Unique": _of_open_shape,
}
"""Our converters by ONNX op."""
