"""Our converters of ONNX's integer ops, and of QuantizeLinear and DequantizeLinear in all their forms.

ConvInteger and MatMulInteger are exact: int32 operands, int32 sums, also beyond what float32 counts. Parameters known at import
are written as constants in one way (`relax.quantize`, `relax.dequantize`), which is what integer kernels are recognised by;
parameters that arrive at run time are variables there, and blocked ones become plain ops. All shapes are static here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from tvm import relax
from tvm.ir import GenericConst as Constant

from ...ir.graph.dataflow import call_to
from ...ir.graph.nodes import constant
from ...ir.graph.sizes import sizes_in
from ...ir.qdq.blocks import write_blocks
from ...ir.qdq.dynamic import write_dynamic
from ...ir.qdq.rounding import source_op, with_rounding
from ...ir.qdq.runtime_inputs import write_rows
from ...ir.untyped import ops
from ...numerics import INTEGER_RANGE, PerBlock, QuantParams
from ...runtime.tensors import array_of
from ...target.vocabulary import HALF_EVEN
from ..frontend import RejectedOpError
from ..relax_ops import shape_of
from .conv import convolution
from .ops import Converter, NodeContext, input_at
from .roundings import assumed_rounding
from .row_products import QUANTIZED_BY


def _is_constant(expr: Any) -> bool:
    return expr is None or isinstance(expr, Constant)


def _affine(context: NodeContext, inputs: list[Any]) -> Any:
    """QuantizeLinear and DequantizeLinear.

    One value, in whatever shape, is a scalar (per-tensor); zero points are int32 in the shape of the scales; axes are positive.
    """
    data, scale, zero_point = inputs[0], inputs[1], input_at(inputs, 2)
    quantizes = context.op == "QuantizeLinear"
    dtype = _quantized_dtype(context, zero_point) if quantizes else str(data.ty.dtype)
    if dtype not in INTEGER_RANGE:
        raise RejectedOpError(f"element type {dtype} is none of {', '.join(INTEGER_RANGE)}")
    block = int(context.attrs.get("block_size", 0))
    if block:
        return _blocked(context, data, scale, zero_point, dtype, block)
    shape = shape_of(data)
    axis = int(context.attrs.get("axis", 1)) % len(shape) if len(shape) > 1 else 0
    if _is_constant(scale) and _is_constant(zero_point):
        scale, zero_point, axis = _constant_parameters(scale, zero_point, shape, axis)
    else:
        scale, zero_point = _run_time_parameters(context, scale, zero_point, shape, axis)
    if quantizes:
        is_qdq = context.node.op_type == "QuantizeLinear"
        assumed = assumed_rounding(source_op(data, context.definition), is_qdq=is_qdq)
        if is_qdq and _counts_beyond(context, data):
            assumed = HALF_EVEN
        rounding = context.roundings.get(context.node.output[0], assumed)
        return with_rounding(ops.quantize(data, scale, zero_point, axis=axis, out_dtype=dtype), rounding)
    return ops.dequantize(data, scale, zero_point, axis=axis, out_dtype=str(scale.ty.dtype))


def _counts_beyond(context: NodeContext, data: Any) -> bool:
    """Return whether an average counts padding in windows that reach beyond it: QLinearAveragePool counts what is there.

    Of open sizes it is whether they may.
    """
    call: Any = call_to(context.definition(data), "nn.avg_pool2d")
    if call is None or not (call.attrs.ceil_mode and call.attrs.count_include_pad):
        return False
    sizes, results = shape_of(call.args[0])[2:], shape_of(data)[2:]
    if not all(isinstance(size, int) for size in (*sizes, *results)):
        return True
    a = call.attrs
    before, after = a.padding[:2], a.padding[2:]
    return any(
        (int(o) - 1) * int(stride) + (int(k) - 1) * int(d) + 1 > int(low) + int(size) + int(high)
        for size, o, k, stride, d, low, high in zip(
            sizes, results, a.pool_size, a.strides, a.dilation, before, after, strict=True
        )
    )


def _quantized_dtype(context: NodeContext, zero_point: Any) -> str:
    declared = int(context.attrs.get("output_dtype", 0))
    default = str(onnx.helper.tensor_dtype_to_np_dtype(declared)) if declared else "uint8"
    return default if zero_point is None else str(zero_point.ty.dtype)


def _constant_parameters(scale_expr: Any, zero_point_expr: Any, shape: list[int], axis: int) -> tuple[Any, Any, int]:
    scale = array_of(scale_expr.value)
    zero_point = np.zeros(scale.shape, np.int32) if zero_point_expr is None else array_of(zero_point_expr.value).astype(np.int32)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise RejectedOpError("every scale must be finite and positive")
    if scale.size == 1 and zero_point.size == 1:
        scale, zero_point, axis = scale.reshape(()), zero_point.reshape(()), 0
    elif not shape or scale.shape != (shape[axis],) or zero_point.shape != scale.shape:
        raise RejectedOpError(f"scales {scale.shape} and zero points {zero_point.shape} do not fit axis {axis} of {shape}")
    return constant(scale), constant(zero_point), axis


def _run_time_parameters(context: NodeContext, scale: Any, zero_point: Any, shape: list[int], axis: int) -> tuple[Any, Any]:
    """Return scale and zero point (int32) as scalars or with one value for each index of the axis."""
    size = int(np.prod(shape_of(scale)))
    if size != 1 and (not shape or shape_of(scale) != [shape[axis]]):
        raise RejectedOpError(f"scales {tuple(shape_of(scale))} do not fit axis {axis} of {shape}")
    wanted = [] if size == 1 else [size]
    if zero_point is None:
        zero_point = relax.const(np.zeros(wanted, np.int32))
    elif int(np.prod(shape_of(zero_point))) != size:
        raise RejectedOpError(f"zero points {tuple(shape_of(zero_point))} do not fit scales {tuple(shape_of(scale))}")
    return _reshaped(context, scale, wanted), _reshaped(context, _as_int32(context, zero_point), wanted)


def _blocked(context: NodeContext, data: Any, scale: Any, zero_point: Any, dtype: str, block: int) -> Any:
    """One scale for each `block` values along an axis: y = (x - zero_point) * scale, or its inverse, in plain ops."""
    shape = shape_of(data)
    axis = int(context.attrs.get("axis", 1)) % max(len(shape), 1)
    blocks = [-(-dim // block) if at == axis else dim for at, dim in enumerate(shape)]
    for parameter in (scale, zero_point):
        if parameter is not None and shape_of(parameter) != blocks:
            raise RejectedOpError(
                f"parameters of shape {shape_of(parameter)} do not fit {shape} in blocks of {block} along axis {axis}"
            )

    if context.op == "DequantizeLinear" and shape[axis] % block == 0 and _is_constant(scale) and _is_constant(zero_point):
        return _dequantized_in_blocks(context, data, scale, zero_point, axis, block)

    def spread(value: Any) -> Any:
        if isinstance(value, Constant):
            repeated = np.repeat(value.value.numpy(), block, axis)
            return relax.const(np.ascontiguousarray(np.take(repeated, range(shape[axis]), axis)))
        repeated = context.builder.emit(ops.repeat(value, block, axis))
        if blocks[axis] * block == shape[axis]:
            return repeated
        return context.builder.emit(ops.strided_slice(repeated, [axis], [0], [shape[axis]]))

    emit = context.builder.emit
    scale_wide = spread(scale)
    real = str(scale_wide.ty.dtype)
    zero_wide = None if zero_point is None else emit(ops.astype(spread(zero_point), "int32"))
    if context.op == "QuantizeLinear":
        low, high = INTEGER_RANGE[dtype]
        value = emit(ops.round(emit(ops.divide(data, scale_wide))))
        if zero_wide is not None:
            value = emit(ops.add(value, emit(ops.astype(zero_wide, real))))
        return ops.astype(emit(ops.clip(value, low, high)), dtype)
    value = emit(ops.astype(data, "int32"))
    if zero_wide is not None:
        value = emit(ops.subtract(value, zero_wide))
    return ops.multiply(emit(ops.astype(value, real)), scale_wide)


def _dequantized_in_blocks(context: NodeContext, data: Any, scale_expr: Any, zero_point_expr: Any, axis: int, block: int) -> Any:
    """Dequantize whole blocks of constant parameters: each is a row of its own, with one scale, in between two moves."""
    scale = scale_expr.value.numpy()
    zero_point = np.zeros(scale.shape, np.int32) if zero_point_expr is None else zero_point_expr.value.numpy().astype(np.int32)
    if isinstance(data, Constant) and not (scale > 0).all() and np.isfinite(scale).all():
        values, scale, zero_point = _with_positive_scales(data.value.numpy(), scale, zero_point, axis, block)
        data = relax.const(values)
    try:
        params = QuantParams(dtype=str(data.ty.dtype), scale=scale, zero_point=zero_point, granularity=PerBlock(axis, block))
    except ValueError as error:
        raise RejectedOpError(str(error)) from error
    return write_blocks(data, params, context.builder.emit, str(scale.dtype))


def _with_positive_scales(
    values: npt.NDArray[Any], scale: npt.NDArray[Any], zero_point: npt.NDArray[Any], axis: int, block: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Turn blocks of negative scales round, which ONNX Runtime's symmetric quantizer writes; blocks of scale 0 are zeros."""
    wide, highest = values.astype(np.int32), max(int(values.max()), int(zero_point.max()))
    ends = -1 if values.dtype.kind == "i" else next(top for top in (3, 15, 255) if highest <= top)
    turns, drops = (np.repeat(each, block, axis) for each in (scale < 0, scale == 0))
    zero_point = np.where(scale < 0, ends - zero_point, zero_point).astype(np.int32)
    wide = np.where(drops, np.repeat(zero_point, block, axis), np.where(turns, ends - wide, wide))
    return wide.astype(values.dtype), np.where(scale == 0, np.ones_like(scale), np.abs(scale)), zero_point


