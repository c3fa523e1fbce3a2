"""Kernel calls of composites: layer_norm. Reads no QDQ graph."""

from __future__ import annotations

import math

from tvm.relax import Var

from .....ir.composites.normalization import LayerNormOp
from .....ir.composites.outputs import output_spec
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import LayerNormSpec


@emits(LayerNormOp)
def emit_layer_norm(op: LayerNormOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x = context.storage.get(inputs[op.x.name], is_nhwc=False)
    columns = op.x.shape[-1]
    spec = LayerNormSpec(
        rows=math.prod(op.x.shape) // columns,
        columns=columns,
        scale=float(op.x.params.scale),
        epsilon=op.epsilon,
        out_scale=float(op.y.tensor.params.scale),
        output=output_spec(op.y),
        threads=context.threads,
    )
    kernel = kernels.layer_norm(spec, gamma=op.gamma, beta=op.beta, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape_of(x)), is_nhwc=False)
