"""Kernel calls of composites: int16_reduce. Reads no QDQ graph."""

from __future__ import annotations

from tvm.relax import Var

from ....composites.base import ratio
from ....composites.outputs import output_spec
from ....composites.reduction import Int16ReduceOp
from ..context import KernelContext
from ..emitters import emits
from ..kernels.int16_reduce import Int16ReduceSpec, int16_reduce
from ..storage import TO_NHWC
from .reduce import run_of


@emits(Int16ReduceOp)
def emit_int16_reduce(op: Int16ReduceOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base = op.base
    assert base.kind != "mean", "means have a rule of their own"
    run = run_of(context, inputs[base.x.name], base.x.shape, base.axes, f"{output.name}_rows")
    shape = base.y.tensor.shape
    is_nhwc = run.is_nhwc and len(shape) == 4
    spec = Int16ReduceSpec(
        kind=base.kind,
        outer=run.outer,
        count=run.extent,
        inner=run.inner,
        multiplier=ratio(base.x.params, base.y.tensor.params),
        input_zero_point=base.x.zero_point,
        output=output_spec(base.y),
        threads=context.threads,
    )
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    value = context.call(output.name, int16_reduce(spec, isa=context.isa), [run.value], shape, "int16")
    context.put(output, value, is_nhwc=is_nhwc)