def _reshaped(context: NodeContext, value: Any, shape: Sequence[int]) -> Any:
    if shape_of(value) == list(shape):
        return value
    if isinstance(value, Constant):
        return relax.const(value.value.numpy().reshape(shape))
    return context.builder.emit(ops.reshape(value, list(shape)))


def _as_int32(context: NodeContext, value: Any) -> Any:
    if str(value.ty.dtype) == "int32":
        return value
    if isinstance(value, Constant):
        return relax.const(value.value.numpy().astype(np.int32))
    return context.builder.emit(ops.astype(value, "int32"))


def _centered(context: NodeContext, value: Any, zero_point: Any, axis: int) -> Any:
    """Return int32 value - zero_point; several zero points run along `axis` (counted from the end)."""
    # The data keeps its variable, so that a constant keeps its identity.
    wide = context.builder.emit(ops.astype(value, "int32"))
    if zero_point is None or (isinstance(zero_point, Constant) and not zero_point.value.numpy().any()):
        return wide
    size = int(np.prod(shape_of(zero_point)))
    shape: list[int] = []
    if len(shape_of(zero_point)) > 1:
        shape = shape_of(zero_point)
    elif size != 1:
        if shape_of(value)[axis] != size:
            raise RejectedOpError(f"{size} zero points do not fit axis {axis} of {tuple(shape_of(value))}")
        shape = [size, *[1] * (-axis - 1)]
    return context.builder.emit(ops.subtract(wide, _reshaped(context, _as_int32(context, zero_point), shape)))


