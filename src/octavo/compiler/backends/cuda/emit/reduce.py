"""Reductions."""

from __future__ import annotations

from collections.abc import Mapping

from .....ir.composites.reduction import ReduceOp
from ..emission import Emission, Value
from ..kernels.pool.average import average_parameters
from ..kernels.quantization.change import change_of
from ..kernels.reductions.reduce import ReduceSpec, reduce
from .rows import run_of


def emit_reduce(op: ReduceOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a sum, a mean or an extreme over any axes."""
    run = run_of(emission, inputs[op.x.name], op.axes, len(op.y.shape))
    is_sum = op.kind in ("sum", "mean")
    rounding = op.rounding if is_sum else "half_even"
    spec = ReduceSpec(
        kind="sum" if is_sum else op.kind,
        outer=run.outer,
        extent=run.extent,
        inner=run.inner,
        change=change_of(op.x, op.y),
        to=op.y.tensor.params.dtype,
        parameters=average_parameters(op.x, op.y, rounding, run.extent if op.kind == "mean" else 1),
        name=op.kind,
    )
    result = emission.new(op.y.shape, op.y.tensor.params.dtype, is_nhwc=run.is_nhwc)
    return emission.launch(reduce(spec, emission.isa), [run.value], result)
