"""Float ops between the kernels of an NCHW graph, written over the NHWC form in which those kernels keep their activations.

TVM compiles these ops; here they only change layout. What depends on the order of axes in another way is left alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.ir import Call
from tvm.relax import Expr, Var

from ....ir.graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, op_name, static_shape
from ....ir.qdq.batch_norm import line_of
from ....ir.qdq.values import constant_value
from ....ir.untyped import relax
from .storage import TO_NHWC, Storage, StorageLayout

_FLOATS = ("float32", "bfloat16", "float16")


_ELEMENTWISE = (
    *("nn.relu", "clip", "sigmoid", "tanh", "exp", "negative", "abs", "sqrt", "erf", "nn.silu", "nn.gelu", "nn.leakyrelu"),
    *("add", "multiply", "subtract", "divide", "maximum", "minimum", "power"),
)


def emit_nhwc(storage: Storage, writer: BodyWriter, view: DataflowView, var: Var, value: Expr) -> bool:
    """Emit `var` in NHWC if its op allows it and all its activations are kept so; return whether it was emitted."""
    if _emit_norm(storage, writer, view, var, value) or _emit_volume(storage, writer, view, var, value):
        return True
    shape = static_shape(value)
    if not isinstance(value, Call) or dtype_of(value) not in _FLOATS or shape is None:
        return False
    new = _nhwc_call(storage, view, value, shape)
    if new is None:
        return False
    is_nhwc = len(shape) == 4
    result = writer.emit(var.name, new)
    if is_nhwc:
        storage.put(var, StorageLayout(is_nhwc=True), result)
    else:
        storage.put_source(var, result)
    return True


def _emit_norm(storage: Storage, writer: BodyWriter, view: DataflowView, var: Var, value: Expr) -> bool:
    """Emit the first result of a batch normalization as a product and a sum in NHWC, and nothing for the call itself."""
    is_item = isinstance(value, relax.TupleGetItem)
    norm_var = view.binding_of(value.tuple_value) if is_item else var
    norm: Any = None if norm_var is None else call_to(view.definition(norm_var), "nn.batch_norm")
    if norm is None or norm_var is None or not _is_kept(storage, norm.args[0]) or view.is_returned(norm_var):
        return False
    items = [view.definition(user) for user in view.users(norm_var)]
    line = line_of(view, norm)
    if line is None or int(norm.attrs.axis) != 1:
        return False
    if not all(isinstance(item, relax.TupleGetItem) and item.index == 0 for item in items):
        return False
    if is_item:
        factor, shift = (relax.const(np.ascontiguousarray(values.transpose(TO_NHWC))) for values in (line.factor, line.shift))
        product = writer.emit(f"{var.name}_product", relax.op.multiply(storage.get(norm.args[0], is_nhwc=True), factor))
        storage.put(var, StorageLayout(is_nhwc=True), writer.emit(var.name, relax.op.add(product, shift)))
    return True


def _emit_volume(storage: Storage, writer: BodyWriter, view: DataflowView, var: Var, value: Expr) -> bool:
    """Emit a volume [batch, channels, depth, height, width] of its slices, a batch of images, as one transposition."""
    call: Any = call_to(value, "permute_dims")
    volume: Any = None if call is None else call_to(view.definition(call.args[0]), "reshape")
    if call is None or volume is None or not _is_kept(storage, volume.args[0]) or dtype_of(value) != "float32":
        return False
    images, shape = static_shape(volume.args[0]), static_shape(volume)
    if images is None or shape is None or len(shape) != 5 or shape[2:] != images[1:]:
        return False
    if call.attrs.axes is None or [int(axis) for axis in call.attrs.axes] != [0, 2, 1, 3, 4]:
        return False
    batch, depth, channels, height, width = shape
    slices = relax.op.reshape(storage.get(volume.args[0], is_nhwc=True), (batch, depth, height, width, channels))
    made = storage.permuted(var.name, writer.emit(f"{var.name}_slices", slices), (0, 4, 1, 2, 3))
    storage.put_source(var, made)
    return True


def _nhwc_call(storage: Storage, view: DataflowView, call: Any, shape: tuple[int, ...]) -> Expr | None:
    name = op_name(call)
    if name in _ELEMENTWISE:
        if len(shape) != 4:
            return None
        args = [new for arg in call.args if (new := _operand(storage, view, arg)) is not None]
        if len(args) < len(call.args) or not any(_is_kept(storage, arg) for arg in call.args):
            return None
        return Call(call.op, args, call.attrs, call.ty_args)
    if name == "concat" and isinstance(call.args[0], relax.Tuple) and call.attrs.axis is not None:
        fields = list(call.args[0].fields)
        if len(shape) != 4 or not all(_is_kept(storage, field) for field in fields):
            return None
        axis = TO_NHWC.index(int(call.attrs.axis) % 4)
        return relax.op.concat([storage.get(field, is_nhwc=True) for field in fields], axis=axis)
    if not call.args or not _is_kept(storage, call.args[0]):
        return None
    return _nhwc_resize(storage, call) if name == "image.resize2d" else _nhwc_window(storage, call)


def _nhwc_resize(storage: Storage, call: Any) -> Expr | None:
    """Return a resized image: a pixel's neighbours are found once for all channels, which are as many at any size."""
    attrs = call.attrs
    if str(attrs.layout) != "NCHW":
        return None
    return relax.op.image.resize2d(
        storage.get(call.args[0], is_nhwc=True),
        call.args[1],
        roi=tuple(float(edge) for edge in attrs.roi),
        layout="NHWC",
        method=str(attrs.method),
        coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method=str(attrs.rounding_method),
        cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude),
        extrapolation_value=float(attrs.extrapolation_value),
        out_dtype=None if attrs.out_dtype is None else str(attrs.out_dtype),
    )


