"""What a plan costs in time, by the modelled cycles of its ops, and what outputs must gain for more of it. It runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import prod

from tvm import relax

from ..compiler.explanation import FLOAT_BYTES, FLOAT_MACS, INT8_MACS, memory_cycles, model_cycles, read_anew
from ..ir.graph.dataflow import DataflowView, operand_vars, static_shape
from ..ir.graph.macs import float_macs
from ..ir.identity import TensorId
from ..ir.qdq.matchers.elementwise.float_chain import chain_from
from ..ir.qdq.matchers.elementwise.function_tail import SLOW
from ..runtime.shapes import typical
from ..target import ELEMENTWISE
from .plan import QuantizationPlan
from .plan.entries import IntegerLayer

_DB = 10.0
"""What outputs must gain for as much time again as a model takes; of a little time so much less."""
_OPERATIONS = 64
"""On single elements in a cycle of two 512-bit units, less what the table's pass over them would take."""


def worth_db(view: DataflowView, before: QuantizationPlan, after: QuantizationPlan) -> float:
    """Return the gain in dB that the time is worth which one plan takes more than another; 0 where it takes none."""
    return max(_DB * slower(view, before, after), 0.0)


def slower(view: DataflowView, before: QuantizationPlan, after: QuantizationPlan) -> float:
    """Return by how much longer a model takes with one plan than with another, in shares of that."""
    return _cycles(view, after) / max(_cycles(view, before), 1.0) - 1.0


def _cycles(view: DataflowView, plan: QuantizationPlan) -> float:
    """Return the modelled cycles of a float model of which all is integer but what a plan leaves float."""
    floats = {each.tensor for each in plan.float_ops}
    sizes = {binding.var.name: size_of(binding.var) for binding in view.bindings}
    read = {name for layer in plan.layers for name in layer.inputs}
    functions = function_cycles(view, plan.layers, read - plan.activations.keys())
    products = sum(float_macs(binding.value) for binding in view.bindings if binding.var.name in floats)
    # What reads reals leaves float32, and quantizes in a pass of its own.
    of_rows = [layer for layer in plan.layers if layer.reads_reals]
    leaving = (layer.output for layer in plan.layers if layer.reads_reals or layer.leaves_copies)
    reals = [*floats, *leaving, *(name for layer in of_rows for name in layer.inputs)]
    weights = sum(read_anew(binding.value) for binding in view.bindings if binding.var.name in floats)
    more = (FLOAT_BYTES - 1) * memory_cycles(weights + sum(sizes.get(name, 0) for name in reals))
    return model_cycles(view) + products * (1 / FLOAT_MACS - 1 / INT8_MACS) + more + sum(functions.values())


def cycles_in_float(
    view: DataflowView, plan: QuantizationPlan, names: Iterable[TensorId]
) -> dict[TensorId, dict[TensorId, float]]:
    """Return by activation of a plan the ops that become float if it is, by their results, each with the cycles that it adds.

    These are what reads it, and what makes it, but for products: they can leave float32.
    """
    found: dict[TensorId, dict[TensorId, float]] = {name: {} for name in names}
    for layer in plan.layers:
        var = view.variables.get(layer.output)
        if var is None:
            continue
        macs = _macs(view, var, len(layer.fused))
        more = (FLOAT_BYTES - 1) * memory_cycles(size_of(var)) * (1 + len(layer.fused))
        for name in found.keys() & {*layer.inputs, *(() if macs else (layer.output,))}:
            found[name][layer.output] = more + macs * (1 / FLOAT_MACS - 1 / INT8_MACS)
    return found


def _macs(view: DataflowView, var: relax.Var, fused: int) -> int:
    """Return the multiply-accumulates of the op behind which so many are fused, up to a variable."""
    value = view.definition(var)
    own = float_macs(value)
    return own if own or not fused else max((_macs(view, each, fused - 1) for each in operand_vars(value)), default=0)


def function_cycles(view: DataflowView, layers: Iterable[IntegerLayer], names: Collection[TensorId]) -> dict[TensorId, float]:
    """Return which of these results of products a function alone reads, and the cycles that it takes in the product's kernel."""
    variables = {binding.var.name: binding.var for binding in view.bindings}
    found: dict[TensorId, float] = {}
    for layer in layers:
        if layer.op != ELEMENTWISE or len(layer.inputs) != 1:
            continue
        name = layer.inputs[0]
        if name not in names or name not in variables:
            continue
        chain = chain_from(view, variables[name], max_inputs=1)
        if chain is not None and all(step.op != SLOW for step in chain.function.steps):
            found[name] = size_of(variables[name]) * chain.function.operations / _OPERATIONS
    return found


def size_of(var: relax.Expr) -> int:
    """Return how many numbers an expression has, typically."""
    return typical(prod(static_shape(var) or (0,)))
