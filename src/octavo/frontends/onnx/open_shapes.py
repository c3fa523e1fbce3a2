"""Our converters of ONNX ops for tensors with open sizes, and for sizes that are computed: the ops that take sizes as arguments.

They come before all others, and leave to these what is static. Shapes are ints and PrimExprs here; the sizes that a SizeTensor
holds become arguments of Relax ops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.untyped import ops
from ..frontend import NewlyKnownError, RejectedOpError
from ..relax_ops import dtype_of, is_static, nonnegative_indices, open_running_sum, padded, shape_of, size_tensor
from ..symbols import Size, Symbols
from .large_tensors import tensor_array
from .ops import Converter, NodeContext, input_at
from .resize import resized
from .sizes import Ratio, SizeTensor, sizes_of

_ENDLESS = 2**31 - 1
"""From here on exporters mean "to the end"."""
_FAR = 10**6
"""From here on people mean it, who write 9999999: an axis is let to be as long as that."""


def _wanted_sizes(value: Any, what: str) -> list[Size]:
    sizes = sizes_of(value)
    if sizes is None:
        raise RejectedOpError(f"its {what} depends on values, which must be known before the run")
    return sizes


def _reshape(context: NodeContext, inputs: list[Any]) -> Any:
    symbols, shape = context.symbols, shape_of(inputs[0])
    given = context.ints("shape", []) if len(inputs) < 2 else _wanted_sizes(inputs[1], "shape")
    keeps_zero = bool(context.attrs.get("allowzero", 0))
    target = [shape[axis] if _is(size, 0) and not keeps_zero else size for axis, size in enumerate(given)]
    free = [axis for axis, size in enumerate(target) if _is(size, -1)]
    if free:
        left, known = list(shape), list[Size]()
        for size in (size for axis, size in enumerate(target) if axis not in free):
            same = next((place for place, each in enumerate(left) if symbols.is_equal(each, size)), None)
            if same is None:
                known.append(size)
            else:
                del left[same]
        target[free[0]] = symbols.quotient(symbols.simplify(math.prod(left)), symbols.simplify(math.prod(known)))
    else:
        symbols.meet(symbols.simplify(math.prod(shape)), symbols.simplify(math.prod(target)))
    return ops.reshape(inputs[0], relax.ShapeExpr([symbols.simplify(size) for size in target]))


def _is(size: Size, value: int) -> bool:
    return isinstance(size, int) and size == value


def _flatten(context: NodeContext, inputs: list[Any]) -> Any:
    shape = shape_of(inputs[0])
    axis = int(context.attrs.get("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return ops.reshape(inputs[0], [context.symbols.simplify(math.prod(part)) for part in (shape[:axis], shape[axis:])])


def _expand(context: NodeContext, inputs: list[Any]) -> Any:
    """Repeat along axes of size 1; an axis of the target that is 1 keeps the input's size."""
    symbols, shape = context.symbols, shape_of(inputs[0])
    target = [symbols.simplify(size) for size in symbols.broadcast(shape, _wanted_sizes(inputs[1], "shape"))]
    wide = [1] * (len(target) - len(shape)) + shape
    data = inputs[0] if len(wide) == len(shape) else context.builder.emit(ops.reshape(inputs[0], wide))
    repeats = [want if _is(have, 1) else 1 for have, want in zip(wide, target, strict=True)]
    if is_static(repeats):
        return data if set(repeats) <= {1} else ops.tile(data, repeats)
    return ops.broadcast_to(data, relax.ShapeExpr(target))


def _tile(context: NodeContext, inputs: list[Any]) -> Any:
    """Repeat along new axes ahead of each, then join these with it: Relax's op takes constants only."""
    shape, repeats = shape_of(inputs[0]), _wanted_sizes(inputs[1], "number of repeats")
    if is_static(repeats):
        return None
    emit = context.builder.emit
    with_ones = [size for each in shape for size in (1, each)]
    wide = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    data = emit(ops.broadcast_to(emit(ops.reshape(inputs[0], with_ones)), relax.ShapeExpr(wide)))
    return ops.reshape(data, [context.symbols.simplify(a * b) for a, b in zip(repeats, shape, strict=True)])


