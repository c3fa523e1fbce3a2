"""Our converters of ONNX's ops on numbers whose edges TVM's leave out: shifts, powers of integers, OneHot, single elements.

All become plain ops. A shift by as many bits as a number has leaves 0, or its sign; a power of integers is one of integers.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.dataflow import call_to
from ...ir.untyped import ops
from ...runtime.tensors import array_of
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, nonnegative_indices, shape_of
from .ops import Converter, NodeContext, input_at


def _is_float(dtype: str) -> bool:
    return "float" in dtype


def _bit_shift(context: NodeContext, inputs: list[Any]) -> Any:
    """Shift in steps of less than the width, which is all that processors define; a negative count is a large one."""
    data, counts = inputs
    dtype, emit = dtype_of(data), context.builder.emit
    direction = context.text("direction", "")
    if direction not in ("LEFT", "RIGHT"):
        raise RejectedOpError(f"direction {direction!r} is none of LEFT, RIGHT")
    width = np.iinfo(dtype).bits
    is_within = emit(ops.less(counts, relax.const(width, dtype)))
    if not dtype.startswith("u"):
        is_within = emit(ops.logical_and(is_within, emit(ops.greater_equal(counts, relax.const(0, dtype)))))
    bounded = emit(ops.where(is_within, counts, relax.const(0, dtype)))
    if direction == "LEFT":
        return ops.where(is_within, emit(ops.left_shift(data, bounded)), relax.const(0, dtype))
    shifted = emit(ops.right_shift(data, emit(ops.where(is_within, counts, relax.const(width - 1, dtype)))))
    return shifted if not dtype.startswith("u") else ops.where(is_within, shifted, relax.const(0, dtype))


def _power(context: NodeContext, inputs: list[Any]) -> Any:
    """Raise to a power in the type of the base; an exponent may have another type.

    An integer to a broken power is computed in float64, as C does it.
    """
    base, exponent = inputs
    kinds = dtype_of(base), dtype_of(exponent)
    emit = context.builder.emit
    if _is_float(kinds[0]):
        return ops.power(base, _as(context, exponent, kinds[0]))
    if _is_float(kinds[1]):
        exponents = exponent.value.numpy() if isinstance(exponent, Constant) else None
        if exponents is None or not (
            np.isfinite(exponents).all() and (exponents == np.floor(exponents)).all() and (np.abs(exponents) < 2**31).all()
        ):
            wide = emit(ops.power(_as(context, base, "float64"), _as(context, exponent, "float64")))
            return ops.astype(wide, kinds[0])
    if isinstance(exponent, Constant) and exponent.value.numpy().size == 1:
        return _literal_power(context, base, int(exponent.value.numpy().reshape(())), exponent)
    return _integer_power(context, base, _as(context, exponent, kinds[0]))


def _as(context: NodeContext, value: Any, dtype: str) -> Any:
    if dtype_of(value) == dtype:
        return value
    if isinstance(value, Constant):
        return relax.const(value.value.numpy().astype(dtype), dtype)
    return context.builder.emit(ops.astype(value, dtype))


def _literal_power(context: NodeContext, base: Any, exponent: int, literal: Any) -> Any:
    """Multiply as often as a known exponent says, by way of squares."""
    emit, dtype, shape = context.builder.emit, dtype_of(base), shape_of(literal)
    if exponent < 0:
        return _integer_power(context, base, _as(context, literal, dtype))
    if len(shape) > len(shape_of(base)):
        base = emit(ops.reshape(base, [*[1] * (len(shape) - len(shape_of(base))), *shape_of(base)]))
    result, square = None, base
    while exponent:
        if exponent & 1:
            result = square if result is None else emit(ops.multiply(result, square))
        exponent >>= 1
        square = emit(ops.multiply(square, square)) if exponent else square
    if result is None:
        return ops.add(emit(ops.multiply(base, relax.const(0, dtype))), relax.const(1, dtype))
    return result


def _integer_power(context: NodeContext, base: Any, exponent: Any) -> Any:
    """Multiply by the squares that the bits of the exponents name; of negative ones, what is left of a fraction."""
    emit, dtype = context.builder.emit, dtype_of(base)
    zero, one = relax.const(0, dtype), relax.const(1, dtype)
    result, square = None, base
    for bit in range(np.iinfo(dtype).bits - (0 if dtype.startswith("u") else 1)):
        square = emit(ops.multiply(square, square)) if bit else square
        shifted = emit(ops.right_shift(exponent, relax.const(bit, dtype))) if bit else exponent
        is_set = emit(ops.not_equal(emit(ops.bitwise_and(shifted, one)), zero))
        factor = emit(ops.where(is_set, square, one))
        result = factor if result is None else emit(ops.multiply(result, factor))
    if dtype.startswith("u"):
        return result
    is_odd = emit(ops.not_equal(emit(ops.bitwise_and(exponent, one)), zero))
    minus = relax.const(-1, dtype)
    sign = emit(ops.where(is_odd, minus, one))
    of_minus = emit(ops.where(emit(ops.equal(base, minus)), sign, zero))
    inverse = emit(ops.where(emit(ops.equal(base, one)), one, of_minus))
    return ops.where(emit(ops.less(exponent, zero)), inverse, result)


def _one_hot(context: NodeContext, inputs: list[Any]) -> Any:
    """Compare each index with all places: one out of range names none."""
    indices, depth, values = inputs
    emit = context.builder.emit
    if not isinstance(depth, Constant):
        raise RejectedOpError("its depth must be constant: it is a size of the result")
    size, shape = int(depth.value.numpy().reshape(-1)[0]), shape_of(indices)
    axis = int(context.attrs.get("axis", -1))
    if size < 1 or not -len(shape) - 1 <= axis <= len(shape):
        raise RejectedOpError(f"depth {size} along axis {axis} of indices of shape {shape}")
    axis %= len(shape) + 1
    wide = emit(ops.reshape(_as(context, indices, "int64"), [*shape[:axis], 1, *shape[axis:]]))
    negative = emit(ops.less(wide, relax.const(0, "int64")))
    wide = emit(ops.where(negative, emit(ops.add(wide, relax.const(size, "int64"))), wide))
    places = np.arange(size).reshape([size, *[1] * (len(shape) - axis)])
    is_named = emit(ops.equal(wide, relax.const(places, "int64")))
    if isinstance(values, Constant):
        off, on = (relax.const(each, dtype_of(values)) for each in values.value.numpy())
    else:
        parts = [emit(ops.strided_slice(values, [0], [at], [at + 1])) for at in (0, 1)]
        off, on = (emit(ops.reshape(each, [])) for each in parts)
    return ops.where(is_named, on, off)


def _places(context: NodeContext, inputs: list[Any]) -> list[int]:
    """Return the axes that a reduction names, none for all."""
    axes = input_at(inputs, 1)
    if axes is not None and not isinstance(axes, Constant):
        raise RejectedOpError("its axes must be constant: the shape of the result depends on them")
    return context.ints("axes", []) if axes is None else [int(axis) for axis in axes.value.numpy().reshape(-1)]


def _reduce_mean(context: NodeContext, inputs: list[Any]) -> Any:
    """Divide the sum of integers by their number, toward zero; TVM's mean computes int64 and calls it what was given."""
    data, dtype = inputs[0], dtype_of(inputs[0])
    places = _places(context, inputs)
    if _is_float(dtype) or (not places and context.attrs.get("noop_with_empty_axes", 0)):
        return None
    emit, shape = context.builder.emit, shape_of(data)
    total = emit(ops.sum(_as(context, data, "int64"), places or None, bool(context.attrs.get("keepdims", 1))))
    averaged = [shape[axis] for axis in places or range(len(shape))]
    if not all(isinstance(size, int) for size in averaged):
        raise RejectedOpError(f"it counts integers along open sizes; {context.symbols.advice()}")
    return _as(context, emit(ops.divide(total, relax.const(prod(averaged), "int64"))), dtype)


