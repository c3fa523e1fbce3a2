"""Kernel calls of composites: attention. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from .....ir.composites.attention import RowAttentionOp
from .....ir.composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext
from ..emitters import emits
from ..kernels import AttentionSpec
from .norms import softmax_addend
from .quantize import read_dynamic


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
    operands = [value for each in (op.q, op.k, op.v) for value in read_dynamic(each.tensor, context, inputs, is_nhwc=False)]
    operands += [context.storage.source(inputs[name]) for name in names]
    kernel = kernels.attention(spec, addend=numbers, isa=context.isa)
    context.put(output, context.call(output.name, kernel, operands, op.y_shape, "float32"), is_nhwc=False)
