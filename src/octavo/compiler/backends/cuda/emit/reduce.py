"""Reductions and pooling; places of extremes, and the greatest or least elements in order.

Places are int32 or int64, which are no quantized tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .....ir.composites.movement import TopkOp
from .....ir.composites.reduction import ArgReduceOp, Pool2dOp, ReduceOp
from ..emission import Emission, ResultType, Value
from ..kernels.pool.average import average_parameters
from ..kernels.pool.pool2d import image_mean, pool2d
from ..kernels.quantization.change import change_of, kept
from ..kernels.reductions.reduce import ReduceSpec, reduce
from ..kernels.reductions.topk import TopkSpec, topk
from .rows import as_source, rows_last, run_of


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


def emit_pool2d(op: Pool2dOp, emission: Emission, inputs: Mapping[str, Value]) -> Value:
    """Launch a pooling of channels last; a mean that drops rows and columns leaves memory as it is."""
    is_nhwc = op.layout == "NCHW"
    x = emission.lying(inputs[op.x.name], is_nhwc=is_nhwc)
    shape = op.y.shape
    result = emission.new(shape, op.y.tensor.params.dtype, is_nhwc=is_nhwc and len(shape) == 4)
    mean = image_mean(op, x.lying_shape)
    kernel = pool2d(op, x.lying_shape, emission.isa) if mean is None else reduce(mean, emission.isa)
    return emission.launch(kernel, [x], result)
