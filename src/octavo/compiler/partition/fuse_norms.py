"""Write normalizations by layer or by group, where they stand in steps, as the one op that they are: it has kernels.

Before::

    m = R.mean(x, axis=[-1], keepdims=True); d = R.subtract(x, m); v = R.mean(R.power(d, 2), axis=[-1], keepdims=True)
    y = R.add(R.multiply(R.divide(d, R.sqrt(R.add(v, epsilon))), gamma), beta)

After::

    y = R.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=...)

Quantizing does so, too; this is for files that were quantized already, ours among them, which repeat the steps of their source.
Requires constants bound. Ensures that y keeps its variable; normalizations of which something else reads a step stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import (
    DataflowView,
    static_shape,
    view_of_main,
    with_values,
)
from ...ir.graph.group_norm import ConstantOf, GroupNorm, read_group_norm
from ...ir.graph.layer_norm import PlainNorm, plain_layer_norm
from ...ir.qdq.values import constant_value, real_values
from ...ir.untyped import relax


def fuse_norms(module: tvm.IRModule) -> tvm.IRModule:
    """Write a normalization by layer or by group that stands in steps as the one op that it is, which has kernels."""
    view = view_of_main(module)

    def constant(expr: Expr) -> npt.NDArray[Any] | None:
        found = constant_value(view, expr)
        return None if found is None else real_values(found)

    norms = [norm for binding in view.bindings if (norm := _fused(view, binding.var, constant)) is not None]
    return with_values(module, view, {var: lambda _, renewed, made=made: renewed(made()) for var, made in norms})


def _fused(view: DataflowView, var: Var, constant: ConstantOf) -> tuple[Var, Callable[[], Expr]] | None:
    """Return the result of a normalization whose last step, or whose core, is `var`, and what makes it in one op."""
    layer = plain_layer_norm(view, var, constant)
    if layer is not None:
        return var, lambda: _layer_norm(layer, constant)
    group = read_group_norm(view, var, constant)
    return None if group is None or len(group.members) == 1 else (group.output, lambda: _group_norm(group))


def _layer_norm(norm: PlainNorm, constant: ConstantOf) -> Expr:
    ends = (end if len(static_shape(end) or ()) == 1 else _row(constant(end)) for end in (norm.gamma, norm.beta))
    return relax.op.nn.layer_norm(norm.data, *ends, axes=[-1], epsilon=norm.epsilon)


def _row(values: npt.NDArray[Any] | None) -> Expr:
    assert values is not None, "it was read"
    return relax.const(values.reshape(-1))


def _group_norm(norm: GroupNorm) -> Expr:
    axes = [axis for axis in range(1, len(static_shape(norm.data) or ())) if axis != norm.channel_axis]
    ends = (relax.const(norm.gamma), relax.const(norm.beta))
    return relax.op.nn.group_norm(norm.data, *ends, norm.groups, norm.channel_axis, axes, norm.epsilon)
