"""Composition: two products of rows quantized when run, and the softmax between them, become one kernel that writes no scores.

Before::

    q = R.permute_dims(x, [0, 2, 1, 3]); s = octavo_batch_matmul(q, k); p = octavo_float_softmax(s, mask)
    y = octavo_batch_matmul_1(p, v); z = R.permute_dims(y, [0, 2, 1, 3])

After::

    z = attention(x, k, v, mask)

Permutations that move heads are read and written through strides. It decides only; nothing is written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm.ir import Call, GlobalVar
from tvm.relax import Var

from ....ir.composites.attention import AttentionOperand, RowAttentionOp
from ....ir.composites.attributes import HOST, Composite
from ....ir.composites.float_ops import FloatSoftmaxOp
from ....ir.composites.matrix_view import MatrixView
from ....ir.composites.weighted import DynamicTensor, RowBatchMatmulOp
from ....ir.graph.dataflow import DataflowView, call_to, operand_vars, static_shape
from ....ir.graph.partition_state import PartitionState
from .compose import Composed
from .kernels import ATTENTION, takes_attention


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Link:
    """A composite of a chain: the variable that its call binds, what it is, and what it reads, by its names."""

    var: Var
    composite: Composite
    operands: dict[str, Var]


def compose_attention(view: DataflowView, composites: Mapping[str, Composite], state: PartitionState, isa: str) -> Composed:
    """Find the products of a softmax's rows, and of what it reads, that a kernel of the ISA computes as one."""
    found = Composed(calls={}, fused={})
    for last in _links(view, composites):
        chain = _chain(view, composites, last) if isinstance(last.composite.op, RowBatchMatmulOp) else None
        if chain is None or any(link.var.name in state.cuts for link in (*chain, last)):
            continue
        scores, softmax = chain
        if takes_attention(scores.composite.op.a.shape[-1], last.composite.op.a.shape[-1], isa=isa):
            found = found.joined(_composed(view, scores, softmax, last))
    return found


def _links(view: DataflowView, composites: Mapping[str, Composite]) -> Iterator[_Link]:
    for binding in view.bindings:
        link = _link(view, composites, binding.var)
        if link is not None:
            yield link


def _link(view: DataflowView, composites: Mapping[str, Composite], var: Var) -> _Link | None:
    value = view.definition(var)
    if not isinstance(value, Call) or not isinstance(value.op, GlobalVar):
        return None
    composite = composites.get(value.op.name_hint)
    if composite is None or composite.backend != HOST:
        return None
    return _Link(var=var, composite=composite, operands=dict(zip(composite.inputs, operand_vars(value), strict=True)))


def _chain(view: DataflowView, composites: Mapping[str, Composite], last: _Link) -> tuple[_Link, _Link] | None:
    """Return the links before a product that nobody else reads: the product that makes scores, and their softmax."""
    softmax = _before(view, composites, last, last.composite.op.a.name)
    if softmax is None or not isinstance(softmax.composite.op, FloatSoftmaxOp) or softmax.composite.op.y is not None:
        return None
    scores = _before(view, composites, softmax, softmax.composite.op.x)
    if scores is None or not isinstance(scores.composite.op, RowBatchMatmulOp):
        return None
    first, second, shape = scores.composite.op, last.composite.op, softmax.composite.op.shape
    is_plain = first.y.shape == shape == second.a.shape and shape[:-2] == second.y.shape[:-2]
    return (scores, softmax) if is_plain else None


def _before(view: DataflowView, composites: Mapping[str, Composite], link: _Link, name: str) -> _Link | None:
    var = link.operands[name]
    user = view.only_user(var)
    return _link(view, composites, var) if user is not None and user.same_as(link.var) else None