def _extreme_of_booleans(context: NodeContext, inputs: list[Any]) -> Any:
    """Find the extreme of booleans among numbers: TVM's reductions begin at the ends of a dtype, and know none of these."""
    data, places = inputs[0], _places(context, inputs)
    if dtype_of(data) != "bool":
        return None
    if not places and context.attrs.get("noop_with_empty_axes", 0):
        return data
    reduction = {"ReduceMax": ops.max, "ReduceMin": ops.min}[context.op]
    found = reduction(_as(context, data, "uint8"), places or None, bool(context.attrs.get("keepdims", 1)))
    return _as(context, context.builder.emit(found), "bool")


def _log_sum_exp(context: NodeContext, inputs: list[Any]) -> Any:
    """Log of a sum of exponentials about the greatest, which is taken for finite: infinity less infinity is no number."""
    data, places = inputs[0], _places(context, inputs)
    if not places and context.attrs.get("noop_with_empty_axes", 0):
        return data
    emit, dtype = context.builder.emit, dtype_of(data)
    if not _is_float(dtype):
        return None
    ends = [relax.const(float(end), dtype) for end in (np.finfo(dtype).min, np.finfo(dtype).max)]
    greatest = emit(ops.max(data, places or None, keepdims=True))
    middle = emit(ops.minimum(emit(ops.maximum(greatest, ends[0])), ends[1]))
    total = emit(ops.sum(emit(ops.exp(emit(ops.subtract(data, middle)))), places or None, keepdims=True))
    result = ops.add(emit(ops.log(total)), middle)
    return result if context.attrs.get("keepdims", 1) else ops.squeeze(emit(result), places or None)


