"""How ops that stay float become loops where TVM's own way is slow: functions that it takes from the C library, value by value,
are written out as their definition in numerics has them, so that LLVM can vectorize them in whatever they are fused with. TVM's
transposed convolutions know neither dilation nor channels last; it finds pixels of resized images in 64 bits. The greatest
of numbers that may be infinite is sought from -inf on; that of a window, channel by channel in the innermost loop. A reshape says
that it is one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm import te as _te
from tvm import topi as _topi
from tvm.relax import Expr
from tvm.tirx import Cast, Div, FloatImm, IntImm, Max, Min

from ....ir.graph.dataflow import op_name
from ....ir.graph.kernel_attributes import VIEW_ATTR
from ....ir.qdq.matchers.elementwise.float_chain import POWERS, function_of, power_of
from ....ir.untyped import ops, s_tir
from .kernels import ElementExpressions

# TVM ships no types for its operators.
te: Any = _te


topi: Any = _topi


tirx: Any = tvm.tirx


def legalizations() -> dict[str, Callable[[relax.BlockBuilder, Any], Expr]]:
    """Return what LegalizeOps is to do differently, by op."""
    functions = {"relax.exp": "exp", "relax.sigmoid": "sigmoid", "relax.tanh": "tanh", "relax.erf": "erf"}
    chains = ("relax.nn.silu", "relax.nn.gelu", "relax.nn.gelu_tanh")
    return {
        **{op: _function(name) for op, name in functions.items()},
        **dict.fromkeys(chains, _chain),
        **dict.fromkeys(_EXTREMES, _from_infinity),
        **dict.fromkeys(("relax.full", "relax.full_like"), _full),
        "relax.reshape": _reshape,
        "relax.power": _power,
        "relax.nn.conv2d_transpose": _conv2d_transpose,
        "relax.image.resize2d": _resize2d,
        "relax.nn.max_pool2d": _max_pool2d,
    }


def _function(name: str) -> Callable[[relax.BlockBuilder, Any], Expr]:
    def legalized(builder: relax.BlockBuilder, call: Any) -> Expr:
        if str(call.args[0].ty.dtype) != "float32":
            return builder.call_te(_elementwise(getattr(tirx, name)), call.args[0], primfunc_name_hint=name)
        return builder.call_te(_elementwise(getattr(_MATH, name)), call.args[0], primfunc_name_hint=name)

    return legalized


def _reshape(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Let TVM write it, and say what it is: of sizes that are sums TVM sees quotients alone."""
    made: Any = call.op.get_attr("FLegalize")(builder, call)
    builder.update_func(made.args[0], builder.get()[made.args[0]].with_attr(VIEW_ATTR, True))
    return made