def _composed(view: DataflowView, scores: _Link, softmax: _Link, last: _Link) -> Composed:
    first, between, second = scores.composite.op, softmax.composite.op, last.composite.op
    assert isinstance(first, RowBatchMatmulOp)
    assert isinstance(between, FloatSoftmaxOp)
    assert isinstance(second, RowBatchMatmulOp)
    sources = [scores.operands[first.a.name], scores.operands[first.b.name], last.operands[second.b.name]]
    tensors = (first.a, first.b, second.b)
    operands = [_operand(view, *each) for each in zip(sources, tensors, strict=True)]
    output, y_view, y_shape = _result(view, last.var, second.y.shape)
    y = second.y if output.same_as(last.var) else replace(second.y, name=output.name)
    op = RowAttentionOp(
        **dict(zip("qkv", (operand for _, operand in operands), strict=True)),
        scores=first,
        softmax=between,
        weighted=second,
        y=y,
        y_view=y_view,
        y_shape=y_shape,
    )
    addend = {between.addend: softmax.operands[between.addend]} if isinstance(between.addend, str) else {}
    reads = {operand.tensor.name: var for var, operand in operands} | addend
    passed = [var for var in (scores.var, softmax.var, last.var) if not var.same_as(output)]
    moves = [var for var, (read, _) in zip(sources, operands, strict=True) if not var.same_as(read)]
    fused = dict.fromkeys(passed, ATTENTION)
    fused |= {
        var: "" for var in moves if all(user in (*passed, output) for user in view.users(var)) and not view.is_returned(var)
    }
    within = (each.name for each in fused)
    ids = (tensor for link in (scores, softmax, last) for tensor in link.composite.tensor_ids)
    composite = replace(
        last.composite,
        inputs=tuple(reads),
        op=op,
        quantize_info=op.quantize_info(),
        tensor_ids=tuple(dict.fromkeys((*ids, *within))),
    )
    return Composed(calls={output: (composite, tuple(reads.values()))}, fused=fused)


def _operand(view: DataflowView, var: Var, tensor: DynamicTensor) -> tuple[Var, AttentionOperand]:
    """Return the variable that is read in place of an operand, and how: what a permutation made it from, where that will do."""
    shape, along = tensor.shape, -2 if tensor.by_column else -1
    permute = call_to(view.definition(var), "permute_dims")
    source = None if permute is None else permute.args[0]
    lying = static_shape(source) if isinstance(source, Var) else None
    read, axes = var, tuple(range(len(shape)))
    if permute is not None and isinstance(source, Var) and lying is not None and permute.attrs.axes is not None:
        moved = tuple(int(axis) % len(shape) for axis in permute.attrs.axes)
        # Kernels read rows of a along memory.
        if tensor.by_column or moved[-1] == len(shape) - 1:
            read, axes, shape = source, moved, lying
    place = axes[along]
    outer, columns = math.prod(shape[:place]), math.prod(shape[place + 1 :])
    if columns == 1:
        quantized = replace(tensor, name=read.name, shape=shape, scales=outer, by_column=False)
    else:
        quantized = replace(tensor, name=read.name, shape=(outer, shape[place], columns), scales=outer * columns, by_column=True)
    pairs = list(tensor.shape)
    pairs[along] = 2
    parameters = MatrixView(shape=tuple(pairs), axes=axes)
    return read, AttentionOperand(tensor=quantized, view=MatrixView(shape=tensor.shape, axes=axes), parameters=parameters)


def _result(view: DataflowView, var: Var, shape: tuple[int, ...]) -> tuple[Var, MatrixView, tuple[int, ...]]:
    """Return the variable of the result, which a permutation behind it may make, how its matrices lie in it, and its shape."""
    user = view.only_user(var)
    permute = None if user is None else call_to(view.definition(user), "permute_dims")
    lying = None if user is None else static_shape(user)
    if user is None or permute is None or permute.attrs.axes is None or lying is None:
        return var, MatrixView.plain(shape), shape
    axes = [int(axis) % len(shape) for axis in permute.attrs.axes]
    if axes[-1] != len(shape) - 1:
        return var, MatrixView.plain(shape), shape
    return user, MatrixView(shape=shape, axes=tuple(int(axis) for axis in np.argsort(axes))), lying