_WITH_AXIS = frozenset({"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor"})


def with_axis(context: NodeContext, inputs: list[Any]) -> list[Any]:
    """Return the operands of an op of before opset 7, whose second one may begin at an axis of the first: it ends with ones."""
    if context.opset >= 7 or context.op not in _WITH_AXIS or "axis" not in context.attrs:
        return inputs
    wide, own = shape_of(inputs[0]), shape_of(inputs[1])
    behind = len(wide) - int(context.attrs["axis"]) % max(len(wide), 1) - len(own)
    if not context.attrs.get("broadcast", 0) or behind < 0:
        raise RejectedOpError(f"an operand of shape {own} from axis {context.attrs['axis']} of {wide} on does not broadcast")
    return [inputs[0], context.builder.emit(ops.reshape(inputs[1], [*own, *[1] * behind]))]


def with_listed_axes(context: NodeContext, inputs: list[Any]) -> list[Any]:
    """Return the operands of an op, axes to add or drop as a list: one axis may be a scalar."""
    axes = input_at(inputs, 1)
    if context.op not in ("Squeeze", "Unsqueeze") or not isinstance(axes, Constant) or shape_of(axes):
        return inputs
    return [inputs[0], relax.const(array_of(axes.value).reshape(1), "int64")]


def with_fence(context: NodeContext, inputs: list[Any]) -> list[Any]:
    """Return the operands of an op, an integer dividend that products lead to as its complement's complement.

    Products wrap around; TVM takes them for numbers that never do, and would divide the factors.
    """
    if context.op not in ("Div", "Mod") or _is_float(dtype_of(inputs[0])) or not _is_product(context, inputs[0]):
        return inputs
    emit = context.builder.emit
    return [emit(ops.bitwise_not(emit(ops.bitwise_not(inputs[0])))), *inputs[1:]]


def _is_product(context: NodeContext, expr: Any) -> bool:
    """Return whether an integer is a product, or a sum of some."""
    call: Any = context.definition(expr)
    if call_to(call, "multiply") is not None or call_to(call, "left_shift") is not None:
        return True
    is_sum = any(call_to(call, name) is not None for name in ("add", "subtract", "negative", "reshape"))
    return is_sum and any(_is_product(context, operand) for operand in call.args if isinstance(operand, relax.Var))


