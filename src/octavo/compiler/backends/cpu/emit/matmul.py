"""Kernel calls of composites: products of two activations, and by weights in blocks. Reads no QDQ graph."""

from __future__ import annotations

import math
from dataclasses import replace

from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.blocks import BlockMatmulOp, FloatTensor
from .....ir.composites.float_ops import FloatBatchMatmulOp
from .....ir.composites.matrix_view import MatrixView
from .....ir.composites.outputs import output_spec
from .....ir.composites.weighted import BatchMatmulOp, DynamicTensor, MatmulOperand, RowBatchMatmulOp
from .....numerics.quantized.block_matmul import ACTIVATION_DIGITS
from .....numerics.rounding.fixed_point import FixedPointMultiplier
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import BatchMatmulSpec, BlockMatmulSpec, BlockRowsSpec, FloatBatchMatmulSpec
from .conv2d import scaled_sums
from .quantize import read_dynamic


@emits(BatchMatmulOp)
def emit_batch_matmul(op: BatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    a, b, y, multiplier = op.a.tensor, op.b.tensor, op.y, op.multiplier
    is_plain = op.narrow is None and not isinstance(multiplier, FixedPointMultiplier)
    leaves_sums = not is_plain and y.kernel_dtype == "uint8"
    takes_views = kernels.takes_views(a.shape[-1], dtype=a.kernel_dtype, isa=context.isa)
    output_of = kernels.SumOutput() if leaves_sums else output_spec(y)
    assert not isinstance(output_of, kernels.FunctionOutput), "functions follow weights"
    sides = [read_operand(context, inputs, operand, takes_views=takes_views) for operand in (op.a, op.b)]
    spec = BatchMatmulSpec(
        a=sides[0][1],
        b=sides[1][1],
        y=MatrixView.plain(y.shape),
        a_zero_point=a.zero_point,
        b_zero_point=b.zero_point,
        multiplier=1.0 if leaves_sums else multiplier if isinstance(multiplier, FixedPointMultiplier) else float(multiplier),
        output=output_of,
        dtype=a.kernel_dtype,
        narrow=None if leaves_sums else op.narrow,
        threads=context.threads,
    )
    kernel = kernels.batch_matmul(spec, isa=context.isa)
    values = [value for value, _ in sides]
    if leaves_sums:
        result = scaled_sums(op, context, output.name, kernel, values, y.shape)
    else:
        result = context.call(output.name, kernel, values, y.shape, y.kernel_dtype)
    context.put(output, result, is_nhwc=False)


@emits(RowBatchMatmulOp)
def emit_row_batch_matmul(op: RowBatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel calls: those that quantize the operands, and the product."""
    output_of = output_spec(op.y)
    assert not isinstance(output_of, kernels.FunctionOutput), "functions follow weights"
    spec = BatchMatmulSpec(
        a=MatrixView.plain(op.a.shape),
        b=MatrixView.plain(op.b.shape),
        y=MatrixView.plain(op.y.shape),
        a_zero_point=0,
        b_zero_point=0,
        multiplier=1.0,
        output=output_of,
        by_row=True,
        threads=context.threads,
    )
    operands = [each for side in (op.a, op.b) for each in read_dynamic(side, context, inputs, is_nhwc=False)]
    result = context.call(output.name, kernels.batch_matmul(spec, isa=context.isa), operands, op.y.shape, "float32")
    context.put(output, result, is_nhwc=False)


def read_operand(
    context: KernelContext, inputs: dict[str, Var], operand: MatmulOperand, *, takes_views: bool
) -> tuple[Expr, MatrixView]:
    """Return what the kernel reads and how: a tensor that was only transposed as it lay before, where the kernel can."""
    plain = MatrixView.plain(operand.tensor.shape)
    if operand.values is not None:
        return relax.const(operand.tensor.kernel_integers(operand.values)), plain
    value = context.storage.get(inputs[operand.tensor.name], is_nhwc=False)
    before = context.storage.before_transposition(value) if takes_views else None
    if before is None:
        return value, plain
    return before[0], MatrixView(shape=operand.tensor.shape, axes=before[1])


def with_room(context: KernelContext, var: Var, view: MatrixView) -> tuple[Expr, MatrixView]:
    """Return what a view sees of a value: as it lies, where it has room for more along an axis."""
    found = context.storage.with_room(var)
    if found is None or tuple(shape_of(var)[axis] for axis in view.axes) != view.shape:
        return context.storage.source(var), view
    lying = shape_of(found[0])
    return found[0], replace(view, room=tuple(lying[axis] for axis in view.axes))


@emits(BlockMatmulOp)
def emit_block_matmul(op: BlockMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    blocks, outputs = op.weight.scale.shape
    features = len(op.weight.values)
    result = output_spec(op.y)
    assert isinstance(result, kernels.FloatOutput), "functions follow 8-bit weights"
    rows = BlockRowsSpec(
        rows=math.prod(op.y.shape[:-1]),
        inputs=features,
        block=features // blocks,
        digits=kernels.ROW_DIGITS if isinstance(op.x, DynamicTensor) else ACTIVATION_DIGITS[op.activations],
        is_dynamic=isinstance(op.x, DynamicTensor),
        threads=context.threads,
    )
    spec = BlockMatmulSpec(
        rows=rows.rows,
        inputs=features,
        outputs=outputs,
        block=rows.block,
        digits=rows.digits,
        output=result,
        has_zero_points=bool((op.weight.zero_point != kernels.SYMMETRIC).any()),
        threads=context.threads,
    )
    kernel = kernels.block_matmul(
        spec,
        weight=op.weight.values,
        scale=op.weight.scale,
        zero_point=op.weight.zero_point,
        bias=op.y.bias,
        isa=context.isa,
    )
    read = [_records(op.x, rows, context, inputs)]
    context.put(output, context.call(output.name, kernel, read, op.y.shape, "float32"), is_nhwc=False)


def _records(x: FloatTensor | DynamicTensor, spec: BlockRowsSpec, context: KernelContext, inputs: dict[str, Var]) -> Expr:
    """Write what makes integers in blocks of an activation, once for all products that read the same."""
    var = inputs[x.name]
    key = var, spec
    if key not in context.quantized:
        is_dynamic = isinstance(x, DynamicTensor)
        read = read_dynamic(x, context, inputs, is_nhwc=False) if is_dynamic else [context.storage.source(var)]
        name = f"{var.name}_blocks{spec.block}x{spec.digits}"
        context.quantized[key] = [context.call(name, kernels.block_rows(spec, isa=context.isa), read, (spec.size,))]
    return context.quantized[key][0]


@emits(FloatBatchMatmulOp)
def emit_float_batch_matmul(op: FloatBatchMatmulOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    read = [
        with_room(context, inputs[each], view) if isinstance(each, str) else (relax.const(each), view)
        for each, view in ((op.a, op.a_view), (op.b, op.b_view))
    ]
    operands, views = [value for value, _ in read], [view for _, view in read]
    spec = FloatBatchMatmulSpec(a=views[0], b=views[1], y=op.y_view, factor=op.factor, threads=context.threads)
    kernel = kernels.float_batch_matmul(spec, isa=context.isa)
    result = context.call(output.name, kernel, operands, op.output_shape, "float32")
    context.put(output, result, is_nhwc=False)
