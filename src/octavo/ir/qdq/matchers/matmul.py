"""Rules of products of two activations: of quantized values of which neither is a constant matrix, and of float32.

A product of float32 reads operands that were only permuted (heads split off) where they lie, writes a permuted result in its
place, and takes a factor behind it along.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from tvm.relax import Expr, Var

from ....numerics import BATCH_MATMUL_MAX_INNER, INTEGER_RANGE, QuantParams
from ....numerics.rounding.fixed_point import FixedPointMultiplier, FixedPointRounding
from ....numerics.rounding.narrow_accumulator import Overflow
from ....runtime.shapes import bounded, surpasses
from ....target import OpSupport
from ...composites.base import WIDE, CompositeOp, FloatResult, QuantizedOutput, QuantizedTensor, SumResult
from ...composites.float_ops import FloatBatchMatmulOp
from ...composites.matrix_view import MatrixView
from ...composites.weighted import BatchMatmulOp, MatmulOperand, RowBatchMatmulOp
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..integer_sums import CenteredInput, centered_input, follow_scaling
from ..rounding import is_fixed_point, result_rounding, unscalable
from ..runtime_inputs import DynamicInput, dynamic_tensor, product_operand
from ..tail import check_activation, follow_in_float, follow_to_quantize, of_width
from ..values import Dequantized, constant_value, dequantized, numpy_constant, real_values


def match_batch_matmul(view: DataflowView, core: Var, support: OpSupport) -> Region[CompositeOp] | Rejection:
    """Claim quantize(clamp(matmul(dequantize(a), dequantize(b)))); one of them may be a quantized constant.

    Where nothing quantizes the result, and the target can leave it in float32, the composite ends before its reader; int32
    products of integers less their zero points may end in int32. What quantizes operands when run, one per row and the other per
    column, is claimed, too.
    """
    call = call_to(view.definition(core), "matmul")
    assert call is not None
    rows = [product_operand(view, arg, by_column=place > 0) for place, arg in enumerate(call.args)]
    if rows[0] is not None and rows[1] is not None:
        return _match_rows(view, core, (rows[0], rows[1]), support)
    return _match_static(view, core, call, support)


def _match_static(view: DataflowView, core: Var, call: Any, support: OpSupport) -> Region[CompositeOp] | Rejection:
    operands: list[MatmulOperand] = []
    members: dict[Var, None] = {}
    variables: list[Var] = []
    sides: list[Dequantized | CenteredInput] = []
    for place, arg in enumerate(call.args):
        side = (dequantized(view, arg) or _rearranged(view, arg)) if dtype_of(core) != "int32" else centered_input(view, arg)
        if isinstance(side, Rejection):
            return side
        if side is None:
            return Rejection(reason=f"operand {getattr(arg, 'name', 'constant')} is float: no dequantize with constant scale")
        constant, shape = constant_value(view, side.source), static_shape(side.source)
        name = getattr(side.source, "name", "constant")
        if shape is None or len(shape) < 2 or 0 in shape:
            return Rejection(reason=f"operand {name} of shape {shape}: the kernel takes static shapes of at least two axes")
        problem = check_activation(name, side.params, support)
        if problem is not None:
            return problem
        support = _of_width(support, side.params)
        if constant is not None and place > 0 and len(shape) == 2 and side.params.dtype not in WIDE:
            return Rejection(reason=f"operand {name} is a constant matrix, which another rule takes")
        members.update(dict.fromkeys(() if constant is None else constant.members))
        members.update(dict.fromkeys(_entry(side)))
        values = None if constant is None else constant.values
        operands.append(MatmulOperand(tensor=QuantizedTensor(name=name, shape=shape, params=side.params), values=values))
        sides.append(side)
        if values is None and isinstance(side.source, Var):
            variables.append(side.source)
    if not variables:
        return Rejection(reason="both operands are constants; fold them")
    overflow = _overflow_of(operands, support)
    if isinstance(overflow, Rejection):
        return overflow
    end = _end(view, core, sides, support)
    if isinstance(end, Rejection):
        return end
    fixed_point = _fixed_point_of(view, end, operands)
    if isinstance(fixed_point, Rejection):
        return fixed_point
    op = BatchMatmulOp(
        a=operands[0],
        b=operands[1],
        unit=end.unit,
        y=end.result,
        accumulator_bits=support.bits_of(sides[0].params.dtype),
        fixed_point=fixed_point,
        overflow=overflow,
    )
    problem = None if fixed_point is None else _beyond_int64(op)
    if problem is not None:
        return problem
    return Region(
        core=core,
        output=end.output,
        members=tuple(dict.fromkeys((*members, core, *end.members))),
        inputs=tuple(dict.fromkeys(variables)),
        op=op,
    )


def _match_rows(
    view: DataflowView, core: Var, sides: tuple[DynamicInput, DynamicInput], support: OpSupport
) -> Region[CompositeOp] | Rejection:
    """Claim clamp(matmul(a, b)) of operands that are quantized when run, per row and per column; it ends in float32."""
    a, b = sides
    if not support.per_row_input:
        reason = f"input {a.source.name} is quantized per row when run, which the target does not take"
        return Rejection(reason=reason, matched=True)
    shape, inner = static_shape(core), a.shape[-1]
    if shape is None or 0 in shape:
        return Rejection(reason=f"{core.name} has no static shape, or no element")
    if surpasses(inner, BATCH_MATMUL_MAX_INNER):
        return Rejection(reason=f"sums of {inner} products may exceed int32; at most {BATCH_MATMUL_MAX_INNER} are safe")
    real, no_bias = follow_in_float(view, core, support), np.zeros(1, np.float32)
    result = FloatResult(name=real.output.name, shape=shape, bias=no_bias, bias_name="", low=real.low, high=real.high)
    return Region(
        core=core,
        output=real.output,
        members=tuple(dict.fromkeys((*a.members, *b.members, core, *real.members))),
        inputs=tuple(dict.fromkeys((a.source, b.source))),
        op=RowBatchMatmulOp(a=dynamic_tensor(a), b=dynamic_tensor(b, by_column=True), y=result),
    )


def _of_width(support: OpSupport, params: QuantParams) -> OpSupport:
    """Return what `support` offers to products that read `params`: those of 16 bits end in integers."""
    found = of_width(support, params)
    return replace(found, float_output=False) if params.dtype in WIDE else found


def _fixed_point_of(view: DataflowView, end: _End, operands: list[MatmulOperand]) -> FixedPointRounding | Rejection | None:
    """Return how the quantize asks to scale the sums by integers, None where it doesn't."""
    result = end.result
    if not isinstance(result, QuantizedOutput):
        return None
    if result.kernel_dtype == "int16" and is_fixed_point(result_rounding(view, end.members)):
        return "reduced"
    if result.fixed_point is None:
        return None
    tensors = [*(each.tensor for each in operands), result.tensor]
    return unscalable(result.fixed_point, {each.name: each.params.scale for each in tensors}) or result.fixed_point


