"""Rules of the float32 ops of transformers: the product of two activations, softmax and layer normalization over the last axis.

A product reads operands that were only permuted (heads split off) where they lie, writes a permuted result in its place, and
takes a factor behind it along. Nothing of it is quantized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.relax import Expr, Var

from ...composites.base import CompositeOp
from ...composites.float_ops import FloatBatchMatmulOp, FloatLayerNormOp, FloatSoftmaxOp
from ...composites.matrix_view import MatrixView
from ...graph.dataflow import DataflowView, call_to, dtype_of, op_name, static_shape
from ...graph.rules import Region, Rejection
from ..values import constant_value, numpy_constant, real_values
from .float_tail import constants_behind


def match_float_batch_matmul(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim matmul(a, b) of two float32 activations, the permutations around it and a factor behind it.

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
        return Rejection(reason=f"an operand of {core.name} is a constant, has no static shape or fewer than two axes")
    (a, a_view, a_members), (b, b_view, b_members) = known
    factor, output, members = _factor(view, core)
    permuted = _permutation_behind(view, output)
    y_view = MatrixView.plain(shape)
    if permuted is not None:
        output, axes = permuted
        members = (*members, output)
        y_view = MatrixView(shape=shape, axes=tuple(int(axis) for axis in np.argsort(axes)))
    result_shape = static_shape(output)
    assert result_shape is not None, "a permutation of a static shape is one"
    op = FloatBatchMatmulOp(
        op="matmul",
        a=a.name,
        b=b.name,
        a_view=a_view,
        b_view=b_view,
        y_view=y_view,
        factor=factor,
        output_shape=result_shape,
    )
    within = tuple(dict.fromkeys((*a_members, *b_members, core, *members)))
    return Region(core=core, output=output, members=within, inputs=tuple(dict.fromkeys((a, b))), op=op)


def _operand(view: DataflowView, core: Var, arg: Expr) -> tuple[Var, MatrixView, tuple[Var, ...]] | None:
    """Return the variable that is read, how, and the permutation that this makes superfluous."""
    shape = static_shape(arg)
    if not isinstance(arg, Var) or shape is None or len(shape) < 2 or constant_value(view, arg) is not None:
        return None
    permute = call_to(view.definition(arg), "permute_dims")
    if permute is None or permute.attrs.axes is None or not isinstance(permute.args[0], Var):
        return arg, MatrixView.plain(shape), ()
    only = view.only_user(arg)
    if only is None or not only.same_as(core):
        return arg, MatrixView.plain(shape), ()
    axes = tuple(int(axis) % len(shape) for axis in permute.attrs.axes)
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


def _permutation_behind(view: DataflowView, var: Var) -> tuple[Var, tuple[int, ...]] | None:
    """Return the permutation that alone reads `var` and leaves its last axis in place, and its axes."""
    user = view.only_user(var)
    permute = None if user is None else call_to(view.definition(user), "permute_dims")
    shape = static_shape(var)
    if user is None or permute is None or permute.attrs.axes is None or shape is None:
        return None
    axes = tuple(int(axis) % len(shape) for axis in permute.attrs.axes)
    return (user, axes) if axes[-1] == len(shape) - 1 else None


def match_float_softmax(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim softmax of float32 over the last axis."""
    call: Any = view.definition(core)
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or shape is None or 0 in shape or not shape or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name} is not a float32 softmax of static shape")
    if int(call.attrs.axis) % len(shape) != len(shape) - 1 or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is not over the last axis of an activation")
    op = FloatSoftmaxOp(op="nn.softmax", x=x.name, shape=shape)
    return Region(core=core, output=core, members=(core,), inputs=(x,), op=op)


def match_float_layer_norm(view: DataflowView, core: Var) -> Region[CompositeOp] | Rejection:
    """Claim layer_norm of float32 over the last axis, its factors and addends constants."""
    call: Any = view.definition(core)
    x, shape = call.args[0], static_shape(core)
    if not isinstance(x, Var) or not shape or 0 in shape or dtype_of(core) != "float32":
        return Rejection(reason=f"{core.name} is not a float32 normalization of static shape")
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1] or constant_value(view, x) is not None:
        return Rejection(reason=f"{core.name} is not over the last axis of an activation")
    constants = [constant_value(view, arg) for arg in call.args[1:3]]
    known = [real_values(constant).reshape(-1) for constant in constants if constant is not None]
    if len(known) < 2 or any(values.shape != shape[-1:] for values in known):
        return Rejection(reason=f"a factor or an addend of {core.name} is not a constant")
    gamma, beta = (np.ascontiguousarray(values, np.float32) for values in known)
    op = FloatLayerNormOp(
        op="nn.layer_norm",
        x=x.name,
        shape=shape,
        gamma=gamma if call.attrs.scale else np.ones_like(gamma),
        beta=beta if call.attrs.center else np.zeros_like(beta),
        epsilon=float(call.attrs.epsilon),
    )
    members = (*constants_behind(view, call), core)
    return Region(core=core, output=core, members=members, inputs=(x,), op=op)
