"""Kernel calls of composites: int16_forms. Reads no QDQ graph."""

from __future__ import annotations

import math
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ....composites.base import QuantizedOutput, QuantizedTensor, ratio
from ....composites.elementwise import Operand, PairwiseOp
from ....composites.int16 import (
    Int16ConcatOp,
    Int16ExactSoftmaxOp,
    Int16FloatPairwiseOp,
    Int16MeanOp,
    Int16PairwiseOp,
    Int16PoolOp,
    Int16RealMeanOp,
    Int16SoftmaxOp,
)
from ....composites.movement import ConcatOp
from ....composites.normalization import SoftmaxOp
from ....composites.outputs import output_spec
from ....composites.reduction import Pool2dOp, ReduceOp
from ....numerics import lookup_table
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels.int16_elementwise import int16_concat, int16_lookup, int16_mean, int16_pairwise
from ..kernels.int16_exact_softmax import Int16ExactSoftmaxSpec, int16_exact_softmax
from ..kernels.int16_float import int16_float_pairwise
from ..kernels.int16_pool2d import int16_pool2d
from ..kernels.int16_softmax import int16_softmax
from ..kernels.int16_spec import Int16FloatPairwiseSpec, Int16LookupSpec, Int16MeanSpec, Int16PairwiseSpec, Int16SoftmaxSpec
from ..kernels.spec import ConcatSpec, Kernel, Pool2dSpec
from ..storage import TO_NHWC
from .concat import concat_operands
from .pairwise import is_pairwise_nhwc
from .reduce import Run, run_of
from .softmax import write_rows


@emits(Int16PairwiseOp)
def emit_int16_pairwise(op: Int16PairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: PairwiseOp = op.base
    is_nhwc = is_pairwise_nhwc(base, context, inputs)
    a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (base.a, base.b))
    spec = Int16PairwiseSpec(
        kind=cast(Literal["add", "sub", "mul"], base.kind),
        a_shape=shape_of(a),
        b_shape=shape_of(b),
        a_scale=float(base.a.tensor.params.scale),
        b_scale=float(base.b.tensor.params.scale),
        out_scale=float(base.y.tensor.params.scale),
        output=output_spec(base.y),
        threads=context.threads,
    )
    shape = base.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    kernel = int16_pairwise(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [a, b], shape, "int16"), is_nhwc=is_nhwc)


@emits(Int16FloatPairwiseOp)
def emit_int16_float_pairwise(op: Int16FloatPairwiseOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: PairwiseOp = op.base
    is_nhwc = is_pairwise_nhwc(base, context, inputs)
    a, b = (_read(context, inputs, operand, is_nhwc=is_nhwc) for operand in (base.a, base.b))
    spec = Int16FloatPairwiseSpec(
        kind=base.kind,
        a_shape=shape_of(a),
        b_shape=shape_of(b),
        a_scale=float(base.a.tensor.params.scale),
        a_zero_point=base.a.tensor.zero_point,
        b_scale=float(base.b.tensor.params.scale),
        b_zero_point=base.b.tensor.zero_point,
        out_scale=float(base.y.tensor.params.scale),
        output=output_spec(base.y),
        threads=context.threads,
    )
    shape = base.y.tensor.shape
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    kernel = int16_float_pairwise(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [a, b], shape, "int16"), is_nhwc=is_nhwc)


def _read(context: KernelContext, inputs: dict[str, Var], operand: Operand, *, is_nhwc: bool) -> Expr:
    if operand.values is None:
        return context.storage.get(inputs[operand.tensor.name], is_nhwc=is_nhwc)
    values: npt.NDArray[Any] = (operand.values.astype(np.int32) + operand.tensor.relabelling).astype(np.int16)
    if is_nhwc:
        values = values.reshape((1,) * (4 - values.ndim) + values.shape).transpose(TO_NHWC)
    return relax.const(np.ascontiguousarray(values))


@emits(Int16PoolOp)
def emit_int16_pool(op: Int16PoolOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: Pool2dOp = op.base
    is_nhwc = base.layout == "NCHW"
    x = context.storage.get(inputs[base.x.name], is_nhwc=is_nhwc)
    batch, height, width, channels = shape_of(x)
    away = base.rounding == "half_away"
    spec = Pool2dSpec(
        kind=base.kind,
        batch=batch,
        in_height=height,
        in_width=width,
        channels=channels,
        kernel=base.kernel,
        strides=base.strides,
        padding=base.padding,
        dilation=base.dilation,
        out_height=base.out_height,
        out_width=base.out_width,
        count_include_pad=base.count_include_pad,
        multiplier=1.0 if away or base.kind == "max" else ratio(base.x.params, base.y.tensor.params),
        input_zero_point=base.x.zero_point,
        output=output_spec(base.y),
        rounding="half_away" if away else "half_even",
        threads=context.threads,
    )
    shape = (batch, base.out_height, base.out_width, channels)
    kernel = int16_pool2d(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, [x], shape, "int16"), is_nhwc=is_nhwc)