def _overflow_of(operands: list[MatmulOperand], support: OpSupport) -> Overflow | Rejection:
    """Return what becomes of sums that leave the accumulator: "proven" where none does."""
    inner = operands[0].tensor.shape[-1]
    if surpasses(inner, BATCH_MATMUL_MAX_INNER):
        return Rejection(reason=f"sums of {inner} products may exceed int32; at most {BATCH_MATMUL_MAX_INNER} are safe")
    largest, bits = _largest_sum(*operands), support.bits_of(operands[0].tensor.params.dtype)
    if largest < 2 ** (bits - 1):
        return "proven"
    if support.overflow != "proven":
        return cast("Overflow", support.overflow)
    return Rejection(reason=f"its int{bits} accumulator can reach {largest}, above {2 ** (bits - 1) - 1}", matched=True)


def _beyond_int64(op: BatchMatmulOp) -> Rejection | None:
    """Prove that no sum times its fixed-point factor leaves int64."""
    factor, largest = op.multiplier, _largest_sum(op.a, op.b)
    assert isinstance(factor, FixedPointMultiplier)
    largest = largest if op.narrow is None else min(largest, -op.narrow.bounds[0])
    if largest <= factor.max_value:
        return None
    names = f"{op.a.tensor.name} @ {op.b.tensor.name}"
    reason = f"a sum of {names} can reach {largest}; its factor allows {factor.max_value} in 64 bits"
    return Rejection(reason=reason, matched=True)


