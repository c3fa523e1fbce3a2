"""Which source tensors a quantized model computes on the way from one quantized tensor to the next: its fused blocks.

A block ends with a quantized tensor and holds every tensor of the source between there and the quantized tensors that it reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, TupleGetItem, Var

from ...ir.graph import Model
from ...ir.graph.dataflow import DataflowView, call_to, dtype_of, operand_vars
from ...ir.identity import TensorId
from ...ir.simplify import rows_as_images
from ...quantizer.plan.plan import QuantizedModel
from .source_names import equalized_tensors

Factors = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoldedNorm:
    """A batch normalization that `quantize` folded into the convolution before it; variables of both modules.

    Parameters
    ----------
    gone
        The convolution's own output, which the quantized model has scaled by a factor for each channel and without its bias.
    norm
        The call of the float module that normalizes it.
    source_conv, made
        The float module's convolution: `gone` itself, or what a bias is added to, and how `gone` is made of it.
    scaled_conv
        The quantized module's convolution.
    divisors
        By what its channels are divided besides, None for nothing.
    """

    gone: TensorId
    norm: Any
    source_conv: Var
    made: Expr
    scaled_conv: Var
    divisors: Factors | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """The tensors that a quantized model shares with its source.

    Parameters
    ----------
    quantized
        The ids that are quantized, in order.
    inner
        The ids that are computed within blocks, in order.
    members
        Quantized id -> the inner ids that it is computed from within its block.
    norms
        Of `inner`, those that exist only scaled.
    divisors
        By what the quantized model has the channels of tensors divided, by id.
    """

    quantized: tuple[TensorId, ...]
    inner: tuple[TensorId, ...]
    members: dict[TensorId, tuple[TensorId, ...]]
    norms: dict[TensorId, FoldedNorm]
    divisors: Mapping[TensorId, Factors]


def float_function(model: Model, quantized: Model) -> DataflowView:
    """Return that of a float model, with rows as images where the quantized one has them so."""
    folds = quantized.plan.folds if isinstance(quantized, QuantizedModel) else ()
    return DataflowView(rows_as_images(model.bound(), model.tensors, folds)[0]["main"])


def find_blocks(model: Model, floats: DataflowView, quantized: Model, view: DataflowView) -> Blocks:
    """Find the blocks of `quantized` (its function: `view`), which was made of the float `model` (its function: `floats`)."""
    names = {var.name for var in floats.function.params} | {binding.var.name for binding in floats.bindings}
    shared = {tensor for tensor in model.tensors if tensor in names}
    ids = quantized_ids(view, shared)
    norms = {norm.gone: norm for norm in find_norms(quantized, floats, view) if norm.gone in shared}
    by_conv = {norm.scaled_conv: norm.gone for norm in norms.values()}
    reads = _inner_reads(view, shared, set(ids), by_conv)
    members = {
        tensor: block
        for tensor in ids
        if (block := tuple(each for each in reads.get(tensor, ()) if steps_between(floats, each, tensor, ids)))
    }
    inner = dict.fromkeys(tensor for binding in view.bindings for tensor in _named(binding.var, by_conv))
    within = {tensor for block in members.values() for tensor in block}
    return Blocks(
        quantized=ids,
        inner=tuple(tensor for tensor in inner if tensor in within),
        members=members,
        norms={tensor: norm for tensor, norm in norms.items() if tensor in within},
        divisors={key: value for key, value in _divisors(model, quantized).items() if key in within or key in ids},
    )


def steps_between(floats: DataflowView, member: TensorId, result: TensorId, ids: Collection[TensorId]) -> list[relax.VarBinding]:
    """Return the bindings that lead from one tensor of the float function to another without passing one of `ids`, in order."""
    reached: set[str] = {member}
    steps: list[relax.VarBinding] = []
    for binding in floats.bindings:
        name = binding.var.name
        if (name in ids and name != result) or not any(operand.name in reached for operand in operand_vars(binding.value)):
            continue
        reached.add(name)
        steps.append(binding)
        if name == result:
            return steps
    return []


def quantized_ids(view: DataflowView, shared: Collection[TensorId]) -> tuple[TensorId, ...]:
    """Return the tensors of `shared` that a function quantizes, in order."""
    found = [
        TensorId(call.args[0].name)
        for binding in view.bindings
        if (call := call_to(binding.value, "quantize")) is not None and isinstance(call.args[0], Var)
    ]
    # An op that the frontend writes as several has tensors between them, which the source doesn't know.
    return tuple(tensor for tensor in dict.fromkeys(found) if tensor in shared)


def _named(var: Var, by_conv: dict[Var, TensorId]) -> Iterable[TensorId]:
    """Return the ids that a variable of the quantized module stands for."""
    return (by_conv[var],) if var in by_conv else (TensorId(var.name),)


def _inner_reads(
    view: DataflowView, shared: Collection[TensorId], ids: Collection[TensorId], by_conv: dict[Var, TensorId]
) -> dict[TensorId, dict[TensorId, None]]:
    """Return for each quantized id the source tensors it is computed from without passing a quantize, in order.

    A value that no quantized one leads to (a weight, what a float part computes) belongs to no block.
    """
    within: dict[Var, dict[TensorId, None]] = {}
    is_quantized: set[Var] = set()
    found: dict[TensorId, dict[TensorId, None]] = {}
    for binding in view.bindings:
        var, call = binding.var, call_to(binding.value, "quantize", "dequantize")
        if call is not None:
            if isinstance(call.args[0], Var) and (call.args[0] in is_quantized or call.args[0].name in ids):
                is_quantized.add(var)
            continue
        operands = operand_vars(binding.value)
        if not any(operand in is_quantized for operand in operands):
            continue
        is_quantized.add(var)
        reads = {tensor: None for operand in operands for tensor in within.get(operand, {})}
        names = [tensor for tensor in _named(var, by_conv) if tensor in shared and dtype_of(var).startswith("float")]
        found |= {tensor: reads for tensor in names if tensor in ids}
        ends = any(tensor in ids for tensor in names)
        within[var] = {} if ends else {**reads, **dict.fromkeys(names)}
    return found


def _divisors(model: Model, quantized: Model) -> Mapping[TensorId, Factors]:
    """Return by what tensors of the float `model` are divided in the quantized one, which may be a file that says so."""
    if isinstance(quantized, QuantizedModel):
        return quantized.plan.equalization.factors
    found = ((model.tensors.find(each.source_name), each.factors) for each in equalized_tensors(quantized).values())
    return {tensor: factors for tensor, factors in found if tensor is not None}


def find_norms(quantized: Model, floats: DataflowView, view: DataflowView) -> Iterable[FoldedNorm]:
    """Yield the normalizations of the float module that were folded into convolutions, which `view` has."""
    if not isinstance(quantized, QuantizedModel):
        return
    source = {binding.var.name: binding.var for binding in floats.bindings}
    now = {binding.var.name: binding.var for binding in view.bindings}
    for fold in quantized.plan.folds:
        if fold.op != "nn.batch_norm" or fold.tensor not in source or fold.tensor not in now:
            continue
        item = floats.definition(source[fold.tensor])
        norm = call_to(floats.definition(item.tuple_value), "nn.batch_norm") if isinstance(item, TupleGetItem) else None
        source_conv = _convolution(floats, source.get(fold.gone))
        scaled_conv = _convolution(view, now[fold.tensor])
        if norm is not None and source_conv is not None and scaled_conv is not None:
            made = floats.definition(source[fold.gone])
            yield FoldedNorm(
                gone=fold.gone,
                norm=norm,
                source_conv=source_conv,
                made=made,
                scaled_conv=scaled_conv,
                divisors=quantized.plan.equalization.factors.get(TensorId(scaled_conv.name)),
            )


def _convolution(view: DataflowView, var: Var | None) -> Var | None:
    """Return the convolution that `var` is, or that it adds a bias to."""
    made = None if var is None else view.binding_of(var)
    value: Expr | None = None if made is None else view.definition(made)
    if call_to(value, "nn.conv2d") is not None:
        return made
    added = call_to(value, "add")
    if added is None:
        return None
    convs = [view.binding_of(arg) for arg in added.args]
    return next((conv for conv in convs if conv is not None and call_to(view.definition(conv), "nn.conv2d") is not None), None)
