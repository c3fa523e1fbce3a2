"""Places of extremes, and the greatest or least elements in order: results of int32 or int64 that are no quantized tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.movement import TopkOp
from .....ir.composites.reduction import ArgReduceOp
from ..emission import Emission, ResultType, Value
from ..kernels.quantization.change import kept
from ..kernels.reductions.reduce import ReduceSpec, reduce
from ..kernels.reductions.topk import TopkSpec, topk
from .rows import as_source, rows_last, run_of


def emit_arg_reduce(op: ArgReduceOp, emission: Emission, inputs: Mapping[str, Value], result: ResultType) -> Value:
    """Launch a search for the first place of an extreme along an axis, or among all elements as the source counts them."""
    x = inputs[op.x.name]
    if op.axis is None:
        run = run_of(emission, emission.lying(x, is_nhwc=False), tuple(range(len(op.x.shape))), len(result.shape))
    else:
        run = run_of(emission, x, (op.axis,), len(result.shape))
    spec = ReduceSpec(
        kind=op.kind,
        outer=run.outer,
        extent=run.extent,
        inner=run.inner,
        change=kept(op.x.params.dtype),
        to=result.dtype,
        parameters={},
        name=op.kind,
    )
    y = emission.new(result.shape, result.dtype, is_nhwc=run.is_nhwc)
    return emission.launch(reduce(spec, emission.isa), [run.value], y)


def emit_topk(op: TopkOp, emission: Emission, inputs: Mapping[str, Value], result: ResultType) -> Value:
    """Launch a choice of the greatest or least elements of each row, or of their places."""
    x, order = rows_last(emission, inputs[op.x.name], op.axis)
    spec = TopkSpec(
        rows=math.prod(x.shape[:-1]),
        extent=x.shape[-1],
        count=op.count,
        largest=op.largest,
        gives_places=op.y is None,
        dtype=x.dtype,
        to=result.dtype,
    )
    y = emission.new((*x.shape[:-1], op.count), result.dtype)
    return as_source(emission, emission.launch(topk(spec, emission.isa), [x], y), order)