def _largest_sum(a: MatmulOperand, b: MatmulOperand) -> int:
    """Return the largest |sum of products| that any integers of the operands have."""
    reach = bounded(a.tensor.shape[-1], BATCH_MATMUL_MAX_INNER)
    for params in (a.tensor.params, b.tensor.params):
        low, high = INTEGER_RANGE[params.dtype]
        reach *= max(high - int(params.zero_point), int(params.zero_point) - low)
    return reach


def _rearranged(view: DataflowView, expr: Expr) -> Dequantized | None:
    """Return a constant of one scale that was reshaped or transposed after it was dequantized."""
    constant = constant_value(view, expr)
    if constant is None or constant.scale is None or constant.zero_point is None or not constant.values.size:
        return None
    scale, zero_point = constant.scale.flat[0], constant.zero_point.flat[0]
    if (constant.scale != scale).any() or (constant.zero_point != zero_point).any():
        return None
    params = QuantParams.per_tensor(str(constant.values.dtype), float(scale), int(zero_point))
    return Dequantized(source=expr, params=params, var=None)


def _entry(side: Dequantized | CenteredInput) -> tuple[Var, ...]:
    if isinstance(side, CenteredInput):
        return side.members
    return () if side.var is None else (side.var,)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _End:
    """What the sums end in: the variables passed, the last of them, the result, and the real value of one unit of the sums."""

    members: tuple[Var, ...]
    output: Var
    result: QuantizedOutput | FloatResult | SumResult
    unit: float


def _end(view: DataflowView, core: Var, sides: list[Dequantized | CenteredInput], support: OpSupport) -> _End | Rejection:
    """Walk from the sums to the quantize of the result; where there is none, to where it is read in float, or in int32."""
    start, passed, shape = core, (), static_shape(core)
    scales = [np.float32(side.params.scale) for side in sides]
    unit = float(scales[0] * scales[1])
    if isinstance(sides[0], CenteredInput):
        scaling = follow_scaling(view, core, sides[0], -1) if support.float_output else None
        if scaling is None or np.ptp(scaling.factor) != 0:
            if not support.sum_output or shape is None:
                return Rejection(reason=f"the int32 result {core.name} is read as it is, not scaled to float")
            return _End(members=(), output=core, result=SumResult(name=core.name, shape=shape), unit=1.0)
        start, passed, unit = scaling.output, scaling.members, float(scaling.factor[0])
    tail = follow_to_quantize(view, start, support)
    if not isinstance(tail, Rejection):
        return _End(members=(*passed, *tail.members), output=tail.output, result=tail.result, unit=unit)
    if not support.float_output or dtype_of(start) != "float32" or shape is None:
        return tail
    real = follow_in_float(view, start, support)
    no_bias = np.zeros(1, np.float32)
    result = FloatResult(name=real.output.name, shape=shape, bias=no_bias, bias_name="", low=real.low, high=real.high)
    return _End(members=(*passed, *real.members), output=real.output, result=result, unit=unit)


