"""Our converters of ONNX ops that put values elsewhere by sizes and places: Col2Im, MaxUnpool, ReverseSequence. Plain ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ...runtime.tensors import array_of
from ..deformed import Deformed
from ..frontend import RejectedOpError
from ..placed import scatter_elements
from ..relax_ops import dtype_of, is_static, shape_of
from .ops import Converter, NodeContext, input_at, known_value


def _known_shape(context: NodeContext, data: Any) -> list[int]:
    shape = shape_of(data)
    if not is_static(shape):
        raise RejectedOpError(f"its sizes must be known; {context.symbols.advice()}")
    return shape


def _reverse_sequence(context: NodeContext, inputs: list[Any]) -> Any:
    """Turn round the first steps of each sample, as many as its length says: rows are taken, which are computed of lengths."""
    data, lengths = inputs
    emit, shape = context.builder.emit, _known_shape(context, data)
    time, batch = int(context.attrs.get("time_axis", 0)), int(context.attrs.get("batch_axis", 1))
    if {time, batch} != {0, 1}:
        raise RejectedOpError(f"time_axis {time} and batch_axis {batch}: they are 0 and 1")
    rows, steps = shape[batch], np.arange(shape[time], dtype=np.int64)
    # Place of step t of sample b in rows of one sample each, which lie one behind the other.
    strides = (shape[1], 1) if time == 0 else (1, shape[1])
    base = np.arange(rows, dtype=np.int64)[:, None] * strides[1]
    if isinstance(lengths, Constant):
        count = array_of(lengths.value).astype(np.int64)[:, None]
        taken: Any = np.where(steps < count, count - 1 - steps, steps) * strides[0] + base
        taken = relax.const(np.ascontiguousarray(taken.T if time == 0 else taken).reshape(-1), "int64")
    else:
        count = emit(ops.reshape(emit(ops.astype(lengths, "int64")), [rows, 1]))
        behind = emit(ops.subtract(emit(ops.subtract(count, relax.const(1, "int64"))), relax.const(steps, "int64")))
        step = emit(ops.where(emit(ops.less(relax.const(steps, "int64"), count)), behind, relax.const(steps, "int64")))
        places = emit(ops.add(emit(ops.multiply(step, relax.const(strides[0], "int64"))), relax.const(base, "int64")))
        places = emit(ops.permute_dims(places, [1, 0])) if time == 0 else places
        taken = emit(ops.reshape(places, [-1]))
    flat = emit(ops.reshape(data, [shape[0] * shape[1], *shape[2:]]))
    return ops.reshape(emit(ops.take(flat, taken, axis=0, mode="clip")), shape)


def _max_unpool(context: NodeContext, inputs: list[Any]) -> Any:
    """Put each value at the place that MaxPool found it at, among zeros."""
    data, indices = inputs[:2]
    emit, shape = context.builder.emit, _known_shape(context, data)
    kernel, rank = context.ints("kernel_shape", []), len(shape) - 2
    strides, pads = context.ints("strides", [1] * rank), context.ints("pads", [0] * 2 * rank)
    sizes = [
        (size - 1) * stride + taps - before - after
        for size, stride, taps, before, after in zip(shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True)
    ]
    result, wanted = [*shape[:2], *sizes], input_at(inputs, 2)
    if wanted is not None and [int(size) for size in known_value(wanted, "output_shape")] != result:
        raise RejectedOpError(
            f"output_shape {known_value(wanted, 'output_shape').tolist()} where kernel and strides make {result}"
        )
    among = relax.const(np.zeros(math.prod(result), dtype_of(data)))
    places, values = (emit(ops.reshape(each, [math.prod(shape)])) for each in (indices, data))
    return ops.reshape(emit(scatter_elements(emit, among, places, values, 0)), result)


def _col2im(context: NodeContext, inputs: list[Any]) -> Any:
    """Add blocks up where they overlap in an image: a transposed convolution by channel, whose weights put pixels in place."""
    data = inputs[0]
    image, block = (
        [int(size) for size in known_value(each, name)]
        for each, name in zip(inputs[1:3], ("image_shape", "block_shape"), strict=True)
    )
    emit, shape, rank = context.builder.emit, _known_shape(context, data), len(image)
    if rank != 2 or len(block) != 2:
        raise RejectedOpError(f"an image of {rank} axes; 2 are supported")
    dilations, strides = context.ints("dilations", [1, 1]), context.ints("strides", [1, 1])
    pads, taps = context.ints("pads", [0] * 4), math.prod(block)
    extents = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, block, strict=True)]
    counts = [
        (size + before + after - extent) // stride + 1
        for size, before, after, extent, stride in zip(image, pads[:2], pads[2:], extents, strides, strict=True)
    ]
    if len(shape) != 3 or shape[1] % taps or math.prod(counts) != shape[2]:
        raise RejectedOpError(f"columns of shape {shape} where {counts[0]} x {counts[1]} blocks of {block} fit")
    channels, dtype = shape[1] // taps, dtype_of(data)
    extra = [
        size + before + after - ((count - 1) * stride + extent)
        for size, before, after, count, stride, extent in zip(image, pads[:2], pads[2:], counts, strides, extents, strict=True)
    ]
    blocks = emit(ops.reshape(data, [shape[0], shape[1], *counts]))
    weight = np.tile(np.eye(taps, dtype=dtype).reshape(taps, 1, *block), (channels, 1, 1, 1))
    made = emit(ops.nn.conv2d_transpose(blocks, relax.const(weight), strides=strides, dilation=dilations, groups=channels))
    # What no block reaches is 0, what is padded is cut off.
    wide = emit(ops.nn.pad(made, [0, 0, 0, 0, 0, extra[0], 0, extra[1]])) if any(extra) else made
    return ops.strided_slice(
        wide, axes=[2, 3], begin=pads[:2], end=[before + size for before, size in zip(pads[:2], image, strict=True)]
    )


def _deformed(context: NodeContext, inputs: list[Any]) -> Any:
    """Sample what each tap is moved to, and multiply that."""
    x, weight, offset = inputs[:3]
    bias, mask = (input_at(inputs, place) for place in (3, 4))
    if len(shape_of(x)) != 4:
        raise RejectedOpError("only images are sampled")
    found = Deformed(
        emit=context.builder.emit,
        strides=context.ints("strides", [1, 1]),
        dilations=context.ints("dilations", [1, 1]),
        pads=context.ints("pads", [0] * 4)[:2],
        groups=int(context.attrs.get("group", 1)),
        offset_groups=int(context.attrs.get("offset_group", 1)),
    ).convolve(x, weight, offset, mask)
    return found if bias is None else ops.add(found, context.builder.emit(ops.reshape(bias, [1, -1, 1, 1])))


CONVERTERS: dict[str, Converter] = {
    "DeformConv": _deformed,
    "Col2Im": _col2im,
    "MaxUnpool": _max_unpool,
    "ReverseSequence": _reverse_sequence,
}
"""Our converters by ONNX op."""