def _matmul_integer(context: NodeContext, inputs: list[Any]) -> Any:
    """int32 (A - a_zero_point) @ (B - b_zero_point); A has a zero point for each row at most, B for each column."""
    a = _centered(context, inputs[0], input_at(inputs, 2), -2 if len(shape_of(inputs[0])) > 1 else -1)
    b = _centered(context, inputs[1], input_at(inputs, 3), -1)
    return ops.matmul(a, b, out_dtype="int32")


def _conv_integer(context: NodeContext, inputs: list[Any]) -> Any:
    """int32 convolution of x - x_zero_point by w - w_zero_point: padding stands for x_zero_point."""
    x_zero_point, w_zero_point = input_at(inputs, 2), input_at(inputs, 3)
    if x_zero_point is not None and int(np.prod(shape_of(x_zero_point))) != 1:
        raise RejectedOpError("x_zero_point must be one value")

    def centered(x: Any, w: Any) -> tuple[Any, Any]:
        return _centered(context, x, x_zero_point, -1), _centered(context, w, w_zero_point, -len(shape_of(w)))

    return convolution(context, inputs[0], inputs[1], out_dtype="int32", operands=centered)


def _dynamic_quantize(context: NodeContext, inputs: list[Any]) -> Any:
    """uint8 with the range of the very input, 0 included; all zeros have scale 1, as ONNX Runtime does it."""
    value = write_dynamic(inputs[0], tuple(shape_of(inputs[0])), "onnx", context.builder.emit)
    return relax.Tuple([value.integers, value.scale, value.stored_zero_point])


def _rows(context: NodeContext, inputs: list[Any]) -> Any:
    """Quantize a value that is marked along its last axis, or the one before; None of one that is not."""
    axis = context.attrs.get(QUANTIZED_BY)
    if axis is None:
        return None
    with sizes_in(inputs[:1]):
        return write_rows(inputs[0], context.builder.emit, axis=int(axis) or None)


CONVERTERS: dict[str, Converter] = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _affine,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "Identity": _rows,
    "MatMulInteger": _matmul_integer,
    "QuantizeLinear": _affine,
}
"""Our converters of integer ops, by ONNX op."""
