"""Write batch normalizations of dequantized values as what integer kernels compute: a product and a sum by channel.

Before::

    x = R.dequantize(x_q, ...); n = R.nn.batch_norm(x, gamma, beta, mean, variance); y = n[0]

After::

    y_product = R.multiply(x, factor); y = R.add(y_product, shift)                 # factor = gamma / sqrt(variance + epsilon)

A convolution absorbs its normalization before anything is quantized; this is for those behind a concatenation or an addition, as
DenseNet and residual networks with normalization first have them. Requires constants bound. Ensures that y keeps its variable;
normalizations of float values, and those that still collect statistics, stay as they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import tvm
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import BodyWriter, DataflowView, Renewed, call_to, view_of_main, with_values
from ...ir.identity import NameSupply
from ...ir.qdq.batch_norm import Line, line_of
from ...ir.qdq.values import dequantized
from ...ir.untyped import relax


def decompose_batch_norm(module: tvm.IRModule) -> tvm.IRModule:
    """Write a batch normalization of dequantized values as a product and a sum by channel, which have integer kernels."""
    view = view_of_main(module)
    names = NameSupply(view.variables)

    def steps(var: Var, line: Line, writer: BodyWriter, renewed: Renewed) -> Expr:
        product = relax.op.multiply(renewed(line.x), relax.const(line.factor))
        return relax.op.add(writer.emit(names.fresh(f"{var.name}_product"), product), relax.const(line.shift))

    lines = {binding.var: line for binding in view.bindings if (line := _line(view, binding.var)) is not None}
    return with_values(module, view, {var: partial(steps, var, line) for var, line in lines.items()})


def _line(view: DataflowView, var: Var) -> Line | None:
    item = view.definition(var)
    if not isinstance(item, relax.TupleGetItem) or item.index != 0:
        return None
    norm: Any = call_to(view.definition(item.tuple_value), "nn.batch_norm")
    return None if norm is None or dequantized(view, norm.args[0]) is None else line_of(view, norm)