def match_float_batch_matmul(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim matmul(a, b) of float32 tensors, one of them maybe a constant, the permutations around it and a factor behind it.

    So it does reshapes of rows, before and behind it, by which heads that share a matrix become one.

    Before::

        q = R.permute_dims(x, (0, 2, 1, 3)); s = R.matmul(q, k); t = R.divide(s, R.const(8))

    After: one composite "octavo.float_batch_matmul" from x and k to t.
    """
    call: Any = view.definition(core)
    shape = static_shape(core)
    if shape is None or 0 in shape or {dtype_of(core), *(dtype_of(arg) for arg in call.args)} != {"float32"}:
        return Rejection(reason=f"{core.name} is not a float32 product of static shape")
    operands = [_operand(view, core, arg) for arg in call.args]
    known = [operand for operand in operands if operand is not None]
    if len(known) < 2:
        return Rejection(reason=f"an operand of {core.name} has no static shape or fewer than two axes")
    (a, a_view, a_members), (b, b_view, b_members) = known
    read = [source for source in (a, b) if isinstance(source, Var)]
    if not read:
        return Rejection(reason="both operands are constants; fold them")
    result, members = _reshaped_behind(view, core)
    factor, output, scaled = _factor(view, result)
    members = (*members, *scaled)
    permuted = _permutation_behind(view, output) if result.same_as(core) else None
    y_view = MatrixView.plain(shape)
    if permuted is not None:
        output, axes = permuted
        members = (*members, output)
        y_view = MatrixView(shape=shape, axes=tuple(int(axis) for axis in np.argsort(axes)))
    result_shape = static_shape(output)
    assert result_shape is not None, "a permutation of a static shape is one"
    op = FloatBatchMatmulOp(
        op="matmul",
        a=a.name if isinstance(a, Var) else a,
        b=b.name if isinstance(b, Var) else b,
        a_view=a_view,
        b_view=b_view,
        y_view=y_view,
        factor=factor,
        output_shape=result_shape,
    )
    within = tuple(dict.fromkeys((*a_members, *b_members, core, *members)))
    return Region(core=core, output=output, members=within, inputs=tuple(dict.fromkeys(read)), op=op)


_Read = tuple[Var | npt.NDArray[np.float32], MatrixView, tuple[Var, ...]]
"""The variable or the numbers that an operand is, how they are read, and the permutation that this makes superfluous."""


def _operand(view: DataflowView, core: Var, arg: Expr) -> _Read | None:
    """Return what a product reads as one of its operands."""
    shape = static_shape(arg)
    if shape is None or len(shape) < 2:
        return None
    constant = constant_value(view, arg)
    if constant is not None:
        return real_values(constant), MatrixView.plain(shape), constant.members
    if not isinstance(arg, Var):
        return None
    only, mover = view.only_user(arg), call_to(view.definition(arg), "permute_dims", "reshape")
    x = None if mover is None else mover.args[0]
    if mover is None or not isinstance(x, Var) or only is None or not only.same_as(core):
        return arg, MatrixView.plain(shape), ()
    permute = call_to(mover, "permute_dims")
    if permute is None:
        is_of_rows = _has_columns(x, shape) and constant_value(view, x) is None
        return (x, MatrixView.plain(shape), (arg,)) if is_of_rows else (arg, MatrixView.plain(shape), ())
    order = permute.attrs.axes
    axes = tuple(range(len(shape))[::-1] if order is None else (int(axis) % len(shape) for axis in order))
    return permute.args[0], MatrixView(shape=shape, axes=axes), (arg,)


def _factor(view: DataflowView, core: Var) -> tuple[float, Var, tuple[Var, ...]]:
    """Return what the product is multiplied by, the variable of the result, and the variables that this takes in."""
    user = view.only_user(core)
    call = None if user is None else call_to(view.definition(user), "divide", "multiply")
    if user is None or call is None or static_shape(user) != static_shape(core):
        return 1.0, core, ()
    others = [arg for arg in call.args if not (isinstance(arg, Var) and arg.same_as(core))]
    value = numpy_constant(view.definition(others[0])) if len(others) == 1 else None
    is_division = op_name(call) == "divide"
    if value is None or value.size != 1 or (is_division and not core.same_as(call.args[0])):
        return 1.0, core, ()
    number = float(value.reshape(()))
    if is_division and number == 0.0:
        return 1.0, core, ()
    return (1.0 / number if is_division else number), user, (user,)


def _reshaped_behind(view: DataflowView, core: Var) -> tuple[Var, tuple[Var, ...]]:
    """Return the reshape of its rows that alone reads a product, which is another result of the same bytes; else the product."""
    user, shape = view.only_user(core), static_shape(core)
    reshape = None if user is None else call_to(view.definition(user), "reshape")
    is_of_rows = user is not None and reshape is not None and shape is not None and _has_columns(user, shape)
    return (user, (user,)) if user is not None and is_of_rows else (core, ())


def _has_columns(var: Var, shape: tuple[int, ...]) -> bool:
    """Return whether a variable of two axes or more has the columns of a shape."""
    own = static_shape(var)
    return own is not None and len(own) >= 2 and own[-1] == shape[-1]


def _permutation_behind(view: DataflowView, var: Var) -> tuple[Var, tuple[int, ...]] | None:
    """Return the permutation that alone reads `var` and leaves its last axis in place, and its axes."""
    user = view.only_user(var)
    permute = None if user is None else call_to(view.definition(user), "permute_dims")
    shape = static_shape(var)
    if user is None or permute is None or permute.attrs.axes is None or shape is None:
        return None
    axes = tuple(int(axis) % len(shape) for axis in permute.attrs.axes)
    return (user, axes) if axes[-1] == len(shape) - 1 else None