def _chain(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Write out an op that is a chain of others; what is not float32 is computed in it."""
    name = op_name(call)
    dtype, function = str(call.args[0].ty.dtype), function_of(name)

    def computed(value: Any) -> Any:
        wide = value if dtype == "float32" else value.astype("float32")
        result = _MATH.apply(function, [wide])
        return result if dtype == "float32" else result.astype(dtype)

    return builder.call_te(_elementwise(computed), call.args[0], primfunc_name_hint=name.removeprefix("nn."))


def _power(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Write a power of float32 by a literal that products and square roots make without a function."""
    x, exponent = call.args
    literal = exponent.value.numpy() if isinstance(exponent, tvm.ir.GenericConst) else None
    is_one = literal is not None and literal.size == 1 and literal.ndim <= len(x.ty.shape.values)
    if literal is not None and is_one and str(x.ty.dtype) == "float32" and float(literal.reshape(())) in POWERS:
        value = float(literal.reshape(()))
        power = _elementwise(lambda element: power_of(element, value, multiply=operator.mul, sqrt=tirx.sqrt))
        return builder.call_te(power, x, primfunc_name_hint={2.0: "square", 3.0: "cube"}.get(value, "power"))
    return builder.call_te(topi.power, x, exponent, primfunc_name_hint="power")


_EXTREMES = ("relax.max", "relax.min", "relax.argmax", "relax.argmin", "relax.nn.max_pool1d", "relax.nn.max_pool3d")
"""Ops that look for a greatest or least value."""


def _from_infinity(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Let TVM write it, and begin at infinity, at the place behind all: TVM's finite number hides -inf, its place -1 is none."""
    made: Any = call.op.get_attr("FLegalize")(builder, call)
    function: Any = builder.get()[made.args[0]]
    starts = [(FloatImm, _as_infinity)] + [(IntImm, _as_last_place)] * call.op.name.startswith("relax.arg")
    builder.update_func(made.args[0], function.with_body(tvm_ffi.structural_map(function.body, starts)))
    return made


_POOLED, _VECTOR = 64, 8
"""Of so many channels a pooling takes as many at once as divide its own; where those are fewer than a vector, it takes all."""


def _max_pool2d(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Look for the greatest value of a large window in its columns, then in those of its rows: k + k steps, not k * k."""
    attrs = call.attrs
    (height, width), (down, right), (top, left, bottom, after) = attrs.pool_size, attrs.strides, attrs.padding
    if height * width <= 2 * (height * right + width):
        return _greatest(builder, call)
    rows = _window(call.args[0], attrs, (height, 1), (down, 1), (top, 0, bottom, 0), (attrs.dilation[0], 1))
    found = builder.emit(_greatest(builder, builder.normalize(rows)))
    columns = _window(found, attrs, (1, width), (1, right), (0, left, 0, after), (1, attrs.dilation[1]))
    return _greatest(builder, builder.normalize(columns))


def _window(x: Expr, attrs: Any, *sizes: Sequence[Any]) -> Any:
    """Return a pooling like one with these attributes, of another window: its size, strides, padding and dilation."""
    size, strides, padding, dilation = ([int(each) for each in some] for some in sizes)
    layout = str(attrs.layout), str(attrs.out_layout)
    return ops.nn.max_pool2d(x, size, strides, padding, dilation, bool(attrs.ceil_mode), False, *layout)


def _greatest(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Let TVM write a pooling; of channels last, each tap is compared for some channels at once, which stay in registers.

    TVM has the taps inside: then LLVM has vectors where it knows that no tap lies in the padding, which it does of known sizes.
    """
    made: Any = _from_infinity(builder, call)
    if str(call.attrs.layout) != "NHWC":
        return made
    schedule = s_tir.Schedule(tvm.IRModule({"main": builder.get()[made.args[0]]}))
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    for padded in blocks[:-1]:
        schedule.compute_inline(padded)
    *_, channels, row, column = schedule.get_loops(blocks[-1])
    lanes = math.gcd(int(call.ty.shape.values[3]), _POOLED)
    if lanes >= _VECTOR:
        outer, channels = schedule.split(channels, [None, lanes])
        schedule.reorder(outer, row, column, channels)
        schedule.vectorize(channels)
    else:
        schedule.reorder(row, column, channels)
    schedule.decompose_reduction(blocks[-1], row)
    builder.update_func(made.args[0], schedule.mod["main"])
    return made


def _full(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Fill with infinity or NaN, which TVM takes for text; leave other values to it."""
    dtype, shape, fill = str(call.ty.dtype), list(call.ty.shape.values), call.args[1]
    value = fill.value.numpy().reshape(-1) if isinstance(fill, tvm.ir.GenericConst) else np.zeros(1)
    if value.size != 1 or np.isfinite(value[0]) or dtype not in ("float32", "float64"):
        return call.op.get_attr("FLegalize")(builder, call)

    def filled(sizes: Any) -> Any:
        return te.compute(list(sizes), lambda *_: FloatImm(dtype, float(value[0])), name="full")

    return builder.call_te(filled, shape, primfunc_name_hint="full")


def _as_infinity(node: Any) -> Any:
    dtype = str(node.ty.dtype)
    is_last = dtype in ("float16", "float32", "float64") and abs(float(node.value)) == float(np.finfo(dtype).max)
    return FloatImm(dtype, float("inf") if node.value > 0 else float("-inf")) if is_last else node


def _as_last_place(node: Any) -> Any:
    dtype = str(node.ty.dtype)
    return IntImm(dtype, np.iinfo(dtype).max) if int(node) == -1 and dtype in ("int32", "int64") else node


def _conv2d_transpose(builder: relax.BlockBuilder, call: Any) -> Expr:
    attrs = call.attrs
    layout, kernel_layout = str(attrs.data_layout), str(attrs.kernel_layout)
    top, left, bottom, right = (int(width) for width in attrs.padding)
    # What no tap reaches, behind the last row and column, is 0.
    behind = [int(extra) - width for extra, width in zip(attrs.output_padding, (bottom, right), strict=True)]
    padding = (top, left, max(-behind[0], 0), max(-behind[1], 0))

    def convolve(x: Any, w: Any) -> Any:
        x = topi.transpose(x, [layout.index(axis) for axis in "NCHW"])
        w = topi.transpose(w, [kernel_layout.index(axis) for axis in "IOHW"])
        w = topi.nn.dilate(w, [1, 1, *(int(distance) for distance in attrs.dilation)])
        strides = tuple(int(stride) for stride in attrs.strides)
        y = topi.nn.group_conv2d_transpose_nchw(x, w, strides, padding, str(call.ty.dtype), (0, 0), int(attrs.groups))
        y = topi.nn.pad(y, [0, 0, 0, 0], [0, 0, *(max(width, 0) for width in behind)])
        return topi.transpose(y, ["NCHW".index(axis) for axis in layout])

    return builder.call_te(convolve, *call.args, primfunc_name_hint="conv2d_transpose")


def _resize2d(builder: relax.BlockBuilder, call: Any) -> Expr:
    """Let TVM write it, and find pixels in 32 bits: twice as many in a vector, where sizes are open and each is looked up.

    Aligned corners of one row or column are the first pixels; TVM divides by their distance, which is 0.
    """
    is_aligned = str(call.attrs.coordinate_transformation_mode) == "align_corners"
    wanted = list(call.args[1].values)
    sizes: list[Any] = [2 if is_aligned and isinstance(size, IntImm) and int(size) == 1 else size for size in wanted]
    args: list[Any] = [call.args[0], relax.ShapeExpr(sizes)]
    wide = builder.normalize(relax.Call(call.op, args, call.attrs))
    made: Any = tvm.ir.Op.get("relax.image.resize2d").get_attr("FLegalize")(builder, wide)
    function: Any = builder.get()[made.args[0]]
    narrow = [(Cast, _narrow_cast), (Min, _narrow_bound), (Max, _narrow_bound)] + [(Div, _by_one_or_more)] * is_aligned
    builder.update_func(made.args[0], function.with_body(tvm_ffi.structural_map(function.body, narrow)))
    if sizes == wanted:
        return made
    ends = list(call.ty.shape.values)

    def first(x: Any) -> Any:
        return te.compute(ends, lambda *index: x(*index), name="first_pixels")

    return builder.call_te(first, builder.emit(made), primfunc_name_hint="first_pixels")


def _by_one_or_more(node: Any) -> Any:
    """Divide a distance of corners by that of the result's, which may be 0 where its size is open."""
    return node if str(node.ty.dtype) != "float32" else type(node)(node.a, tirx.max(node.b, tirx.const(1, "float32")))


def _narrow_cast(node: Any) -> Any:
    """Convert between a float and an index of 64 bits by way of 32.

    Rounded down, which changes no whole number: of a bare product with a place TVM's analyzer asks for a bound, in integers, and
    fails. LLVM leaves the rounding out.
    """
    kinds = str(node.ty.dtype), str(node.value.ty.dtype)
    if "int64" not in kinds or not any(kind.startswith("float") for kind in kinds):
        return node
    narrow = node.value.astype("int32").astype(kinds[0])
    return narrow if kinds[0] == "int64" else tirx.floor(narrow)


def _narrow_bound(node: Any) -> Any:
    """Bound an index as what it was computed in."""
    narrow, bound = node.a, node.b
    if not isinstance(narrow, Cast) or str(node.ty.dtype) != "int64" or str(narrow.value.ty.dtype) != "int32":
        return node
    return type(node)(narrow.value, bound.astype("int32")).astype("int64")


_MATH = ElementExpressions(1)


def _elementwise(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: te.compute(x.shape, lambda *index: function(x(*index)), name="compute")