def _slice(context: NodeContext, inputs: list[Any]) -> Any:
    data, shape = inputs[0], shape_of(inputs[0])
    if context.opset < 10:
        starts, ends = context.ints("starts", []), context.ints("ends", [])
        axes, steps = context.ints("axes", range(len(starts))), list[Size]([1] * len(starts))
    else:
        starts, ends = _wanted_sizes(inputs[1], "start"), _wanted_sizes(inputs[2], "end")
        axes = list(range(len(starts))) if input_at(inputs, 3) is None else _wanted_sizes(inputs[3], "axes")
        steps = list[Size]([1] * len(starts)) if input_at(inputs, 4) is None else _wanted_sizes(inputs[4], "steps")
    taken: list[tuple[int, Size, Size, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        if not isinstance(step, int) or step == 0:
            raise RejectedOpError(f"its step {context.symbols.text(step)} must be a whole number other than 0")
        if step < 0:
            data = context.builder.emit(ops.flip(data, axis % len(shape)))
            start, end, step = _from_behind(context, start, size), _from_behind(context, end, size), -step
        if isinstance(end, int) and _FAR <= end < _ENDLESS:
            context.symbols.be_at_most(size, end)
        bounds = _place(context, start, size), _place(context, end, size)
        begin = context.symbols.minimum(*bounds) if not context.symbols.can_prove(bounds[0] <= bounds[1]) else bounds[0]
        if not (_is(begin, 0) and context.symbols.is_equal(bounds[1], size) and step == 1):
            taken.append((axis % len(shape), begin, bounds[1], step))
    if not taken:
        return data
    columns = [list(column) for column in zip(*taken, strict=True)]
    return ops.strided_slice(data, *columns, assume_inbound=True)


def _from_behind(context: NodeContext, place: Size, size: Size) -> Size:
    """Return the place of an axis that is turned round: -1 is the first, and what lies ahead of the first one is the end."""
    counts_from_end = context.symbols.can_prove(place < 0)
    return -1 - place if counts_from_end else context.symbols.maximum(context.symbols.simplify(size - 1 - place), 0)


def _place(context: NodeContext, place: Size, size: Size) -> Size:
    """Return where a start or an end lies in [0; size]: negative ones count from the end."""
    symbols = context.symbols
    if isinstance(place, int) and abs(place) >= _ENDLESS:
        return size if place > 0 else 0
    if symbols.can_prove(place < 0):
        return symbols.maximum(symbols.simplify(size + place), 0)
    if not symbols.at_least(place, 0):
        raise RejectedOpError(f"whether {symbols.text(place)} counts from the end is open; {symbols.advice()}")
    return symbols.minimum(place, size)


def _gather(context: NodeContext, inputs: list[Any]) -> Any:
    """Take at places that are known; one alone is a slice."""
    data, shape = inputs[0], shape_of(inputs[0])
    axis = int(context.attrs.get("axis", 0)) % max(len(shape), 1)
    places = sizes_of(inputs[1])
    if places is None or not shape or (isinstance(shape[axis], int) and is_static(places)):
        return None
    emit, wanted, symbols = context.builder.emit, shape_of(inputs[1]), context.symbols
    places = [symbols.simplify(shape[axis] + place) if symbols.can_prove(place < 0) else place for place in places]
    if len(places) == 1:
        taken = ops.strided_slice(data, [axis], places, [places[0] + 1], assume_inbound=True)
    else:
        indices = (
            emit(ops.concat([size_tensor(emit, place) for place in places], 0))
            if places
            else relax.const(np.zeros(0, np.int64), "int64")
        )
        taken = ops.take(data, indices, axis=axis, mode="clip")
    if len(wanted) == 1:
        return taken
    return ops.reshape(emit(taken), relax.ShapeExpr([*shape[:axis], *wanted, *shape[axis + 1 :]]))


def _gather_elements(context: NodeContext, inputs: list[Any]) -> Any:
    data, shape = inputs[0], shape_of(inputs[0])
    axis = int(context.attrs.get("axis", 0)) % len(shape)
    indices = nonnegative_indices(context.builder.emit, inputs[1], shape[axis], f"on axis {axis} of {shape}")
    indices = relax.const(indices, "int64") if isinstance(indices, np.ndarray) else indices
    return ops.gather_elements(data, indices, axis)


def _gather_nd(context: NodeContext, inputs: list[Any]) -> Any:
    """Take slices at places that tuples of indices name, from data whose named axes are one."""
    data, indices = inputs
    shape, named = shape_of(data), shape_of(indices)
    depth = named[-1]
    if int(context.attrs.get("batch_dims", 0)) or not isinstance(depth, int):
        raise RejectedOpError("batch_dims of data of open sizes are not supported")
    emit, symbols = context.builder.emit, context.symbols
    outer, inner = shape[:depth], shape[depth:]
    flat: Any = None
    for place, size in enumerate(outer):
        index = emit(ops.reshape(emit(ops.strided_slice(indices, [len(named) - 1], [place], [place + 1])), named[:-1]))
        index = nonnegative_indices(emit, index, size, f"of {outer}")
        flat = index if flat is None else emit(ops.add(emit(ops.multiply(flat, size_tensor(emit, size, dtype_of(flat)))), index))
    rows = emit(ops.reshape(data, [symbols.simplify(math.prod(outer)), *inner]))
    flat = emit(ops.reshape(flat, [symbols.simplify(math.prod(named[:-1]))]))
    taken = emit(ops.take(rows, flat, axis=0, mode="clip"))
    return ops.reshape(taken, relax.ShapeExpr([*named[:-1], *inner]))


def _constant_of_shape(context: NodeContext, inputs: list[Any]) -> Any:
    given: Any = context.attrs.get("value")
    value = np.zeros(1, np.float32) if given is None else tensor_array(given)
    shape = relax.ShapeExpr(_wanted_sizes(inputs[0], "shape"))
    return ops.full(shape, relax.const(value.reshape(-1)[0], str(value.dtype)), str(value.dtype))


def _range(context: NodeContext, inputs: list[Any]) -> Any:
    known = [sizes_of(value) for value in inputs]
    if any(value is None for value in known):
        return None
    [start], [end], [step] = [value or [0] for value in known]
    if not isinstance(step, int) or step == 0:
        raise RejectedOpError(f"its step {context.symbols.text(step)} must be a whole number other than 0")
    return ops.arange(start, end, step, str(inputs[0].ty.dtype))


def _pad(context: NodeContext, inputs: list[Any]) -> Any:
    """Put what is added before and behind: Relax's op takes constant widths only."""
    pads = sizes_of(inputs[1]) if len(inputs) > 1 else None
    if pads is None or is_static(pads):
        return None
    if context.text("mode", "constant") != "constant":
        raise RejectedOpError(f"mode {context.text('mode', '')!r} with widths that depend on sizes is not supported")
    data, fill = inputs[0], input_at(inputs, 2)
    rank = len(shape_of(data))
    axes = list(range(rank)) if input_at(inputs, 3) is None else [axis % rank for axis in _wanted_sizes(inputs[3], "axes")]
    for place, axis in enumerate(axes):
        widths = pads[place], pads[place + len(axes)]
        data = padded(context.builder.emit, data, axis, widths, 0 if fill is None else _scalar(fill))
    return data


def _resize(context: NodeContext, inputs: list[Any]) -> Any:
    """Resize to sizes, or by scales with which no remainder is left: ONNX samples by these, Relax's op by the ratio of sizes."""
    data, symbols, shape = inputs[0], context.symbols, shape_of(inputs[0])
    is_legacy = context.op == "Upsample" or context.opset < 11
    scales, sizes = input_at(inputs, 1 if is_legacy else 2), input_at(inputs, 3)
    target = [] if sizes is None else _wanted_sizes(sizes, "sizes")
    if is_static(shape) and is_static(target) and not isinstance(scales, SizeTensor):
        return None
    if not target:
        scale_attr = context.attrs.get("scales")
        factors = [Ratio.of(each) for each in scale_attr] if scale_attr else _wanted_sizes(scales, "scales")
        products = [symbols.simplify(size * factor.top) for size, factor in zip(shape, factors, strict=True)]
        target = [symbols.quotient(product, factor.bottom) for product, factor in zip(products, factors, strict=True)]
        is_exact = all(symbols.is_multiple(product, factor.bottom) for product, factor in zip(products, factors, strict=True))
        if not is_exact and context.text("coordinate_transformation_mode", "half_pixel") != "align_corners":
            raise RejectedOpError(f"its scales make no whole numbers of some sizes; {symbols.advice()}")
    if len(target) != 4 or not all(symbols.is_equal(*pair) for pair in zip(target[:2], shape, strict=False)):
        raise RejectedOpError("only the two spatial axes can be resized")
    return resized(context, data, target[2:], is_legacy=is_legacy)


def _scalar(value: Any) -> Any:
    if not isinstance(value, Constant):
        raise RejectedOpError("its constant value must be constant")
    return value.value.numpy().reshape(-1)[0].item()


def _split(context: NodeContext, inputs: list[Any]) -> Any:
    """Cut an axis of open size into parts of given sizes, or into equal ones of which the last may be smaller."""
    data, symbols = inputs[0], context.symbols
    shape, count = shape_of(data), len(context.node.output)
    axis = int(context.attrs.get("axis", 0)) % len(shape)
    given = _wanted_sizes(inputs[1], "sizes") if input_at(inputs, 1) is not None else context.ints("split", [])
    if isinstance(shape[axis], int) and is_static(given):
        return None
    if given:
        ends = [symbols.simplify(sum(given[: place + 1])) for place in range(count)]
        symbols.meet(ends[-1], shape[axis])
    else:
        part = symbols.quotient(symbols.simplify(shape[axis] + count - 1), count)
        ends = [*(symbols.simplify(part * (place + 1)) for place in range(count - 1)), shape[axis]]
    starts = [0, *ends[:-1]]
    parts = [ops.strided_slice(data, [axis], [a], [b], assume_inbound=True) for a, b in zip(starts, ends, strict=True)]
    return relax.Tuple([context.builder.emit(part) for part in parts])


def _trilu(context: NodeContext, inputs: list[Any]) -> Any:
    diagonal: Any = 0
    if input_at(inputs, 1) is not None:
        [diagonal] = _wanted_sizes(inputs[1], "diagonal")
    return (ops.triu if context.attrs.get("upper", 1) else ops.tril)(inputs[0], diagonal)


def _cumsum(context: NodeContext, inputs: list[Any]) -> Any:
    """Sum along an axis of open size."""
    data, shape = inputs[0], shape_of(inputs[0])
    [axis] = _wanted_sizes(inputs[1], "axis")
    if isinstance(shape[axis], int):
        return None
    reverse, exclusive = (bool(context.attrs.get(name, 0)) for name in ("reverse", "exclusive"))
    return open_running_sum(context.builder.emit, data, axis % len(shape), reverse=reverse, exclusive=exclusive)


CONVERTERS: dict[str, Converter] = {
    "ConstantOfShape": _constant_of_shape,
    "CumSum": _cumsum,
    "Expand": _expand,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Trilu": _trilu,
    "Upsample": _resize,
}
"""Our converters by ONNX op."""

SIZE_INPUTS = {
    **dict.fromkeys(("Reshape", "Expand", "Tile", "CumSum", "Trilu", "Split"), (1,)),
    "ConstantOfShape": (0,),
    "Gather": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Slice": (1, 2, 3, 4),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
}
"""Op -> which of its inputs are sizes; others are tensors."""


def _broadcast(context: NodeContext, inputs: list[Any]) -> None:
    context.symbols.broadcast(*map(shape_of, inputs))


def _product(context: NodeContext, inputs: list[Any]) -> None:
    """Rows of the one are as long as columns of the other, and stacks of them broadcast."""
    a, b = shape_of(inputs[0]), shape_of(inputs[1])
    context.symbols.meet(a[-1], b[-2] if len(b) > 1 else b[0])
    context.symbols.broadcast(a[:-2], b[:-2])


def _joined(context: NodeContext, inputs: list[Any]) -> None:
    """Sizes along all other axes are equal."""
    first, *others = map(shape_of, inputs)
    axis = int(context.attrs["axis"]) % len(first)
    for other in others:
        for place, pair in enumerate(zip(first, other, strict=True)):
            if place != axis:
                context.symbols.meet(*pair)


_BROADCASTING = (
    *("Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
    *("Where", "Min", "Max", "Sum", "Mean", "PRelu", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
_MEETINGS = {
    **dict.fromkeys(_BROADCASTING, _broadcast),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _product),
    "Concat": _joined,
}


def learn_sizes(context: NodeContext, inputs: Sequence[Any]) -> None:
    """Take in what a node implies for the symbols: which sizes must be equal."""
    meeting = _MEETINGS.get(context.op)
    if meeting is not None:
        meeting(context, list(inputs))


def check_known(symbols: Symbols, result: Any) -> None:
    """Raise RejectedOpError for a result whose shape is known at run time only; of others, sizes are not negative."""
    for value in result.fields if isinstance(result, relax.Tuple) else [result]:
        ty = value.ty
        for each in ty.fields if isinstance(ty, tvm.ir.TupleType) else [ty]:
            if not isinstance(each, relax.TensorType):
                continue
            if not isinstance(each.shape, relax.ShapeExpr):
                raise RejectedOpError("the shape of its result depends on values, which must be known before the run")
            for size in each.shape.values:
                if symbols.be_size(symbols.simplify(size)):
                    raise NewlyKnownError


_WINDOWS = ("Conv", "ConvInteger", "ConvTranspose", "MaxPool", "AveragePool", "LpPool")
_GLOBAL_POOLS = ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")


def check_pixels(context: NodeContext, inputs: Sequence[Any], result: Any) -> None:
    """Raise RejectedOpError where an image is too small for windows; images of open sizes are as large as they must be."""
    if context.op not in _WINDOWS + _GLOBAL_POOLS or not isinstance(getattr(result, "ty", None), relax.TensorType):
        return
    given = shape_of(inputs[0])[2:]
    if context.symbols.be_pixels(given, shape_of(result)[2:] if context.op in _WINDOWS else given):
        raise NewlyKnownError
