"""Move quantize before ops that only choose or move values: the op which made these then ends in integers. Computes nothing.

PyTorch's quantizers, among others, quantize what a dense layer reads, behind the pooling and the flattening of a convolution's
result, and nothing in between.

Before::

    a = R.nn.conv2d(x, w); b = R.nn.max_pool2d(a); c = R.nn.relu(b); d = R.reshape(c); y = R.quantize(d, s, z)

After::

    a = R.nn.conv2d(x, w); c_relu = R.nn.relu(a); b_q = R.quantize(c_relu, s, z); c_q = R.nn.max_pool2d(b_q); y = R.reshape(c_q)

Exact: quantize and clamps are monotone and work on each value by itself. A dequantized tensor that is only moved and quantized
again stays as it is, for that is one region already.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import Expr, Var

from ...ir.graph.dataflow import BodyWriter, DataflowView, call_to, dtype_of, replace_operands, view_of_main, with_main
from ...ir.identity import NameSupply
from ...ir.qdq.values import numpy_constant, params_of
from ...numerics import INTEGER_RANGE, PerTensor
from ...target.op_facts import CLAMPS, movers

_MOVES = ("nn.max_pool2d", *movers("view", "transpose"))
"""What stands between a layer and the quantize behind it in practice; before an op that selects, quantize would do more work."""


def hoist_quantize(module: tvm.IRModule) -> tvm.IRModule:
    """Move quantize before ops that only move values, so that the op which made these ends in integers."""
    view = view_of_main(module)
    chains = {binding.var: chain for binding in view.bindings if (chain := _chain(view, binding.var))}
    if not chains:
        return module
    return with_main(module, lambda writer: _write(view, chains, writer))


def _chain(view: DataflowView, var: Var) -> list[Var]:
    """Return the ops between float values and the quantize `var`, in order, if some of them move values; else nothing."""
    quantize = call_to(view.definition(var), "quantize")
    params = None if quantize is None else params_of(quantize, dtype_of(var))
    if quantize is None or params is None or not isinstance(params.granularity, PerTensor) or params.dtype not in INTEGER_RANGE:
        return []
    chain: list[Var] = []
    source: Any = quantize.args[0]
    reader = var
    while isinstance(source, Var) and dtype_of(source) == "float32":
        only, bound = view.only_user(source), view.binding_of(source)
        if only is None or not only.same_as(reader) or bound is None or not bound.same_as(source):
            break
        if call_to(view.definition(source), *_MOVES, *CLAMPS) is None:
            break
        chain.insert(0, source)
        reader, source = source, view.definition(source).args[0]
    while chain and call_to(view.definition(chain[0]), *_MOVES) is None:
        chain.pop(0)  # a clamp that comes first is in its place
    if not chain:
        return []
    first = view.definition(chain[0]).args[0]
    is_constant = numpy_constant(view.definition(first)) is not None
    return [] if is_constant or call_to(view.definition(first), "dequantize") is not None else chain


def _write(view: DataflowView, chains: dict[Var, list[Var]], writer: BodyWriter) -> Expr:
    params = [param.name for param in view.function.params]
    names = NameSupply([*params, *(binding.var.name for binding in view.bindings)])
    moved = {var for chain in chains.values() for var in chain}
    new: dict[Var, Var] = {}

    def substitute(expr: Any) -> Any:
        return replace_operands(expr, lambda var: new.get(var, var))

    def over(call: Any, data: Expr) -> Any:
        return relax.Call(call.op, [data, *(substitute(arg) for arg in call.args[1:])], call.attrs)

    for binding in view.bindings:
        var, value = binding.var, binding.value
        if var in moved:
            continue
        is_output = not isinstance(var, relax.DataflowVar)
        if var not in chains:
            new[var] = writer.emit(var.name, substitute(value), is_output=is_output)
            continue
        calls = {step: view.definition(step) for step in chains[var]}
        clamps = [step for step, call in calls.items() if call_to(call, *CLAMPS) is not None]
        moves = [step for step in calls if step not in clamps]
        source = calls[chains[var][0]].args[0]
        data: Any = substitute(source)
        for step in clamps:
            data = writer.emit(names.fresh(f"{step.name}_clamped"), over(calls[step], data))
        data = writer.emit(names.fresh(f"{source.name}_q"), over(value, data))
        for step in moves[:-1]:
            data = writer.emit(names.fresh(f"{step.name}_q"), over(calls[step], data))
        new[var] = writer.emit(var.name, over(calls[moves[-1]], data), is_output=is_output)
    return substitute(view.result)
