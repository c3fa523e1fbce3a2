"""Kernel calls of composites: int16_prelu. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from ....composites.elementwise import Int16PreluOp
from ....composites.outputs import output_spec
from ..context import KernelContext
from ..emitters import emits
from ..kernels.int16_prelu import Int16PreluSpec, int16_prelu


@emits(Int16PreluOp)
def emit_int16_prelu(op: Int16PreluOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    spec = Int16PreluSpec(
        shape=op.x.shape,
        x_scale=float(op.x.params.scale),
        slope_scale=op.slope_scale,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        threads=context.threads,
    )
    x = context.storage.get(inputs[op.x.name], is_nhwc=False)
    kernel = int16_prelu(spec, slopes=op.slopes, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], op.x.shape, "int16"), is_nhwc=False)
