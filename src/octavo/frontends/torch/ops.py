"""Our converters of PyTorch ops where TVM's misread a form. Imports no PyTorch.

A converter gets the arguments by the names of the op's schema, defaults filled in, tensors as Relax expressions, and returns a
Relax expression. Formulas are those of the op's documentation. Each comes before TVM's converter of the same op because TVM's

* batch_norm: takes the training flag as momentum and momentum as epsilon;
* clamp_max: ignores the bound; clamp, relu6, hardtanh: infinite bounds and ops of their own where a clip serves;
* add, sub: ignore alpha; elementwise ops and matmul of two constants fail; booleans compared with numbers do not build;
* pools: take an empty stride for a stride;
* squeeze: fails on dimensions that are not 1; std: divides by the count; pixel_shuffle and max along an axis: become ops that
  TVM cannot compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..frontend import RejectedOpError
from ..relax_ops import clamp, dtype_of, is_static, shape_of, sortable
from ..symbols import Size, Symbols
from ..volumes import Volumes, Windows
from .sizes import ProgramSizes, is_open_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Arguments:
    """The arguments of one node by name.

    `sizes` are the program's, `result` is what PyTorch says of the node's value: a fake tensor, or several.
    """

    builder: Any
    values: dict[str, Any]
    sizes: ProgramSizes
    result: Any
    steps: dict[str, Any] = field(default_factory=dict[str, Any])
    """What `step` named, by its suffix."""

    def __getitem__(self, name: str) -> Any:
        """Return an argument."""
        return self.values[name]

    @property
    def symbols(self) -> Symbols:
        """What is known of open sizes."""
        return self.sizes.symbols

    @property
    def shape(self) -> tuple[Size, ...]:
        """Shape of the node's value."""
        return self.sizes.shape(self.result)

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable."""
        return self.builder.emit(expr)

    def step(self, suffix: str, expr: Any) -> Any:
        """Bind a step towards the node's result and name it after the node, so that a profile holds its range.

        An integer op needs the ranges of all that it reads and writes.
        """
        self.steps[suffix] = result = self.builder.emit(expr)
        return result


Converter = Callable[[Arguments], Any]
"""Returns NotImplemented where TVM's converter of the op is right."""


def spread(value: int | Sequence[int], rank: int) -> list[int]:
    """Return one number for each of `rank` axes where PyTorch takes one for all."""
    values = [int(value)] if isinstance(value, int) else [int(item) for item in value]
    return values * rank if len(values) == 1 else values


# ---------------------------------------------------------------------------------------------------------------- clamps


def _clamped(x: Any, low: Any, high: Any) -> Any:
    """Write a clamp as the other frontends do: clip of two bounds, relu, maximum or minimum of one."""
    bounds: list[Any] = []
    for bound in (low, high):
        is_open = bound is None or (isinstance(bound, float) and math.isinf(bound))
        bounds.append(None if is_open else bound)
    low, high = bounds
    dtype = dtype_of(x)
    if any(bound is not None and not isinstance(bound, int | float) for bound in bounds):
        result = x if low is None else ops.maximum(x, _operand(low, dtype))
        return result if high is None else ops.minimum(result, _operand(high, dtype))
    return clamp(x, low, high)


def _operand(value: Any, dtype: str) -> Any:
    return value if isinstance(value, relax.Expr) else relax.const(value, dtype)


def _clamp(args: Arguments) -> Any:
    return _clamped(args["self"], args.values.get("min"), args.values.get("max"))


def _hardtanh(args: Arguments) -> Any:
    return _clamped(args["self"], float(args["min_val"]), float(args["max_val"]))


def _relu6(args: Arguments) -> Any:
    return _clamped(args["self"], 0.0, 6.0)


# ----------------------------------------------------------------------------------------------------------- elementwise

_INTEGER_WIDTH = ("bool", "uint8", "int8", "int16", "int32", "int64")
_FLOAT_WIDTH = ("float16", "bfloat16", "float32", "float64")


