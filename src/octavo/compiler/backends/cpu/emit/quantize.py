"""Kernel calls of composites: quantize and dequantize; and of inputs that are quantized at run time. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Expr, Var

from .....ir.composites.movement import DequantizeOp, QuantizeOp
from .....ir.composites.weighted import DynamicTensor
from .....ir.graph.dataflow import static_shape
from .....numerics.dynamic import TorchStyle, style_name
from .....runtime.size import is_open
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ColumnsSpec, DequantizeSpec, DynamicSpec, QuantizeSpec
from ..storage import SOURCE, TO_NHWC


@emits(QuantizeOp)
def emit_quantize(op: QuantizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    shape, rows, room = op.y.tensor.shape, 1, None
    with_room = context.storage.with_room(inputs[op.source])
    is_nhwc = with_room is None and context.storage.is_kept_nhwc(inputs[op.source])
    if is_nhwc:  # where another layout is read, bytes are quicker to permute than floats
        x: Expr = context.storage.get(inputs[op.source], is_nhwc=True)
        shape = shape_of(x)
    elif with_room is None:
        x = context.storage.source(inputs[op.source])
    else:  # a cache grows in place: its rows are read where they lie
        x, axis = with_room
        rows, room = math.prod(shape[:axis]), math.prod(shape_of(x)[axis:])
    spec = QuantizeSpec(
        size=math.prod(shape),
        rows=rows,
        room=room,
        scale=float(op.y.tensor.params.scale),
        zero_point=op.y.tensor.zero_point,
        dtype=op.y.tensor.kernel_dtype,
        ties=op.rounding,
        threads=context.threads,
    )
    kernel = kernels.quantize(spec, isa=context.isa)
    value = context.call(output.name, kernel, [x], shape, op.y.tensor.kernel_dtype)
    context.put(output, value, is_nhwc=is_nhwc)


@emits(DequantizeOp)
def emit_dequantize(op: DequantizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    # In the source's layout: bytes are quicker to permute than floats.
    x = context.storage.get(var, is_nhwc=False)
    spec = DequantizeSpec(
        size=math.prod(op.x.shape),
        scale=float(op.x.params.scale),
        zero_point=op.x.zero_point,
        dtype=op.x.kernel_dtype,
        threads=context.threads,
    )
    value = context.call(output.name, kernels.dequantize(spec, isa=context.isa), [x], shape_of(x), "float32")
    context.storage.put(output, SOURCE, value)


def read_dynamic(op: DynamicTensor, context: KernelContext, inputs: dict[str, Var], *, is_nhwc: bool) -> list[Expr]:
    """Write its quantization, once for all kernels that read it, and return integers and parameters."""
    var = inputs[op.name]
    key = (var, op.style, op.scales, is_nhwc, op.shape if op.by_column else ())
    if key not in context.quantized and op.by_column:
        context.quantized[key] = _columns(op, context, var)
    elif key not in context.quantized:
        x = _laid_out(op, context, var, is_nhwc=is_nhwc)
        size = math.prod(op.shape) // op.scales
        spec = DynamicSpec(rows=op.scales, size=size, style=op.style, threads=context.threads)
        suffix = f"{style_name(op.style)}{'rows' if is_open(op.scales) else op.scales}" + ("_nhwc" if is_nhwc else "")
        name = f"{var.name}_{suffix}"
        kernel = kernels.dynamic_parameters(spec, isa=context.isa)
        parameters = context.call(f"{name}_parameters", kernel, [x], (op.scales, 2), "float32")
        kernel = kernels.dynamic_quantize(spec, isa=context.isa)
        integers = context.call(f"{name}_u8", kernel, [x, parameters], shape_of(x))
        context.quantized[key] = [integers, parameters]
    return context.quantized[key]


def _columns(op: DynamicTensor, context: KernelContext, var: Var) -> list[Expr]:
    assert isinstance(op.style, TorchStyle), "the only one that columns have"
    x, (size, columns) = context.storage.get(var, is_nhwc=False), op.shape[-2:]
    spec = ColumnsSpec(batch=op.scales // columns, size=size, columns=columns, style=op.style, threads=context.threads)
    kernel = kernels.column_parameters(spec, isa=context.isa)
    parameters = context.call(f"{var.name}_columns_parameters", kernel, [x], (spec.batch, 2, columns), "float32")
    kernel = kernels.column_quantize(spec, isa=context.isa)
    return [context.call(f"{var.name}_columns_u8", kernel, [x, parameters], op.shape), parameters]


def _laid_out(op: DynamicTensor, context: KernelContext, var: Var, *, is_nhwc: bool) -> Expr:
    if static_shape(var) == op.shape:
        return context.storage.get(var, is_nhwc=is_nhwc)
    value = context.reshape(f"{var.name}_reshaped", context.storage.source(var), op.shape)
    return context.permute(f"{var.name}_nhwc", value, TO_NHWC) if is_nhwc else value