@emits(Int16MeanOp)
@emits(Int16RealMeanOp)
def emit_int16_mean(op: Int16MeanOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: ReduceOp = op.base
    run = run_of(context, inputs[base.x.name], base.x.shape, base.axes, f"{output.name}_rows")
    shape = base.y.tensor.shape
    is_nhwc = run.is_nhwc and len(shape) == 4
    shape = tuple(shape[axis] for axis in TO_NHWC) if is_nhwc else shape
    value = context.call(
        output.name,
        (_real_mean if isinstance(op, Int16RealMeanOp) else _fixed_mean)(op, context, run),
        [run.value],
        shape,
        "int16",
    )
    context.put(output, value, is_nhwc=is_nhwc)


def _fixed_mean(op: Int16MeanOp, context: KernelContext, run: Run) -> Kernel:
    base: ReduceOp = op.base
    spec = Int16MeanSpec(
        outer=run.outer,
        count=run.extent,
        inner=run.inner,
        in_scale=float(base.x.params.scale),
        out_scale=float(base.y.tensor.params.scale),
        output=output_spec(base.y),
        threads=context.threads,
    )
    return int16_mean(spec, isa=context.isa)


def _real_mean(op: Int16MeanOp, context: KernelContext, run: Run) -> Kernel:
    base: ReduceOp = op.base
    spec = Pool2dSpec(
        kind="avg",
        batch=run.outer,
        in_height=run.extent,
        in_width=1,
        channels=run.inner,
        kernel=(run.extent, 1),
        out_height=1,
        out_width=1,
        multiplier=ratio(base.x.params, base.y.tensor.params),
        input_zero_point=base.x.zero_point,
        output=output_spec(base.y),
        threads=context.threads,
    )
    return int16_pool2d(spec, isa=context.isa)


@emits(Int16SoftmaxOp)
def emit_int16_softmax(op: Int16SoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: SoftmaxOp = op.base
    columns = base.x.shape[base.axis]
    spec = Int16SoftmaxSpec(
        rows=math.prod(base.x.shape) // columns,
        columns=columns,
        scale=float(base.x.params.scale),
        beta=base.beta,
        output=output_spec(base.y),
        threads=context.threads,
    )
    kernel = int16_softmax(spec, isa=context.isa)
    write_rows(context, inputs[base.x.name], output, base.axis, kernel, "int16")


@emits(Int16ExactSoftmaxOp)
def emit_int16_exact_softmax(op: Int16ExactSoftmaxOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: SoftmaxOp = op.base
    columns = base.x.shape[base.axis]
    spec = Int16ExactSoftmaxSpec(
        rows=math.prod(base.x.shape) // columns,
        columns=columns,
        scale=float(np.float32(base.x.params.scale) * np.float32(base.beta)),
        out_scale=float(base.y.tensor.params.scale),
        output=output_spec(base.y),
        threads=context.threads,
    )
    kernel = int16_exact_softmax(spec, isa=context.isa)
    write_rows(context, inputs[base.x.name], output, base.axis, kernel, "int16")


@emits(Int16ConcatOp)
def emit_int16_concat(op: Int16ConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    base: ConcatOp = op.base
    shape, axis = base.y.tensor.shape, base.axis
    args, is_nhwc = concat_operands(base, context, inputs)
    for place, (tensor, arg) in enumerate(zip(base.inputs, args, strict=True)):
        if tensor.params != base.y.tensor.params:
            args[place] = _requantized(context, f"{output.name}_part{place}", arg, tensor, base.y)
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    spec = ConcatSpec(
        outer=math.prod(shape[:axis]),
        inners=tuple(math.prod(shape_of(arg)[axis:]) for arg in args),
        multipliers=(1.0,) * len(args),
        zero_points=(0,) * len(args),
        output=output_spec(base.y),
        threads=context.threads,
    )
    kernel = int16_concat(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, args, shape, "int16"), is_nhwc=is_nhwc)


def _requantized(context: KernelContext, name: str, value: Expr, x: QuantizedTensor, y: QuantizedOutput) -> Expr:
    """Write a change of parameters between int16 tensors: a table with an entry for every integer."""
    table = lookup_table(lambda real: real, x.params, y.tensor.params).astype(np.int32) + y.tensor.relabelling
    spec = Int16LookupSpec(size=math.prod(shape_of(value)), x_dtype="int16", y_dtype="int16", threads=context.threads)
    kernel = int16_lookup(spec, table=table.astype(np.int16), isa=context.isa)
    return context.call(name, kernel, [value], shape_of(value), "int16")
