"""Kernel calls of composites: attention. Reads no QDQ graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm.relax import Expr, Var

from .....ir.composites.attention import AttentionOp, FloatAttentionOp, LyingOperand, LyingProductOp, RowAttentionOp
from .....ir.composites.base import FloatResult, QuantizedOutput, SumResult
from .....ir.composites.matrix_view import MatrixView
from .....ir.composites.outputs import FloatOutput, Output, SumOutput, output_spec
from .....ir.composites.weighted import BatchMatmulOp
from .....ir.graph.dataflow import static_shape
from .....numerics.rounding.fixed_point import FixedPointMultiplier
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import AttentionSpec, BatchMatmulSpec, FloatAttentionSpec, FloatBatchMatmulSpec, Kernel
from .matmul import read_operand, with_room
from .norms import softmax_addend, softmax_result
from .quantize import read_dynamic


@emits(LyingProductOp)
def emit_lying_product(op: LyingProductOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel calls: those that quantize the operands, and the product."""
    result = output_spec(op.y)
    assert isinstance(result, kernels.FloatOutput), "functions follow weights"
    spec = BatchMatmulSpec(
        a=op.a.view,
        b=op.b.view,
        y=op.y_view,
        a_zero_point=0,
        b_zero_point=0,
        multiplier=1.0,
        output=result,
        by_row=True,
        parameters=(op.a.parameters, op.b.parameters),
        threads=context.threads,
    )
    kernel = kernels.batch_matmul(spec, isa=context.isa)
    _put(op, kernel, _read((op.a, op.b), context, inputs), context, output)


@emits(RowAttentionOp)
def emit_row_attention(op: RowAttentionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel calls: those that quantize the operands, and the one of everything behind."""
    rows = MatrixView.plain(op.scores.y.shape)
    how: dict[str, Any] = {"a_zero_point": 0, "b_zero_point": 0, "multiplier": 1.0, "by_row": True}
    of_rows = MatrixView.plain((*rows.shape[:-1], 2))
    scores = BatchMatmulSpec(
        a=op.q.view, b=op.k.view, y=rows, output=_output(op.scores.y), parameters=(op.q.parameters, op.k.parameters), **how
    )
    weighted = BatchMatmulSpec(
        a=rows, b=op.v.view, y=op.y_view, output=_output(op.y), parameters=(of_rows, op.v.parameters), **how
    )
    addend, numbers, names = softmax_addend(op.softmax)
    spec = AttentionSpec(scores=scores, weighted=weighted, addend=addend, threads=context.threads)
    operands = [*_read((op.q, op.k, op.v), context, inputs), *(context.storage.source(inputs[name]) for name in names)]
    _put(op, kernels.attention(spec, addend=numbers, isa=context.isa), operands, context, output)


@emits(AttentionOp)
def emit_attention(op: AttentionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    scores, softmax, weighted = op.scores, op.softmax, op.weighted
    assert softmax.y is not None, "the second product reads integers"
    sides = [read_operand(context, inputs, each, takes_views=True) for each in (scores.a, scores.b, weighted.b)]
    (q, k, v), rows = (view for _, view in sides), MatrixView.plain(softmax.shape)

    def product(made: BatchMatmulOp, a: MatrixView, b: MatrixView) -> BatchMatmulSpec:
        return BatchMatmulSpec(
            a=a,
            b=b,
            y=MatrixView.plain(made.y.shape),
            a_zero_point=made.a.tensor.zero_point,
            b_zero_point=made.b.tensor.zero_point,
            multiplier=_factor(made),
            output=_output(made.y),
        )

    addend, numbers, names = softmax_addend(softmax)
    spec = AttentionSpec(
        scores=product(scores, q, k),
        weighted=product(weighted, rows, v),
        shares=softmax_result(softmax, softmax.y),
        addend=addend,
        threads=context.threads,
    )
    operands = [*(value for value, _ in sides), *(context.storage.source(inputs[name]) for name in names)]
    result = context.call(
        output.name, kernels.attention(spec, addend=numbers, isa=context.isa), operands, weighted.y.shape, weighted.y.kernel_dtype
    )
    context.put(output, result, is_nhwc=False)


@emits(FloatAttentionOp)
def emit_float_attention(op: FloatAttentionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    scores, weighted = op.scores, op.weighted
    names = ((scores.a, scores.a_view), (scores.b, scores.b_view), (weighted.b, weighted.b_view))
    sides = [with_room(context, inputs[name], view) for name, view in names if isinstance(name, str)]
    q, k, v = (view for _, view in sides)
    addend, numbers, added = softmax_addend(op.softmax)
    spec = FloatAttentionSpec(
        scores=FloatBatchMatmulSpec(a=q, b=k, y=scores.y_view, factor=scores.factor),
        weighted=FloatBatchMatmulSpec(a=weighted.a_view, b=v, y=weighted.y_view, factor=weighted.factor),
        addend=addend,
        threads=context.threads,
    )
    operands = [*(value for value, _ in sides), *(context.storage.source(inputs[name]) for name in added)]
    kernel = kernels.float_attention(spec, addend=numbers, isa=context.isa)
    result = context.call(output.name, kernel, operands, weighted.output_shape, "float32")
    context.put(output, result, is_nhwc=False)


def _factor(product: BatchMatmulOp) -> float:
    multiplier = product.multiplier
    assert not isinstance(multiplier, FixedPointMultiplier), "composition leaves these alone"
    return float(multiplier)


def _output(y: QuantizedOutput | FloatResult | SumResult) -> Output | FloatOutput | SumOutput:
    made = output_spec(y)
    assert not isinstance(made, kernels.FunctionOutput), "functions follow weights"
    return made


def _read(operands: Sequence[LyingOperand], context: KernelContext, inputs: dict[str, Var]) -> list[Expr]:
    """Write the quantization of operands; return integers and parameters of each."""
    return [value for each in operands for value in read_dynamic(each.tensor, context, inputs, is_nhwc=False)]


def _put(op: LyingProductOp | RowAttentionOp, kernel: Kernel, operands: list[Expr], context: KernelContext, output: Var) -> None:
    shape = static_shape(output)
    assert shape is not None, "partition found one"
    context.put(output, context.call(output.name, kernel, operands, shape, "float32"), is_nhwc=False)
