"""Our converters of PyTorch ops for tensors with open sizes. Imports no PyTorch.

PyTorch says what shape each result has, so that none is worked out here. They come before all others where a size is open, and
leave to these what they return NotImplemented for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, is_static, open_running_sum, padded, shape_of, size_tensor
from ..symbols import Size, Symbols
from .ops import Arguments, Converter
from .resize import CUBIC
from .sizes import is_open_size

_NUMBERS = ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool")


def _dtype(args: Arguments) -> str:
    """Return the dtype of the node's value."""
    dtype = str(args.result.dtype).removeprefix("torch.")
    if dtype not in _NUMBERS:
        raise RejectedOpError(f"a result of {dtype} is not supported")
    return dtype


def _reshape(args: Arguments) -> Any:
    """Reshape to the numbers that a view states, as far as it does: PyTorch may write them as quotients of sizes."""
    given: Any = args.values.get("size", args.values.get("shape")) or [-1] * len(args.shape)
    shape: list[Any] = [
        each if isinstance(each, int) and each >= 0 else size for each, size in zip(given, args.shape, strict=True)
    ]
    return ops.reshape(args["self"], relax.ShapeExpr(shape))


def _expand(args: Arguments) -> Any:
    """Repeat along axes of size 1."""
    x, shape = args["self"], shape_of(args["self"])
    wide: Any = [1] * (len(args.shape) - len(shape)) + shape
    x = x if len(wide) == len(shape) else args.emit(ops.reshape(x, relax.ShapeExpr(wide)))
    repeats = [want if _is_one(have) else 1 for have, want in zip(wide, args.shape, strict=True)]
    if is_static(repeats):
        return x if set(repeats) <= {1} else ops.tile(x, repeats)
    return ops.broadcast_to(x, relax.ShapeExpr(args.shape))


def _is_one(size: Size) -> bool:
    return isinstance(size, int) and size == 1


def _repeat(args: Arguments) -> Any:
    """Repeat along new axes ahead of each, then join these with it: Relax's op takes constants only."""
    repeats, x = list(args["repeats"]), args["self"]
    shape = [1] * (len(repeats) - len(shape_of(x))) + shape_of(x)
    if is_static(repeats) and len(shape) == len(shape_of(x)):
        return ops.tile(x, repeats)
    with_ones: Any = [size for each in shape for size in (1, each)]
    wide: Any = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    x = args.emit(ops.broadcast_to(args.emit(ops.reshape(x, relax.ShapeExpr(with_ones))), relax.ShapeExpr(wide)))
    return ops.reshape(x, relax.ShapeExpr(args.shape))


def _slice(args: Arguments) -> Any:
    """As many as PyTorch says, from the start on."""
    x, shape, step = args["self"], shape_of(args["self"]), args["step"]
    axis = int(args["dim"]) % len(shape)
    size, taken = shape[axis], args.shape[axis]
    if not isinstance(step, int):
        raise RejectedOpError(f"its step {args.symbols.text(step)} must be known; {args.symbols.advice()}")
    if step == 1 and args.symbols.is_equal(size, taken):
        return x
    begin = _place(args, 0 if args["start"] is None else args["start"], size)
    end = args.symbols.simplify(begin + taken) if step == 1 else args.symbols.minimum(begin + taken * step, size)
    return ops.strided_slice(x, axes=[axis], begin=[begin], end=[end], strides=[step], assume_inbound=True)


def _place(args: Arguments, place: Size, size: Size) -> Size:
    """Return where a start lies: negative ones count from the end."""
    symbols = args.symbols
    if symbols.can_prove(place < 0):
        return symbols.maximum(symbols.simplify(size + place), 0)
    if not symbols.at_least(place, 0):
        raise RejectedOpError(f"whether {symbols.text(place)} counts from the end is open; {symbols.advice()}")
    return symbols.minimum(place, size) if isinstance(size, int) else symbols.simplify(place)


def _select(args: Arguments) -> Any:
    """One index of an axis, which goes."""
    x, shape = args["self"], shape_of(args["self"])
    axis, symbols = int(args["dim"]) % len(shape), args.symbols
    begin = _place(args, args["index"], shape[axis])
    end = symbols.simplify(begin + 1)
    part = args.step("slice", ops.strided_slice(x, axes=[axis], begin=[begin], end=[end], assume_inbound=True))
    return ops.squeeze(part, [axis])


def _parts(args: Arguments) -> Any:
    """Cut an axis into parts of the sizes that PyTorch says."""
    x, shape = args["self"], shape_of(args["self"])
    axis, parts, begin = int(args["dim"]) % len(shape), list[Any](), 0
    for value in args.result:
        end = args.symbols.simplify(begin + args.sizes.shape(value)[axis])
        parts.append(args.emit(ops.strided_slice(x, axes=[axis], begin=[begin], end=[end], assume_inbound=True)))
        begin = end
    return tuple(parts)


