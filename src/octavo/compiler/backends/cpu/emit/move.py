"""Kernel calls of composites: movement of elements, and changes of their parameters. Reads no QDQ graph."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from .....ir.composites.base import QuantizedOutput, QuantizedTensor, ratio
from .....ir.composites.float_ops import FloatConcatOp
from .....ir.composites.movement import ConcatOp, GatherOp, MoveOp, TakeOp, extent_of
from .....ir.composites.outputs import output_spec
from .....ir.graph.dataflow import dtype_of, static_shape
from .....ir.qdq.matchers.move.move import changes
from .....numerics import QuantParams, lookup_table
from .....numerics.quantized.rescale import fixed_point_table
from .....runtime.size import Size
from .. import kernels
from ..context import KernelContext, shape_of
from ..emitters import emits
from ..kernels import ConcatSpec, FloatConcatSpec, GatherSpec, RequantizeSpec, TakeSpec
from ..storage import TO_NHWC
from .lookup import looked_up


@emits(MoveOp)
def emit_move(op: MoveOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    keeps_shape = op.axes is None and op.x.shape == op.y.tensor.shape
    is_nhwc = context.storage.is_kept_nhwc(var) and (keeps_shape or op.axes == TO_NHWC or _is_flat_image(op))
    value = context.storage.get(var, is_nhwc=is_nhwc)
    if op.axes is not None and not is_nhwc:
        value = context.permute(f"{output.name}_moved", value, op.axes)
    elif shape_of(value) != op.y.tensor.shape and not (is_nhwc and keeps_shape):
        value = context.reshape(f"{output.name}_moved", value, op.y.tensor.shape)
    if changes(op.x, op.y):
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc and keeps_shape)


def _is_flat_image(op: MoveOp) -> bool:
    """Whether an NCHW image is reshaped in a way that NHWC memory serves as well: height and width are 1."""
    return op.axes is None and len(op.x.shape) == 4 and op.x.shape[2] == op.x.shape[3] == 1


def requantized(context: KernelContext, name: str, value: Expr, params: QuantParams, y: QuantizedOutput) -> Var:
    """Write a change of parameters: `value` holds integers of `params` as kernels read them."""
    if y.fixed_point is not None and ratio(params, y.tensor.params) != 1.0:
        table = fixed_point_table(params, y.tensor.params, y.fixed_point, qmin=y.qmin, qmax=y.qmax)
        return looked_up(context, name, value, y, table)
    relabelling = 128 if params.dtype == "int8" else 0
    spec = RequantizeSpec(
        size=math.prod(shape_of(value)),
        multiplier=ratio(params, y.tensor.params),
        input_zero_point=int(params.zero_point) + relabelling,
        output=output_spec(y),
        threads=context.threads,
    )
    return context.call(name, kernels.requantize(spec, isa=context.isa), [value], shape_of(value))


@emits(GatherOp)
def emit_gather(op: GatherOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    var = inputs[op.x.name]
    shape = tuple(extent_of(indices) for indices in op.maps)
    is_nhwc = len(shape) == 4 and shape == op.y.tensor.shape and context.storage.is_kept_nhwc(var)
    maps = tuple(op.maps[axis] for axis in TO_NHWC) if is_nhwc else op.maps
    value = context.storage.get(var, is_nhwc=is_nhwc)
    dtype = op.x.kernel_dtype
    spec = GatherSpec(shape=shape_of(value), maps=maps, fill=op.fill + op.x.relabelling, dtype=dtype, threads=context.threads)
    kernel = kernels.gather(spec, isa=context.isa)
    changed = changes(op.x, op.y)
    moved = tuple(extent_of(indices) for indices in maps)
    value = context.call(f"{output.name}_moved" if changed else output.name, kernel, [value], moved, dtype)
    if shape != op.y.tensor.shape:
        value = context.reshape(f"{output.name}_shaped", value, op.y.tensor.shape)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=is_nhwc)


@emits(TakeOp)
def emit_take(op: TakeOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    indices = inputs[op.indices]
    places = static_shape(indices)
    assert places is not None, "the rule sees to it"
    shape, axis = op.x.shape, op.axis
    dtype: Any = dtype_of(indices)
    spec = TakeSpec(
        outer=math.prod(shape[:axis]),
        extent=shape[axis],
        inner=math.prod(shape[axis + 1 :]),
        count=math.prod(places),
        index_dtype=dtype,
        dtype=op.x.kernel_dtype,
        threads=context.threads,
    )
    kernel = kernels.take(spec, isa=context.isa)
    changed = changes(op.x, op.y)
    args = [_taken_from(op, context, inputs), context.storage.source(indices)]
    value = context.call(f"{output.name}_taken" if changed else output.name, kernel, args, op.y.tensor.shape, spec.dtype)
    if changed:
        value = requantized(context, output.name, value, op.x.params, op.y)
    context.put(output, value, is_nhwc=False)


def _taken_from(op: TakeOp, context: KernelContext, inputs: dict[str, Var]) -> Expr:
    if op.values is None:
        return context.storage.get(inputs[op.x.name], is_nhwc=False)
    return relax.const(op.x.kernel_integers(op.values))


@emits(ConcatOp)
def emit_concat(op: ConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call."""
    args, is_nhwc = _concatenated(op, context, inputs)
    shape, axis, is_wide = op.y.tensor.shape, op.axis, op.y.kernel_dtype == "int16"
    in_integers = op.y.fixed_point is not None
    if is_wide or in_integers:
        tensors = list(enumerate(zip(op.inputs, args, strict=True)))
        args = [_with_parameters_of(context, f"{output.name}_part{i}", arg, tensor, op.y) for i, (tensor, arg) in tensors]
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    spec = ConcatSpec(
        outer=math.prod(shape[:axis]),
        inners=tuple(math.prod(shape_of(arg)[axis:]) for arg in args),
        multipliers=tuple(1.0 if is_wide or in_integers else ratio(each.params, op.y.tensor.params) for each in op.inputs),
        zero_points=tuple((op.y.tensor if in_integers else each).zero_point for each in op.inputs),
        output=output_spec(op.y),
        dtype=op.y.kernel_dtype,
        threads=context.threads,
    )
    kernel = kernels.concat(spec, isa=context.isa)
    context.put(output, context.call(output.name, kernel, args, shape, op.y.kernel_dtype), is_nhwc=is_nhwc)