def _p_relu(context: NodeContext, inputs: list[Any]) -> Any:
    """Before opset 7 slopes are those of channels, which are the second axis; TVM's op broadcasts some of the later ones."""
    data, slope = inputs
    shape, own = shape_of(data), shape_of(slope)
    if context.opset < 7 and own == shape[1:2]:
        slope = context.builder.emit(ops.reshape(slope, [own[0], *[1] * (len(shape) - 2)]))
    elif context.opset < 7 and any(size != 1 for size in own):
        raise RejectedOpError(f"slopes of shape {own} do not fit the channels of {shape}")
    elif len(own) != 1 or own[0] in (1, shape[-1]):
        return None
    elif own[0] not in (1, shape[-1]):
        raise RejectedOpError(f"slopes of shape {own} do not broadcast to {shape}")
    emit, zero = context.builder.emit, relax.const(0, dtype_of(data))
    return ops.where(emit(ops.less(data, zero)), emit(ops.multiply(data, slope)), data)


def _space_to_depth(context: NodeContext, inputs: list[Any]) -> Any:
    """Move the pixels of blocks to channels, behind the channels that there are (DCR) or within them (CRD)."""
    mode = context.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise RejectedOpError(f"mode {mode!r} is none of DCR, CRD")
    size, shape = int(context.attrs["blocksize"]), shape_of(inputs[0])
    if mode == "DCR" or not all(isinstance(dim, int) for dim in shape):
        return None
    n, c, h, w = shape
    emit = context.builder.emit
    blocks = emit(ops.reshape(inputs[0], [n, c, h // size, size, w // size, size]))
    return ops.reshape(emit(ops.permute_dims(blocks, [0, 1, 3, 5, 2, 4])), [n, c * size * size, h // size, w // size])


def _roi_align(context: NodeContext, inputs: list[Any]) -> Any:
    """Leave the mean of interpolated values to TVM, whose greatest is one of interpolated values, too; ONNX's is not."""
    del inputs
    if context.text("mode", "avg") != "avg":
        raise RejectedOpError("mode 'max' (the greatest of weighted neighbors) is not supported; export it with mode 'avg'")
    return None


def _gather_elements(context: NodeContext, inputs: list[Any]) -> Any:
    """Take single elements along one axis; indices that arrive at run time are brought into range."""
    data, indices = inputs
    shape = shape_of(data)
    axis = int(context.attrs.get("axis", 0)) % max(len(shape), 1)
    return ops.gather_elements(data, _in_range(context, indices, shape[axis], f"on axis {axis} of {shape}"), axis)


def _gather_nd(context: NodeContext, inputs: list[Any]) -> Any:
    """Take slices at places that tuples of indices name, brought into range; of one axis as Gather does."""
    data, indices = inputs
    shape, batch, named = shape_of(data), int(context.attrs.get("batch_dims", 0)), shape_of(indices)
    extents = shape[batch : batch + named[-1]]
    places = _in_range(context, indices, extents, f"of {extents}")
    if not batch and len(extents) == 1 and not isinstance(places, Constant):
        return ops.take(data, context.builder.emit(ops.reshape(places, named[:-1])), axis=0, mode="clip")
    return ops.gather_nd(data, places, batch)


def _in_range(context: NodeContext, indices: Any, extent: Any, where: str) -> Any:
    """Count negative indices from the end; keep those of run time within the tensor, beyond which TVM reads anything."""
    extents = extent if isinstance(extent, list) else [extent]
    if not all(isinstance(size, int) for size in extents):
        raise RejectedOpError(f"it picks elements along open sizes; {context.symbols.advice()}")
    emit = context.builder.emit
    found = nonnegative_indices(emit, _as(context, indices, "int64"), extent, where)
    if isinstance(found, np.ndarray):
        return relax.const(found, "int64")
    last = relax.const(np.asarray(extent, np.int64) - 1, "int64")
    return emit(ops.maximum(emit(ops.minimum(found, last)), relax.const(0, "int64")))


CONVERTERS: dict[str, Converter] = {
    "BitShift": _bit_shift,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "PRelu": _p_relu,
    "Pow": _power,
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMax": _extreme_of_booleans,
    "ReduceMean": _reduce_mean,
    "ReduceMin": _extreme_of_booleans,
    "RoiAlign": _roi_align,
    "SpaceToDepth": _space_to_depth,
}
"""Our converters by ONNX op."""