def _unbind(args: Arguments) -> Any:
    x, axis = args["self"], int(args["dim"]) % len(shape_of(args["self"]))
    parts = [
        args.emit(ops.strided_slice(x, axes=[axis], begin=[place], end=[place + 1], assume_inbound=True))
        for place in range(len(args.result))
    ]
    return tuple(args.emit(ops.squeeze(part, [axis])) for part in parts)


def _arange(args: Arguments) -> Any:
    dtype = _dtype(args)
    start, end, step = args.values.get("start", 0), args["end"], args.values.get("step", 1)
    if not isinstance(step, int) or not step:
        raise RejectedOpError("its step must be a whole number other than 0")
    places = args.emit(ops.arange(start, end, step, "int64"))
    return places if dtype == "int64" else ops.astype(places, dtype)


def _filled(args: Arguments, value: Any) -> Any:
    dtype = _dtype(args)
    if is_open_size(value):
        return ops.broadcast_to(_number(args, value, dtype), relax.ShapeExpr(args.shape))
    if not np.isfinite(value):  # TVM's full takes no infinity
        return ops.broadcast_to(relax.const(np.asarray(value, dtype)), relax.ShapeExpr(args.shape))
    return ops.full(relax.ShapeExpr(args.shape), relax.const(np.asarray(value, dtype)), dtype)


def _number(args: Arguments, size: Size, dtype: str) -> Any:
    """Return a size as a tensor without axes."""
    return args.emit(ops.reshape(args.emit(size_tensor(args.emit, size, dtype)), []))


def _elementwise(args: Arguments) -> Any:
    """A size beside a tensor is a tensor of the same kind; else this is as everywhere."""
    found = {name: value for name, value in args.values.items() if name in ("self", "other")}
    sizes = [name for name, value in found.items() if is_open_size(value)]
    tensors = [value for name, value in found.items() if name not in sizes and isinstance(value, relax.Expr)]
    for name in sizes if tensors else ():
        args.values[name] = _number(args, found[name], dtype_of(tensors[0]))
    return NotImplemented


def _cumsum(args: Arguments) -> Any:
    x, dtype = args["self"], _dtype(args)
    x = x if dtype_of(x) == dtype else args.emit(ops.astype(x, dtype))
    axis = int(args["dim"]) % len(shape_of(x))
    return NotImplemented if isinstance(shape_of(x)[axis], int) else open_running_sum(args.emit, x, axis)


def _upsampled(method: str, transform: str | None, rounding: str) -> Converter:
    """Resize to sizes, or by factors that are whole numbers: others sample by the factor, Relax's op by the ratio of sizes."""

    def convert(args: Arguments) -> Any:
        x, factors = args["input"], list(args.values.get("scale_factors") or ())
        if args["output_size"] is None and any(float(factor) != int(factor) for factor in factors):
            raise RejectedOpError(f"factors {factors} of open sizes must be whole numbers; {args.symbols.advice()}")
        corners = "align_corners" if args.values.get("align_corners") else "half_pixel"
        return ops.image.resize2d(
            x,
            size=tuple(args.shape[2:]),
            layout="NCHW",
            method=method,
            coordinate_transformation_mode=transform or corners,
            rounding_method=rounding,
            cubic_alpha=CUBIC,
        )

    return convert


def _variance(args: Arguments) -> Any:
    """Sum of squared deviations over the count less `correction` (PyTorch's default: 1)."""
    x, dim, shape = args["self"], args["dim"], shape_of(args["self"])
    axes = [int(axis) % len(shape) for axis in ([dim] if isinstance(dim, int) else dim or range(len(shape)))]
    count = args.symbols.simplify(math.prod(shape[axis] for axis in axes))
    correction = 1 if args["correction"] is None else args["correction"]
    if isinstance(count, int):
        return NotImplemented
    divisor = args.emit(ops.subtract(_number(args, count, dtype_of(x)), relax.const(correction, dtype_of(x))))
    centered = args.emit(ops.subtract(x, args.emit(ops.mean(x, axes, keepdims=True))))
    squares = args.emit(ops.multiply(centered, centered))
    return ops.divide(args.emit(ops.sum(squares, axes, keepdims=bool(args["keepdim"]))), divisor)


def _deviation(args: Arguments) -> Any:
    variance = _variance(args)
    return variance if variance is NotImplemented else ops.sqrt(args.emit(variance))


def _triangle(compare: Any) -> Converter:
    """Return a converter of triu (`greater_equal`) or tril (`less_equal`): the diagonal may be a size."""

    def convert(args: Arguments) -> Any:
        x, diagonal = args["self"], args["diagonal"]
        rows, columns = shape_of(x)[-2:]
        places = args.emit(ops.expand_dims(args.emit(ops.arange(0, columns, 1, "int64")), 0))
        ends = args.symbols.simplify(rows + diagonal)
        from_rows = args.emit(ops.expand_dims(args.emit(ops.arange(diagonal, ends, 1, "int64")), 1))
        return ops.where(args.emit(compare(places, from_rows)), x, relax.const(0, dtype_of(x)))

    return convert


