"""Our converters of ONNX's signal ops, DFT, STFT and MelWeightMatrix, as products with constant matrices.

Sizes of signals, frames and transforms must be known; they are fixed in every front end of speech that exporters write.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ...runtime.tensors import array_of
from ..fourier import transformed
from ..frontend import RejectedOpError
from ..relax_ops import is_static, shape_of
from .ops import Converter, NodeContext, input_at, known_value


def _integer(value: Any, what: str, default: int) -> int:
    return default if value is None else int(known_value(value, what).reshape(-1)[0])


def _transformed(context: NodeContext, real: Any, imaginary: Any | None, bins: int, *, inverse: bool = False) -> Any:
    """Return the transform of rows, real and imaginary parts in a last axis of two; the inverse one over its length."""
    factor = 1 / shape_of(real)[-1] if inverse else 1.0
    parts = transformed(context.builder.emit, real, imaginary, bins, inverse=inverse, factor=factor)
    return context.builder.emit(ops.stack(list(parts), axis=-1))


def _parts(context: NodeContext, data: Any) -> tuple[Any, Any | None]:
    """Return real and imaginary parts of what has them in its last axis, which is taken off."""
    emit, shape = context.builder.emit, shape_of(data)
    if shape[-1] not in (1, 2):
        raise RejectedOpError(f"a signal of shape {shape}: its last axis holds 1 real part, or 2 parts")
    parts = [emit(ops.strided_slice(data, axes=[len(shape) - 1], begin=[at], end=[at + 1])) for at in range(shape[-1])]
    flat = [emit(ops.reshape(part, shape[:-1])) for part in parts]
    return flat[0], flat[1] if len(flat) > 1 else None


def _dft(context: NodeContext, inputs: list[Any]) -> Any:
    """Transform one axis: it is moved to the end of its rows, cut or extended by zeros to the transform's length, and back."""
    data, emit = inputs[0], context.builder.emit
    if not is_static(shape_of(data)):
        raise RejectedOpError(f"its sizes must be known; {context.symbols.advice()}")
    rank = len(shape_of(data))
    axis = int(context.attrs.get("axis", 1)) if context.opset < 20 else _integer(input_at(inputs, 2), "axis", -2)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise RejectedOpError(f"axis {axis} is none that a signal of shape {shape_of(data)} goes along")
    axis %= rank
    order = [*(each for each in range(rank - 1) if each != axis), axis, rank - 1]
    moved = emit(ops.permute_dims(data, order))
    points = _integer(input_at(inputs, 1), "dft_length", shape_of(data)[axis])
    moved = _of_length(context, moved, rank - 2, points)
    inverse, onesided = (bool(context.attrs.get(name, 0)) for name in ("inverse", "onesided"))
    if inverse and onesided:
        raise RejectedOpError("an inverse transform of one side; compute it of both")
    real, imaginary = _parts(context, moved)
    result = _transformed(context, real, imaginary, points // 2 + 1 if onesided else points, inverse=inverse)
    return ops.permute_dims(result, [order.index(each) for each in range(rank)])


def _of_length(context: NodeContext, data: Any, axis: int, length: int) -> Any:
    shape, emit = shape_of(data), context.builder.emit
    if length < shape[axis]:
        return emit(ops.strided_slice(data, axes=[axis], begin=[0], end=[length]))
    if length == shape[axis]:
        return data
    widths = [0] * 2 * len(shape)
    widths[2 * axis + 1] = length - shape[axis]
    return emit(ops.nn.pad(data, widths))


def _stft(context: NodeContext, inputs: list[Any]) -> Any:
    """Transform frames of a signal, each times a window: rows that are taken of it, one behind the other."""
    data, emit = inputs[0], context.builder.emit
    step = _integer(inputs[1], "frame_step", 0)
    window, shape = input_at(inputs, 2), shape_of(data)
    if not is_static(shape) or len(shape) not in (2, 3):
        raise RejectedOpError(f"a signal of shape {shape}; its sizes must be known; {context.symbols.advice()}")
    length = shape_of(window)[0] if window is not None else 0
    length = _integer(input_at(inputs, 3), "frame_length", length)
    if not 0 < length <= shape[1] or step < 1 or (window is not None and shape_of(window) != [length]):
        raise RejectedOpError(f"frames of {length} every {step} in a signal of {shape[1]}, and a window that fits them")
    count = (shape[1] - length) // step + 1
    places = (np.arange(count)[:, None] * step + np.arange(length)).astype(np.int32)
    bins = length // 2 + 1 if context.attrs.get("onesided", 1) else length
    data = data if len(shape) == 3 else emit(ops.expand_dims(data, 2))

    def framed(part: Any) -> Any:
        rows = emit(
            ops.reshape(emit(ops.take(part, relax.const(places.reshape(-1)), axis=1, mode="clip")), [shape[0], count, length])
        )
        return rows if window is None else emit(ops.multiply(rows, window))

    real, imaginary = _parts(context, data)
    return _transformed(context, framed(real), None if imaginary is None else framed(imaginary), bins)


def _mel_weights(context: NodeContext, inputs: list[Any]) -> Any:
    """A constant, as ONNX's reference computes it."""
    if not all(isinstance(each, Constant) for each in inputs):
        raise RejectedOpError("its inputs must be constant")
    names = [f"x{place}" for place in range(len(inputs))]
    node = onnx.helper.make_node("MelWeightMatrix", names, ["y"])
    node.attribute.extend(context.node.attribute)
    values = {name: array_of(each.value) for name, each in zip(names, inputs, strict=True)}
    given = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    result = onnx.helper.make_tensor_value_info("y", int(context.attrs.get("output_datatype", 1)), None)
    graph = onnx.helper.make_graph([node], "mel", given, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", context.opset)])
    found: Any = ReferenceEvaluator(model).run(None, values)
    return relax.const(np.asarray(found[0]))


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "MelWeightMatrix": _mel_weights, "STFT": _stft}
"""Our converters by ONNX op."""
