"""Batch normalizations of dequantized values, written as what integer kernels compute: a product and a sum by channel.

Before::

    x = R.dequantize(x_q, ...); n = R.nn.batch_norm(x, gamma, beta, mean, variance); y = n[0]

After::

    y_product = R.multiply(x, factor); y = R.add(y_product, shift)                 # factor = gamma / sqrt(variance + epsilon)

A convolution absorbs its normalization before anything is quantized; this is for those behind a concatenation or an addition, as
DenseNet and residual networks with normalization first have them. Requires constants bound. Ensures that y keeps its variable;
normalizations of float values, and those that still collect statistics, stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax as _relax
from tvm.relax import Expr, Var

from ..graph.dataflow import (
    BodyWriter,
    DataflowView,
    attrs_of,
    call_to,
    dtype_of,
    eliminate_dead_code,
    replace_operands,
    static_shape,
    write_function,
)
from ..identity import NameSupply
from ..numerics.floats.batch_norm import fold_batch_norm
from .cluster import real_of
from .values import constant_value, dequantized

# TVM annotates its functions more narrowly than what they take (shapes as one-element tuples, say).
relax: Any = _relax


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Line:
    """x * factor + shift; both float32, of one element for each channel, aligned with x."""

    x: Expr
    factor: npt.NDArray[np.float32]
    shift: npt.NDArray[np.float32]


def normalizations_as_sums(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the normalizations of "main" that read dequantized values."""
    main = module["main"]
    view = DataflowView(main)
    found = {binding.var: line for binding in view.bindings if (line := _line(view, binding.var)) is not None}
    if not found:
        return module
    names = NameSupply([*(param.name for param in main.params), *(binding.var.name for binding in view.bindings)])
    new: dict[Var, Expr] = {}

    def renewed(var: Var) -> Expr:
        return new.get(var, var)

    def body(writer: BodyWriter) -> Expr:
        for binding in view.bindings:
            var, line = binding.var, found.get(binding.var)
            value = replace_operands(binding.value, renewed)
            if line is not None:
                product = relax.op.multiply(replace_operands(line.x, renewed), relax.const(line.factor))
                value = relax.op.add(writer.emit(names.fresh(f"{var.name}_product"), product), relax.const(line.shift))
            new[var] = writer.emit(var.name, value, is_output=not isinstance(var, relax.DataflowVar))
        return replace_operands(view.result, renewed)

    builder = relax.BlockBuilder()
    write_function(builder, "main", list(main.params), body, attrs_of(main))
    result = module.clone()
    result.update_func(result.get_global_var("main"), builder.get()["main"])
    return eliminate_dead_code(result)


def _line(view: DataflowView, var: Var) -> Line | None:
    item = view.definition(var)
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    norm: Any = call_to(view.definition(item.tuple_value), "nn.batch_norm")
    return None if norm is None or dequantized(view, norm.args[0]) is None else line_of(view, norm)


def line_of(view: DataflowView, norm: Any) -> Line | None:
    """Return a call of batch_norm as a product and a sum; None where it trains, is not float32 or has factors that vary."""
    shape = static_shape(norm.args[0])
    if norm.attrs.training or shape is None or dtype_of(norm.args[0]) != "float32":
        return None
    constants = [constant_value(view, arg) for arg in norm.args[1:]]
    if any(constant is None for constant in constants):
        return None
    gamma, beta, mean, variance = (real_of(constant).reshape(-1) for constant in constants if constant is not None)
    gamma = gamma if norm.attrs.scale else np.ones_like(gamma)
    beta = beta if norm.attrs.center else np.zeros_like(beta)
    with np.errstate(all="ignore"):
        # That of a convolution by 1, without bias.
        one = np.ones_like(gamma)
        factor, shift = fold_batch_norm(one, None, gamma, beta, mean, variance, epsilon=float(norm.attrs.epsilon), axis=0)
    if not (np.isfinite(factor).all() and np.isfinite(shift).all()):
        return None
    along = [1] * len(shape)
    along[int(norm.attrs.axis) % len(shape)] = -1
    return Line(x=norm.args[0], factor=factor.reshape(along), shift=shift.reshape(along))