def _pad(args: Arguments) -> Any:
    """Put one value around, as wide as sizes say; widths come from the last axis on."""
    x, widths, symbols = args["self"], list(args["pad"]), args.symbols
    if str(args.values.get("mode", "constant")) != "constant":
        return NotImplemented
    if is_static(widths):
        return NotImplemented
    fill, windows = args["value"] or 0, dict[int, tuple[Any, Any]]()
    for place in range(len(widths) // 2):
        pair, axis = (widths[2 * place], widths[2 * place + 1]), len(shape_of(x)) - 1 - place
        if all(isinstance(width, int) and width == 0 for width in pair):
            continue
        if all(_is_none_or_some(symbols, width) for width in pair):
            x = padded(args.emit, x, axis, pair, fill)
        else:
            windows[axis] = pair
    return _padded_then_cut(args, x, windows, float(fill)) if windows else x


def _is_none_or_some(symbols: Symbols, width: Size) -> bool:
    """Whether a width is 0, or never 0: a tensor of no width cannot be made."""
    return symbols.is_equal(width, 0) or symbols.at_least(width, 1)


def _padded_then_cut(args: Arguments, x: Any, windows: dict[int, tuple[Any, Any]], fill: float) -> Any:
    """Put as much around as any size takes, then cut what is too much."""
    shape, symbols = shape_of(x), args.symbols
    most, begins, ends = [0] * 2 * len(shape), list[Any](), list[Any]()
    for axis, pair in windows.items():
        found = [(width, width) if isinstance(width, int) else symbols.ends_of_repeats(width) for width in pair]
        for side, each in enumerate(found):
            if each is None or each[0] < 0 or each[1] is None:
                said = f"whether the width {symbols.text(pair[side])} is 0, or negative, is open"
                raise RejectedOpError(f"{said}; {symbols.advice(pair[side])}")
            most[2 * axis + side] = each[1]
        begins.append(symbols.simplify(most[2 * axis] - pair[0]))
        ends.append(symbols.simplify(begins[-1] + shape[axis] + pair[0] + pair[1]))
    around = args.emit(ops.nn.pad(x, most, pad_value=fill))
    return ops.strided_slice(around, list(windows), begins, ends, assume_inbound=True)


def _flip(args: Arguments) -> Any:
    x = args["self"]
    for axis in args["dims"]:
        x = args.emit(ops.flip(x, int(axis) % len(shape_of(x))))
    return x


ALIKE: dict[str, Converter] = {
    "aten.empty_like.default": lambda args: _filled(args, 0),
    "aten.full_like.default": lambda args: _filled(args, args["fill_value"]),
    "aten.ones_like.default": lambda args: _filled(args, 1),
    "aten.zeros_like.default": lambda args: _filled(args, 0),
}
"""Our converters for any shapes: TVM's don't look at the dtype that is asked for."""

OPEN_SHAPES: dict[str, Converter] = {
    **{
        f"aten.{name}": _reshape
        for name in (
            *("_reshape_alias.default", "_unsafe_view.default", "flatten.using_ints", "reshape.default", "unflatten.int"),
            *("view.default", "view_as.default", "reshape_as.default", "view_copy.default"),
        )
    },
    **dict.fromkeys(("aten.expand.default", "aten.expand_as.default", "aten.broadcast_to.default"), _expand),
    **dict.fromkeys(
        ("aten.chunk.default", "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default"),
        _parts,
    ),
    **dict.fromkeys(("aten.arange.default", "aten.arange.start", "aten.arange.start_step"), _arange),
    **{f"aten.{name}.default": lambda args: _filled(args, 0) for name in ("zeros", "new_zeros", "new_empty")},
    **{f"aten.{name}.default": lambda args: _filled(args, 1) for name in ("ones", "new_ones")},
    **{f"aten.{name}.default": lambda args: _filled(args, args["fill_value"]) for name in ("full", "new_full")},
    **{
        f"aten.{name}.{kind}": _elementwise
        for name in ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "le", "gt", "ge")
        for kind in ("Tensor", "Scalar")
    },
    "aten.cumsum.default": _cumsum,
    "aten.empty.memory_format": lambda args: _filled(args, 0),
    "aten.constant_pad_nd.default": _pad,
    "aten.flip.default": _flip,
    "aten.pad.default": _pad,
    "aten.repeat.default": _repeat,
    "aten.select.int": _select,
    "aten.std.correction": _deviation,
    "aten.tril.default": _triangle(ops.less_equal),
    "aten.triu.default": _triangle(ops.greater_equal),
    "aten.var.correction": _variance,
    "aten.slice.Tensor": _slice,
    "aten.unbind.int": _unbind,
    "aten.upsample_bicubic2d.vec": _upsampled("cubic", None, ""),
    "aten.upsample_bilinear2d.vec": _upsampled("linear", None, ""),
    "aten.upsample_nearest2d.vec": _upsampled("nearest_neighbor", "asymmetric", "floor"),
}
"""Our converters by op and overload."""
