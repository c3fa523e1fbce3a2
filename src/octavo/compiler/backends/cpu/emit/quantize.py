"""Kernel calls of composites: quantize and dequantize. Reads no QDQ graph."""

from __future__ import annotations

import numpy as np
from tvm.relax import Var

from .....ir.composites.movement import DequantizeOp, QuantizeOp
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import DequantizeSpec, QuantizeSpec
from ..storage import SOURCE


@emits(QuantizeOp)
def emit_quantize(op: QuantizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    x = context.storage.source(inputs[op.source])
    spec = QuantizeSpec(
        size=int(np.prod(op.y.tensor.shape)),
        scale=float(op.y.tensor.params.scale),
        zero_point=op.y.tensor.zero_point,
        dtype=op.y.tensor.kernel_dtype,
        ties=op.rounding,
        threads=context.threads,
    )
    kernel = kernels.quantize(spec, isa=context.isa)
    value = context.call(output.name, kernel, [x], op.y.tensor.shape, op.y.tensor.kernel_dtype)
    context.put(output, value, is_nhwc=False)


@emits(DequantizeOp)
def emit_dequantize(op: DequantizeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    # In the source's layout: bytes are quicker to permute than floats.
    x = context.storage.get(var, is_nhwc=False)
    spec = DequantizeSpec(
        size=int(np.prod(op.x.shape)),
        scale=float(op.x.params.scale),
        zero_point=op.x.zero_point,
        dtype=op.x.kernel_dtype,
        threads=context.threads,
    )
    value = context.call(output.name, kernels.dequantize(spec, isa=context.isa), [x], shape_of(x), "float32")
    context.storage.put(output, SOURCE, value)
