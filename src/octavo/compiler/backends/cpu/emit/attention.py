"""Kernel calls of composites: attention. Reads no QDQ graph."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax import Expr, Var

from .....ir.composites.attention import LyingOperand, LyingProductOp, RowAttentionOp
from .....ir.composites.outputs import output_spec
from .....ir.graph.dataflow import static_shape
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import AttentionSpec, BatchMatmulSpec, Kernel
from .norms import softmax_addend
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
def emit_attention(op: RowAttentionOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel calls: those that quantize the operands, and the one of everything behind."""
    scores, result = output_spec(op.scores.y), output_spec(op.y)
    assert isinstance(scores, kernels.FloatOutput), "functions follow weights"
    assert isinstance(result, kernels.FloatOutput), "functions follow weights"
    addend, numbers, names = softmax_addend(op.softmax)
    spec = AttentionSpec(
        q=op.q.view,
        k=op.k.view,
        v=op.v.view,
        y=op.y_view,
        of_q=op.q.parameters,
        of_k=op.k.parameters,
        of_v=op.v.parameters,
        scores=scores,
        output=result,
        addend=addend,
        threads=context.threads,
    )
    operands = [*_read((op.q, op.k, op.v), context, inputs), *(context.storage.source(inputs[name]) for name in names)]
    _put(op, kernels.attention(spec, addend=numbers, isa=context.isa), operands, context, output)


def _read(operands: Sequence[LyingOperand], context: KernelContext, inputs: dict[str, Var]) -> list[Expr]:
    """Write the quantization of operands; return integers and parameters of each."""
    return [value for each in operands for value in read_dynamic(each.tensor, context, inputs, is_nhwc=False)]


def _put(op: LyingProductOp | RowAttentionOp, kernel: Kernel, operands: list[Expr], context: KernelContext, output: Var) -> None:
    shape = static_shape(output)
    assert shape is not None, "partition found one"
    context.put(output, context.call(output.name, kernel, operands, shape, "float32"), is_nhwc=False)