def common_dtype(sides: Sequence[Any]) -> str:
    """Return the dtype that both sides are brought to: a plain number only matters if it is of a wider kind than all tensors."""
    tensors = [dtype_of(side) for side in sides if isinstance(side, relax.Expr)]
    floats = [dtype for dtype in tensors if dtype in _FLOAT_WIDTH]
    if floats:
        return max(floats, key=_FLOAT_WIDTH.index)
    if any(isinstance(side, float) for side in sides):
        return "float32"
    if {"uint8", "int8"} <= set(tensors):
        return "int16"
    if set(tensors) == {"bool"} and any(type(side) is int for side in sides):
        return "int64"
    return max(tensors, key=_INTEGER_WIDTH.index)


_OF_BOOLEANS: dict[Any, Any] = {
    ops.add: ops.logical_or,
    ops.maximum: ops.logical_or,
    ops.minimum: ops.logical_and,
    ops.multiply: ops.logical_and,
}
"""What these are of booleans, for which TVM generates no arithmetic."""


def _elementwise(op: Any, *, reverse: bool = False) -> Converter:
    def convert(args: Arguments) -> Any:
        left, right = args["self"], args["other"]
        alpha = args.values.get("alpha", 1)
        dtype = common_dtype([left, right])
        if op is ops.divide and dtype not in _FLOAT_WIDTH:
            dtype = "float32"
        sides = [cast(side, dtype) for side in (left, right)]
        if dtype == "bool":
            return _OF_BOOLEANS[op](*sides)
        if alpha != 1:
            scaled = 0 if reverse else 1  # rsub: other - alpha * self
            sides[scaled] = args.emit(ops.multiply(sides[scaled], relax.const(alpha, dtype)))
        return op(*reversed(sides)) if reverse else op(*sides)

    return convert


def _compared(op: Any) -> Converter:
    """Return a converter of a comparison, whose sides get one dtype; booleans are compared as numbers."""

    def convert(args: Arguments) -> Any:
        sides = [args["self"], args["other"]]
        if any(is_open_size(side) for side in sides):
            return NotImplemented
        dtype = common_dtype(sides)
        return op(*(cast(side, "int32" if dtype == "bool" else dtype) for side in sides))

    return convert


def cast(side: Any, dtype: str) -> Any:
    """Return a tensor or a number as a tensor of a dtype."""
    if not isinstance(side, relax.Expr):
        return relax.const(side, dtype)
    return side if dtype_of(side) == dtype else ops.astype(side, dtype)


divide = _elementwise(ops.divide)
"""A true quotient: of integers it is a float."""


def _where(args: Arguments) -> Any:
    """Both sides get the dtype that PyTorch says: a tensor of one number may be of another."""
    dtype = str(args.result.dtype).removeprefix("torch.")
    return ops.where(args["condition"], *(cast(args[side], dtype) for side in ("self", "other")))


def _any(args: Arguments) -> Any:
    x = args["self"]
    if dtype_of(x) != "bool":
        x = args.emit(ops.not_equal(x, relax.const(0, dtype_of(x))))
    return ops.astype(args.emit(ops.max(args.emit(ops.astype(x, "int32")))), "bool")


def _hypotenuse(args: Arguments) -> Any:
    squares = [args.emit(ops.multiply(args[side], args[side])) for side in ("self", "other")]
    return ops.sqrt(args.emit(ops.add(*squares)))


def _power_of_two(args: Arguments) -> Any:
    x = args["self"]
    return ops.exp(args.emit(ops.multiply(x, relax.const(math.log(2), dtype_of(x)))))


def _rrelu(args: Arguments) -> Any:
    """Of inference: the slope is the mean of those that training draws."""
    if args["training"]:
        raise RejectedOpError("it is in training mode; call model.eval() before torch.export.export")
    return ops.nn.leakyrelu(args["self"], (float(args["lower"]) + float(args["upper"])) / 2)


