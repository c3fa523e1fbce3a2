"""Complex numbers of a PyTorch program as pairs of real tensors, and its Fourier transforms. Imports no PyTorch.

Relax has no complex dtype. What an op does to both parts alike (moves them, adds them up) the importer has its converter do to
each; the others are here. An operand may be real: its imaginary part is then None, which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ...ir.untyped import ops
from ..fourier import transformed
from ..frontend import RejectedOpError
from ..relax_ops import dtype_of, is_static, shape_of
from .ops import Arguments, Converter


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex tensor; `imag` is None where it is real."""

    real: Any
    imag: Any | None


PARTS = ("real", "imag")
BY_PARTS = frozenset(
    f"aten.{name}"
    for name in (
        *("_unsafe_view.default", "alias.default", "cat.default", "chunk.default", "clone.default", "constant_pad_nd.default"),
        *("contiguous.default", "copy.default", "detach.default", "expand.default", "flatten.using_ints", "flip.default"),
        *("index.Tensor", "index_select.default", "lift_fresh_copy.default", "mean.default", "mean.dim", "movedim.int"),
        *("narrow.default", "neg.default", "pad.default", "permute.default", "repeat.default", "reshape.default", "roll.default"),
        *("select.int", "select_scatter.default", "slice.Tensor", "slice_scatter.default", "split.Tensor", "sum.default"),
        *("split_with_sizes.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "stack.default", "sum.dim_IntList"),
        *("swapaxes.default", "t.default", "transpose.int", "unbind.int", "unflatten.int", "unsqueeze.default", "view.default"),
    )
)
"""Ops that do to each part what they do to a real tensor."""


def _pair(args: Arguments, value: Any, like: str) -> Complex:
    """Return a tensor, or a number beside tensors of the dtype `like`, with both parts."""
    if isinstance(value, Complex):
        return value
    if isinstance(value, complex):
        return Complex(relax.const(value.real, like), relax.const(value.imag, like))
    if not isinstance(value, relax.Expr):
        return Complex(relax.const(value, like), None)
    return Complex(value if dtype_of(value) == like else args.emit(ops.astype(value, like)), None)


def _sides(args: Arguments) -> tuple[Complex, Complex]:
    left, right = args["self"], args["other"] if "other" in args.values else args["mat2"]
    tensors = [side.real if isinstance(side, Complex) else side for side in (left, right)]
    like = dtype_of(next(side for side in tensors if isinstance(side, relax.Expr)))
    return _pair(args, left, like), _pair(args, right, like)


def _both(args: Arguments, op: Any, left: Any | None, right: Any | None) -> Any | None:
    """Apply an op to two parts; None where either is 0 and the op multiplies."""
    return None if left is None or right is None else args.emit(op(left, right))


def _sum(args: Arguments, left: Any | None, right: Any | None, *, sign: int = 1) -> Any | None:
    if right is None:
        return left
    if left is None:
        return right if sign > 0 else args.emit(ops.negative(right))
    return args.emit((ops.add if sign > 0 else ops.subtract)(left, right))


def _named(args: Arguments, real: Any, imag: Any | None) -> Complex:
    """Name the parts after the node, so that a profile holds their ranges."""
    args.steps["real"] = real
    if imag is not None:
        args.steps["imag"] = imag
    return Complex(real, imag)


def _product(op: Any) -> Converter:
    """(a + bi) (c + di) = (ac - bd) + (ad + bc) i, of any product."""

    def convert(args: Arguments) -> Complex:
        left, right = _sides(args)
        return _multiplied(args, op, left, right)

    return convert


def _multiplied(args: Arguments, op: Any, left: Complex, right: Complex) -> Complex:
    real = _sum(args, _both(args, op, left.real, right.real), _both(args, op, left.imag, right.imag), sign=-1)
    return _named(args, real, _sum(args, _both(args, op, left.real, right.imag), _both(args, op, left.imag, right.real)))


def _added(sign: int) -> Converter:
    def convert(args: Arguments) -> Complex:
        left, right = _sides(args)
        if args.values.get("alpha", 1) != 1:
            raise RejectedOpError("alpha beside complex numbers is not supported")
        shape = np.broadcast_shapes(*(tuple(shape_of(side.real)) for side in (left, right)))
        imag = _sum(args, left.imag, right.imag, sign=sign)
        if imag is not None and shape_of(imag) != list(shape):  # that of the one side which has an imaginary part
            imag = args.emit(ops.broadcast_to(imag, shape))
        return _named(args, _sum(args, left.real, right.real, sign=sign), imag)

    return convert


def _quotient(args: Arguments) -> Complex:
    """By a complex number: times its conjugate over its squared amount."""
    left, right = _sides(args)
    if right.imag is None:
        return _named(args, args.emit(ops.divide(left.real, right.real)), _both(args, ops.divide, left.imag, right.real))
    amount = _squared(args, right)
    product = _multiplied(args, ops.multiply, left, Complex(right.real, args.emit(ops.negative(right.imag))))
    return _named(args, args.emit(ops.divide(product.real, amount)), _both(args, ops.divide, product.imag, amount))


def _squared(args: Arguments, value: Complex) -> Any:
    parts = [args.emit(ops.multiply(part, part)) for part in (value.real, value.imag) if part is not None]
    return parts[0] if len(parts) == 1 else args.step("squared", ops.add(*parts))


def _amount(args: Arguments) -> Any:
    value = args["self"]
    return ops.abs(value.real) if value.imag is None else ops.sqrt(_squared(args, value))


def _angle(args: Arguments) -> Any:
    return ops.atan2(_imag(args), args["self"].real)


def _conjugate(args: Arguments) -> Complex:
    value = args["self"]
    return Complex(value.real, None if value.imag is None else args.step("imag", ops.negative(value.imag)))


def _exponential(args: Arguments) -> Complex:
    value = args["self"]
    return _turned(args, args.emit(ops.exp(value.real)), _imag(args))


def _turned(args: Arguments, amount: Any, angle: Any) -> Complex:
    parts = [args.emit(ops.multiply(amount, args.emit(wave(angle)))) for wave in (ops.cos, ops.sin)]
    return _named(args, *parts)


def _imag(args: Arguments) -> Any:
    value = args["self"]
    return args.emit(ops.zeros_like(value.real)) if value.imag is None else value.imag


def _from_last_axis(args: Arguments) -> Complex:
    """Pairs along the last axis become complex numbers."""
    x = args["self"]
    rank = len(shape_of(x))
    slices = [args.emit(ops.strided_slice(x, axes=[rank - 1], begin=[at], end=[at + 1])) for at in range(2)]
    return _named(args, *(args.emit(ops.squeeze(each, [rank - 1])) for each in slices))


def _to_last_axis(args: Arguments) -> Any:
    return ops.stack([args["self"].real, _imag(args)], axis=len(shape_of(args["self"].real)))


def _cast(args: Arguments) -> Any:
    """To a complex dtype both parts, to a real one the real part."""
    dtype, value = str(args["dtype"]).removeprefix("torch."), args["self"]
    value = value if isinstance(value, Complex) else Complex(value, None)
    part = {"complex64": "float32", "complex128": "float64", "None": dtype_of(value.real)}.get(dtype, dtype)
    parts = [
        each if each is None or dtype_of(each) == part else args.emit(ops.astype(each, part)) for each in (value.real, value.imag)
    ]
    return parts[0] if part == dtype else Complex(*parts)


# ------------------------------------------------------------------------------------------------------------- transforms


def _along(args: Arguments, parts: Sequence[Any], axis: int, function: Callable[..., Any]) -> Any:
    """Apply a function to rows along an axis."""
    rank = len(shape_of(parts[0]))
    if axis == rank - 1:
        return function(*parts)
    order = [*(each for each in range(rank) if each != axis), axis]
    moved = [None if part is None else args.emit(ops.permute_dims(part, order)) for part in parts]
    back = [order.index(each) for each in range(rank)]
    found = function(*moved)
    if not isinstance(found, tuple):
        return args.emit(ops.permute_dims(found, back))
    return tuple(args.emit(ops.permute_dims(each, back)) for each in found)


def _factor(args: Arguments, shape: Sequence[int]) -> float:
    """Return what the sums are multiplied by: 1, or 1 over the root of how many values there are, or over their number."""
    return float(math.prod(shape[axis] for axis in args["dim"])) ** -(0, 0.5, 1)[int(args["normalization"])]


def _checked_shape(args: Arguments, x: Any) -> tuple[list[int], list[int]]:
    """Return sizes and the axes of a transform."""
    shape = shape_of(x)
    if not is_static(shape):
        raise RejectedOpError(f"a transform of open sizes; {args.symbols.advice()}")
    return shape, [int(axis) % len(shape) for axis in args["dim"]]


def _transform(args: Arguments) -> Complex:
    """Along axes, each the full length; of real numbers half of the last one suffices."""
    x = args["self"]
    parts = (x.real, x.imag) if isinstance(x, Complex) else (x, None)
    shape, axes = _checked_shape(args, parts[0])
    inverse, factor = not args.values.get("forward", True), _factor(args, shape)
    for axis in reversed(axes):
        bins = shape[axis] // 2 + 1 if args.values.get("onesided", False) and axis == axes[-1] else shape[axis]

        def rows(real: Any, imag: Any | None, bins: int = bins, factor: float = factor) -> tuple[Any, Any]:
            return transformed(args.emit, real, imag, bins, inverse=inverse, factor=factor)

        parts, factor = _along(args, parts, axis, rows), 1.0
    return _named(args, *parts)


def _real_inverse(args: Arguments) -> Any:
    """Real numbers of half of their transform: all but the first row, and the last one of an even number, count twice."""
    x, points = args["self"], int(args["last_dim_size"])
    x = x if isinstance(x, Complex) else Complex(x, None)
    shape, axes = _checked_shape(args, x.real)
    factor = _factor(args, [points if axis == axes[-1] else size for axis, size in enumerate(shape)])
    parts: Any = (x.real, x.imag)

    def turned(real: Any, imag: Any | None) -> tuple[Any, Any]:
        return transformed(args.emit, real, imag, shape_of(real)[-1], inverse=True)

    for axis in axes[:-1]:
        parts = _along(args, parts, axis, turned)
    dtype, bins = dtype_of(x.real), points // 2 + 1
    counts = np.where((np.arange(bins) == 0) | (np.arange(bins) * 2 == points), 1, 2)[:, None] * factor
    turns = np.outer(np.arange(bins), np.arange(points)) % points * (2 * math.pi / points)

    def summed(real: Any, imag: Any | None) -> Any:
        cosines, sines = ((counts * each).astype(dtype) for each in (np.cos(turns), -np.sin(turns)))
        sums = [
            args.emit(ops.matmul(each, relax.const(wave))) for each, wave in ((real, cosines), (imag, sines)) if each is not None
        ]
        return sums[0] if len(sums) == 1 else args.emit(ops.add(*sums))

    if shape[axes[-1]] != bins:
        raise RejectedOpError(f"{shape[axes[-1]]} values of a transform that has {bins}; cut or pad them first")
    return _along(args, parts, axes[-1], summed)


COMPLEX: dict[str, Converter] = {
    "aten._conj.default": _conjugate,
    "aten._conj_physical.default": _conjugate,
    "aten._fft_c2c.default": _transform,
    "aten._fft_c2r.default": _real_inverse,
    "aten._to_copy.default": _cast,
    "aten.abs.default": _amount,
    "aten.add.Tensor": _added(1),
    "aten.angle.default": _angle,
    "aten.bmm.default": _product(ops.matmul),
    "aten.conj.default": _conjugate,
    "aten.conj_physical.default": _conjugate,
    "aten.div.Tensor": _quotient,
    "aten.exp.default": _exponential,
    "aten.imag.default": _imag,
    "aten.matmul.default": _product(ops.matmul),
    "aten.mm.default": _product(ops.matmul),
    "aten.mul.Tensor": _product(ops.multiply),
    "aten.real.default": lambda args: args["self"].real,
    "aten.resolve_conj.default": lambda args: args["self"],
    "aten.resolve_neg.default": lambda args: args["self"],
    "aten.sub.Tensor": _added(-1),
    "aten.to.dtype": _cast,
    "aten.view_as_real.default": _to_last_axis,
    "aten.zeros_like.default": lambda args: Complex(args.emit(ops.zeros_like(args["self"].real)), None),
}
"""Our converters by op and overload, of nodes that read or are given a complex number."""

MAKERS: dict[str, Converter] = {
    "aten._fft_r2c.default": _transform,
    "aten.complex.default": lambda args: Complex(args["real"], args["imag"]),
    "aten.polar.default": lambda args: _turned(args, args["abs"], args["angle"]),
    "aten.view_as_complex.default": _from_last_axis,
}
"""Our converters of ops that make complex numbers of real ones."""