def _nhwc_window(storage: Storage, call: Any) -> Expr | None:
    """Return a pooling or a mean over height and width."""
    x, attrs = call.args[0], call.attrs
    pool = call_to(call, "nn.max_pool2d", "nn.avg_pool2d", "nn.adaptive_avg_pool2d")
    if pool is not None and (str(attrs.layout) != "NCHW" or str(attrs.out_layout) not in ("", "NCHW")):
        return None
    if call_to(call, "nn.max_pool2d", "nn.avg_pool2d") is not None:
        write = relax.op.nn.max_pool2d if op_name(call) == "nn.max_pool2d" else relax.op.nn.avg_pool2d
        return write(
            storage.get(x, is_nhwc=True),
            pool_size=list(attrs.pool_size),
            strides=list(attrs.strides),
            padding=list(attrs.padding),
            dilation=list(attrs.dilation),
            ceil_mode=bool(attrs.ceil_mode),
            count_include_pad=bool(attrs.count_include_pad),
            layout="NHWC",
            out_layout="NHWC",
        )
    if pool is not None:
        size = None if attrs.output_size is None else list(attrs.output_size)
        return relax.op.nn.adaptive_avg_pool2d(storage.get(x, is_nhwc=True), size, layout="NHWC", out_layout="NHWC")
    mean = call_to(call, "mean")
    if mean is not None and attrs.axis is not None and sorted(int(axis) % 4 for axis in attrs.axis) == [2, 3]:
        return relax.op.mean(storage.get(x, is_nhwc=True), axis=[1, 2], keepdims=bool(attrs.keepdims))
    return None


def _is_kept(storage: Storage, expr: Expr) -> bool:
    return isinstance(expr, Var) and dtype_of(expr) in _FLOATS and storage.is_kept_nhwc(expr)


def _operand(storage: Storage, view: DataflowView, arg: Expr) -> Expr | None:
    """Return an operand of an elementwise op in NHWC; None if it would have to be brought there."""
    if _is_kept(storage, arg):
        assert isinstance(arg, Var)
        return storage.get(arg, is_nhwc=True)
    if not isinstance(arg.ty, relax.TensorType):
        return arg  # a bound of clip
    constant = constant_value(view, arg)
    if constant is None or constant.scale is not None:
        return None
    values = constant.values
    if values.size > 1:
        values = np.ascontiguousarray(np.transpose(values.reshape((1,) * (4 - values.ndim) + values.shape), TO_NHWC))
    return relax.const(values)