# ------------------------------------------------------------------------------------------------- convolution and pools


def batch_norm(args: Arguments, x: Any) -> Any:
    """Write a normalization of `x`, whose axis 1 has the channels, by running statistics, or by its own where there are none."""
    channels, dtype = shape_of(x)[1], dtype_of(x)
    gamma = relax.const(np.ones(channels), dtype) if args["weight"] is None else args["weight"]
    beta = relax.const(np.zeros(channels), dtype) if args["bias"] is None else args["bias"]
    if args.values.get("running_mean") is None:
        return _norm_of_batch(args, x, gamma, beta)
    if args.values.get("training", False):
        raise RejectedOpError("it is in training mode; call model.eval() before torch.export.export")
    result = ops.nn.batch_norm(
        x, gamma, beta, args["running_mean"], args["running_var"], axis=1, epsilon=float(args["eps"]), training=False
    )
    return relax.TupleGetItem(args.emit(result), 0)


def _norm_of_batch(args: Arguments, x: Any, gamma: Any, beta: Any) -> Any:
    """Normalize each channel by all samples that there are: as a group of one sample, to which they are joined."""
    batch, channels, *image = shape_of(x)
    attributes: dict[str, Any] = {"num_groups": channels, "channel_axis": 1, "epsilon": float(args["eps"])}
    if batch == 1 and image:
        return ops.nn.group_norm(x, gamma, beta, axes=list(range(2, 2 + len(image))), **attributes)
    turn = [1, 0, *range(2, 2 + len(image))]
    turned = args.emit(ops.permute_dims(x, turn))
    joined = args.emit(ops.reshape(turned, [1, channels, batch, math.prod(image)]))
    normal = args.emit(ops.nn.group_norm(joined, gamma, beta, axes=[2, 3], **attributes))
    return ops.permute_dims(args.emit(ops.reshape(normal, [channels, batch, *image])), turn)


def batched(args: Arguments, x: Any, op: Callable[[Any], Any]) -> Any:
    """Apply an op on images to one without batch, too."""
    if len(shape_of(x)) == 4:
        return op(x)
    return ops.squeeze(args.emit(op(args.emit(ops.expand_dims(x, 0)))), [0])


def _pool(args: Arguments, op: Any, rank: int, **attributes: Any) -> Any:
    """Pool images (rank 2) or volumes (rank 3), with or without batch; the stride is the kernel's size where it is left out."""
    x, kernel = args["self"], spread(args["kernel_size"], rank)
    has_batch = len(shape_of(x)) == rank + 2
    data = x if has_batch else args.emit(ops.expand_dims(x, 0))
    windows = {"strides": spread(args["stride"], rank) if args["stride"] else kernel, "padding": spread(args["padding"], rank)}
    dilation = spread(attributes.pop("dilation", 1), rank)
    modes = {"ceil_mode": bool(args["ceil_mode"]), **attributes}
    if rank == 3:
        windows["padding"] *= 2
        result = Volumes(args.emit).pool(data, op, kernel, Windows(dilation=dilation, **windows), **modes)
    else:
        result = op(data, pool_size=kernel, dilation=dilation, **windows, **modes)
    return result if has_batch else ops.squeeze(args.emit(result), [0])


def _max_pool(args: Arguments, rank: int) -> Any:
    return _pool(args, ops.nn.max_pool2d, rank, dilation=args["dilation"])


def _avg_pool(args: Arguments, rank: int) -> Any:
    divisor, counts = args["divisor_override"], bool(args["count_include_pad"])
    if divisor is None:
        return _pool(args, ops.nn.avg_pool2d, rank, count_include_pad=counts)
    if args["ceil_mode"]:
        raise RejectedOpError("divisor_override beside ceil_mode is not supported")
    means = args.step("means", _pool(args, ops.nn.avg_pool2d, rank, count_include_pad=True))
    return ops.multiply(means, relax.const(math.prod(spread(args["kernel_size"], rank)) / divisor, dtype_of(means)))


