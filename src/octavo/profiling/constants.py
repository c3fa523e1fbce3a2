"""Statistics of a model's float constants: its weights, biases and whatever else it holds. No sample is needed for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm.relax import Expr, Var

from ..ir.graph import Model
from ..ir.graph.dataflow import DataflowView, call_to, op_name
from ..ir.identity import TensorEntry, TensorId
from ..target.op_facts import FACTS, WEIGHTED, weight_axis
from .statistics import TensorStatistics, constant_statistics

Selected = Callable[[TensorEntry], bool]
"""Whether a tensor is to be profiled."""


def profile_constants(model: Model, selected: Selected) -> dict[TensorId, TensorStatistics]:
    """Return the statistics of the selected float constants, in the order of the model."""
    axes = _channel_axes(model)
    statistics: dict[TensorId, TensorStatistics] = {}
    for name, value in model.params.items():
        entry = model.tensors.get(name)
        if entry is not None and value.dtype.kind == "f" and selected(entry):
            axis = axes.get(name)
            statistics[entry.id] = constant_statistics(entry, value, axis if axis is not None and axis < value.ndim else None)
    return statistics


def _channel_axes(model: Model) -> dict[TensorId, int]:
    """Return the axis of the output channels of each constant that a convolution or matmul reads as its weight."""
    view = DataflowView(model.module["main"])
    axes: dict[TensorId, int] = {}
    for binding in view.bindings:
        call: Any = call_to(binding.value, *WEIGHTED)
        if call is None:
            continue
        operand = call.args[FACTS[op_name(call)].weight]
        weight, axis = _source(view, operand, weight_axis(call.attrs, len(operand.ty.shape.values)))
        if weight is not None and axis is not None:
            axes.setdefault(TensorId(weight.name), axis)
    return axes


def _source(view: DataflowView, expr: Expr, axis: int | None) -> tuple[Var | None, int | None]:
    """Follow a weight through transpositions to where it comes from, and the axis with it."""
    while axis is not None:
        value = view.definition(expr)
        call: Any = call_to(value, "permute_dims")
        if call is None:
            bound = view.binding_of(expr)
            found = expr if bound is None else bound
            return (found if isinstance(found, Var) else None), axis
        order = call.attrs.axes
        dimensions = len(call.ty.shape.values)
        axis = dimensions - 1 - axis if order is None else int(order[axis])
        expr = call.args[0]
    return None, None