def _with_parameters_of(context: KernelContext, name: str, value: Expr, x: QuantizedTensor, y: QuantizedOutput) -> Expr:
    """Return an operand with the parameters of the result: through a table with an entry for every integer."""
    if x.params == y.tensor.params:
        return value
    return looked_up(context, name, value, y, operand_table(x, y))


def operand_table(x: QuantizedTensor, y: QuantizedOutput) -> npt.NDArray[np.integer]:
    """Return each integer of an operand as one of the result's parameters, rounded as its quantize says."""
    params = y.tensor.params
    if y.fixed_point is not None:
        return fixed_point_table(x.params, params, y.fixed_point, qmin=y.qmin, qmax=y.qmax)
    return lookup_table(lambda real: real, x.params, params, qmin=y.qmin, qmax=y.qmax)


def _concatenated(op: ConcatOp, context: KernelContext, inputs: dict[str, Var]) -> tuple[list[Expr], bool]:
    """Return what is concatenated as kernels read it, and whether that is NHWC."""
    variables = {i: inputs[tensor.name] for i, tensor in enumerate(op.inputs) if i not in op.constants}
    is_nhwc = len(op.y.tensor.shape) == 4 and any(context.storage.is_kept_nhwc(var) for var in variables.values())
    args = [
        context.storage.get(variables[i], is_nhwc=is_nhwc) if i in variables else _constant_operand(op, i, is_nhwc=is_nhwc)
        for i in range(len(op.inputs))
    ]
    return args, is_nhwc


def _constant_operand(op: ConcatOp, position: int, *, is_nhwc: bool) -> Expr:
    values = op.inputs[position].kernel_integers(op.constants[position])
    return relax.const(np.ascontiguousarray(values.transpose(TO_NHWC) if is_nhwc else values))


@emits(FloatConcatOp)
def emit_float_concat(op: FloatConcatOp, context: KernelContext, inputs: dict[str, Var], output: Var) -> None:
    """Write the kernel call; factors need their axis last."""
    tensors = [inputs[name] for name in op.inputs]
    is_float = op.dtype == "float32"
    if op.line is None:
        is_nhwc = is_float and len(op.shape) == 4 and any(context.storage.is_kept_nhwc(tensor) for tensor in tensors)
    else:
        is_nhwc = op.axis != len(op.shape) - 1
    arguments = [context.storage.get(tensor, is_nhwc=is_nhwc, is_relabelled=False) for tensor in tensors]
    shape, axis = op.shape, op.axis
    if is_nhwc:
        shape, axis = tuple(shape[a] for a in TO_NHWC), TO_NHWC.index(axis)
    state = None if is_nhwc or op.line is not None else context.growing.get(output)
    lying = shape if state is None else (*shape[:axis], Size.named(state.capacity), *shape[axis + 1 :])
    spec = FloatConcatSpec(
        outer=math.prod(shape[:axis]),
        inners=tuple(math.prod(shape_of(argument)[axis:]) for argument in arguments),
        low=op.low,
        high=op.high,
        room=0 if state is None else math.prod(lying[axis:]),
        in_place=0 if state is None else Size.named(state.in_place),
        dtype=op.dtype,
        threads=context.threads,
    )
    kernel = kernels.float_concat(spec, line=op.line, isa=context.isa)
    result = context.call(output.name, kernel, [*arguments], lying, op.dtype)
    if state is None and is_float:
        context.put(output, result, is_nhwc=is_nhwc)
    elif state is None:
        context.storage.put_source(output, result)
    else:
        context.storage.put_with_room(output, result, axis)