def _max_pool2d_with_indices(args: Arguments) -> Any:
    """The indices are None: a node that reads them is rejected."""
    return (args.emit(_max_pool(args, 2)), None)


def _adaptive_max_pool(args: Arguments, rank: int) -> Any:
    """Pool images, rows (rank 1) or volumes (rank 3), to any sizes; the indices are None."""
    x, sizes = args["self"], spread(args["output_size"], rank)
    own, axes = shape_of(x)[-rank:], list(range(len(shape_of(x)) - rank, len(shape_of(x))))
    if all(size == 1 for size in sizes):
        return (args.emit(ops.max(x, axis=axes, keepdims=True)), None)
    if not is_static(own):
        raise RejectedOpError(f"of open sizes, to {sizes}: only to 1; {args.symbols.advice()}")
    if rank == 2 and not any(have % want for have, want in zip(own, sizes, strict=True)):
        kernel = [have // want for have, want in zip(own, sizes, strict=True)]
        return (args.emit(batched(args, x, lambda image: ops.nn.max_pool2d(image, kernel, kernel))), None)
    for axis, size in zip(axes, sizes, strict=True):
        x = _max_of_windows(args, x, axis, size)
    return (x, None)


def _max_of_windows(args: Arguments, x: Any, axis: int, size: int) -> Any:
    """Reduce an axis to `size` windows that cover it, which overlap where it is no multiple.

    Window i begins at floor(i * own / size) and ends before ceil((i + 1) * own / size), as PyTorch's adaptive pools have it. All
    get the width of the widest: a value that counts twice changes no maximum.
    """
    shape = shape_of(x)
    own = shape[axis]
    bounds = [(at * own // size, -(-(at + 1) * own // size)) for at in range(size)]
    width = max(end - start for start, end in bounds)
    places = [min(start + step, end - 1) for start, end in bounds for step in range(width)]
    taken = args.emit(ops.take(x, relax.const(np.array(places)), axis, mode="clip"))
    windows = args.emit(ops.reshape(taken, [*shape[:axis], size, width, *shape[axis + 1 :]]))
    return args.emit(ops.max(windows, axis=[axis + 1]))


def _adaptive_avg_pool2d(args: Arguments) -> Any:
    x = args["self"]
    sizes = [
        declared if size is None else int(size) for size, declared in zip(args["output_size"], shape_of(x)[-2:], strict=True)
    ]
    return batched(args, x, lambda image: ops.nn.adaptive_avg_pool2d(image, sizes))


# -------------------------------------------------------------------------------------------------------------- movement


def _squeeze(args: Arguments) -> Any:
    shape = shape_of(args["self"])
    declared = args.values.get("dim", list(range(len(shape))))
    axes = sorted({int(axis) % len(shape) for axis in ([declared] if isinstance(declared, int) else declared)}) if shape else []
    axes = [axis for axis in axes if shape[axis] == 1]
    return ops.squeeze(args["self"], axes) if axes else args["self"]


def _pixel_shuffle(args: Arguments) -> Any:
    *batch, channels, height, width = shape_of(args["self"])
    factor, rank = int(args["upscale_factor"]), len(batch)
    split = [*batch, channels // factor**2, factor, factor, height, width]
    order = [*range(rank), rank, rank + 3, rank + 1, rank + 4, rank + 2]
    moved = args.emit(ops.permute_dims(args.emit(ops.reshape(args["self"], split)), order))
    return ops.reshape(moved, [*batch, channels // factor**2, height * factor, width * factor])


def _extreme(op: Any, place: Any = None) -> Converter:
    """Return a converter of amax or amin, or, with `place`, of max or min along one axis and where it is."""

    def convert(args: Arguments) -> Any:
        axes, keeps, x = args["dim"], bool(args["keepdim"]), args["self"]
        is_bool = dtype_of(x) == "bool"
        x = args.emit(ops.astype(x, "uint8")) if is_bool else x
        result = op(x, axis=axes if isinstance(axes, int) else list(axes) or None, keepdims=keeps)
        result = ops.astype(args.emit(result), "bool") if is_bool else result
        return result if place is None else (args.emit(result), args.emit(place(x, axis=axes, keepdims=keeps)))

    return convert


def _greater(op: Any) -> Converter:
    """Return a converter of maximum or minimum of booleans; others TVM's takes."""
    convert = _elementwise(op)

    def of_booleans(args: Arguments) -> Any:
        return convert(args) if common_dtype([args["self"], args["other"]]) == "bool" else NotImplemented

    return of_booleans


def _sorted(args: Arguments) -> Any:
    """Sort an axis, and say where what it has was."""
    order = {"axis": int(args["dim"]), "descending": bool(args["descending"])}
    places = args.emit(ops.argsort(sortable(args.emit, args["self"]), dtype="int64", **order))
    return args.emit(ops.gather_elements(args["self"], places, order["axis"])), places


def _largest(args: Arguments) -> Any:
    """Of results that need no order PyTorch gives any, here the sorted one."""
    x, order = args["self"], {"k": args["k"], "axis": args["dim"], "largest": bool(args["largest"])}
    found = args.emit(ops.topk(sortable(args.emit, x), ret_type="both", dtype="int64", **order))
    values, places = (args.emit(relax.TupleGetItem(found, place)) for place in range(2))
    return cast(values, dtype_of(x)), places


def _deviation(args: Arguments, *, root: bool) -> Any:
    """Sum of squared deviations over the count less `correction` (PyTorch's default: 1)."""
    x, dim = args["self"], args["dim"]
    shape = shape_of(x)
    axes = [int(axis) % len(shape) for axis in ([dim] if isinstance(dim, int) else dim or range(len(shape)))]
    count = math.prod(shape[axis] for axis in axes) - (1 if args["correction"] is None else args["correction"])
    if count <= 0:
        raise RejectedOpError("fewer values than its correction: the result is undefined")
    centered = args.emit(ops.subtract(x, ops.mean(x, axes, keepdims=True)))
    total = ops.sum(ops.multiply(centered, centered), axes, keepdims=bool(args["keepdim"]))
    result = ops.divide(total, relax.const(count, dtype_of(x)))
    return ops.sqrt(args.emit(result)) if root else result


def _deviation_and_mean(args: Arguments) -> Any:
    axes, keeps = args["dim"], bool(args["keepdim"])
    return args.emit(_deviation(args, root=False)), args.emit(ops.mean(args["self"], axes, keepdims=keeps))


def _expand(args: Arguments) -> Any:
    """Nothing where the sizes are the tensor's own, repetition, which integer kernels know, of float32; others are TVM's."""
    x, size = args["self"], list(args["size"])
    own: list[Any] = [getattr(dim, "value", None) for dim in x.ty.shape]
    if None in own or not all(isinstance(dim, int) for dim in size) or dtype_of(x) != "float32":
        return NotImplemented
    wide = [1] * (len(size) - len(own)) + own
    repeats = [1 if want in (-1, have) else want for have, want in zip(wide, size, strict=True)]
    x = x if wide == own else args.emit(ops.reshape(x, wide))
    return x if set(repeats) <= {1} else ops.tile(x, repeats)


def _identity(args: Arguments) -> Any:
    return args["self"] if "self" in args.values else args["input"]


def _to_device(args: Arguments) -> Any:
    """To another device, which is all one here, and another dtype."""
    dtype = str(args["dtype"]).removeprefix("torch.")
    return args["self"] if dtype == dtype_of(args["self"]) else ops.astype(args["self"], dtype)


def _dropout(args: Arguments) -> Any:
    if args.values.get("train"):
        raise RejectedOpError("it is in training mode; call model.eval() before torch.export.export")
    return args["input"]


def nothing(_args: Arguments) -> Any:
    """Convert a check."""
    return None


_COMPARISONS: dict[str, Any] = {
    "eq": ops.equal,
    "ge": ops.greater_equal,
    "gt": ops.greater,
    "le": ops.less_equal,
    "lt": ops.less,
    "ne": ops.not_equal,
}

CONVERTERS: dict[str, Converter] = {
    **{f"aten.{name}.{kind}": _compared(op) for name, op in _COMPARISONS.items() for kind in ("Scalar", "Tensor")},
    "aten.where.self": _where,
    "aten.rrelu.default": _rrelu,
    "aten.hypot.default": _hypotenuse,
    "aten.exp2.default": _power_of_two,
    "aten.erfc.default": lambda args: ops.subtract(relax.const(1.0, dtype_of(args["self"])), args.emit(ops.erf(args["self"]))),
    "aten.any.default": _any,
    "aten._adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten._assert_scalar.default": nothing,
    "aten._assert_tensor_metadata.default": nothing,
    "aten.adaptive_avg_pool2d.default": _adaptive_avg_pool2d,
    "aten.add.Scalar": _elementwise(ops.add),
    "aten.add.Tensor": _elementwise(ops.add),
    "aten.adaptive_max_pool1d.default": lambda args: _adaptive_max_pool(args, 1),
    "aten.adaptive_max_pool2d.default": lambda args: _adaptive_max_pool(args, 2),
    "aten.adaptive_max_pool3d.default": lambda args: _adaptive_max_pool(args, 3),
    "aten.alias.default": _identity,
    "aten.amax.default": _extreme(ops.max),
    "aten.amin.default": _extreme(ops.min),
    "aten.avg_pool2d.default": lambda args: _avg_pool(args, 2),
    "aten.avg_pool3d.default": lambda args: _avg_pool(args, 3),
    "aten.clamp.Tensor": _clamp,
    "aten.clamp.default": _clamp,
    "aten.clamp_max.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clone.default": _identity,
    "aten.contiguous.default": _identity,
    "aten.detach.default": _identity,
    "aten.div.Scalar": divide,
    "aten.div.Tensor": divide,
    "aten.dropout.default": _dropout,
    "aten.expand.default": _expand,
    "aten.feature_dropout.default": _dropout,
    "aten.hardtanh.default": _hardtanh,
    "aten.lift_fresh_copy.default": _identity,
    "aten.max.dim": _extreme(ops.max, ops.argmax),
    "aten.matmul.default": lambda args: ops.matmul(args["self"], args["other"]),
    "aten.max_pool2d.default": lambda args: _max_pool(args, 2),
    "aten.max_pool2d_with_indices.default": _max_pool2d_with_indices,
    "aten.max_pool3d.default": lambda args: _max_pool(args, 3),
    "aten.min.dim": _extreme(ops.min, ops.argmin),
    "aten.maximum.default": _greater(ops.maximum),
    "aten.minimum.default": _greater(ops.minimum),
    "aten.sort.default": _sorted,
    "aten.sort.stable": _sorted,
    "aten.mul.Scalar": _elementwise(ops.multiply),
    "aten.mul.Tensor": _elementwise(ops.multiply),
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.relu6.default": _relu6,
    "aten.rsub.Scalar": _elementwise(ops.subtract, reverse=True),
    "aten.rsub.Tensor": _elementwise(ops.subtract, reverse=True),
    "aten.squeeze.default": _squeeze,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.std.correction": lambda args: _deviation(args, root=True),
    "aten.sub.Scalar": _elementwise(ops.subtract),
    "aten.sub.Tensor": _elementwise(ops.subtract),
    "aten.sym_constrain_range_for_size.default": nothing,
    "aten.to.device": _to_device,
    "aten.topk.default": _largest,
    "aten.var.correction": lambda args: _deviation(args, root=False),
    "aten.var_mean.correction": _deviation_and_mean,
}
"""Our converters by PyTorch op and overload, without those of the other modules of this folder."""
