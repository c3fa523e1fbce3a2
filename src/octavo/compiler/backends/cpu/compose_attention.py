"""Composition: two products of activations, and the softmax between them, become one kernel that writes no scores.

Heads of keys and values that several queries share are read once for all of them.

Before::

    q = R.permute_dims(x, [0, 2, 1, 3]); s = octavo_batch_matmul(q, k); p = octavo_float_softmax(s, mask)
    y = octavo_batch_matmul_1(p, v); z = R.permute_dims(y, [0, 2, 1, 3])

After::

    z = attention(x, k, v, mask)

So do those of tensors with constant parameters, whose softmax is quantized, and those in float. Of rows quantized when run,
permutations that move heads are read and written through strides. It decides only; nothing is written here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from tvm.ir import Call, GlobalVar
from tvm.relax import Var

from ....ir.composites.attention import AttentionOp, FloatAttentionOp, LyingOperand, LyingProductOp, RowAttentionOp
from ....ir.composites.attributes import HOST, Composite
from ....ir.composites.base import CompositeOp, FloatResult, SumResult
from ....ir.composites.float_ops import FloatBatchMatmulOp, FloatSoftmaxOp
from ....ir.composites.matrix_view import MatrixView
from ....ir.composites.weighted import BatchMatmulOp, DynamicTensor, RowBatchMatmulOp
from ....ir.graph.dataflow import DataflowView, call_to, operand_vars, static_shape
from ....ir.graph.partition_state import PartitionState
from ....ir.graph.repeats import repeated_matrices
from .compose import Composed
from .kernels import ATTENTION, FLOAT_ATTENTION, KNOWN_ATTENTION, TILED_ROWS, takes_attention, takes_views


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Link:
    """A composite of a chain: the variable that its call binds, what it is, and what it reads, by its names."""

    var: Var
    composite: Composite
    operands: dict[str, Var]


def compose_attention(view: DataflowView, composites: Mapping[str, Composite], state: PartitionState, isa: str) -> Composed:
    """Find the products of a softmax's rows, and of what it reads, that a kernel of the ISA computes as one.

    Of other products, find those whose operands are copies of what may be read where it lies.
    """
    attention, products = Composed(calls={}, fused={}), Composed(calls={}, fused={})
    for last in _products(view, composites, state, (RowBatchMatmulOp, BatchMatmulOp)):
        chain = _chain(view, composites, last)
        if chain is None or any(link.var.name in state.cuts for link in chain):
            continue
        if takes_attention(_inner(chain[0]), _inner(last), isa=isa):
            is_known = isinstance(last.composite.op, BatchMatmulOp)
            attention = attention.joined(_known_attention(*chain, last) if is_known else _attention(view, *chain, last))
    for product in _products(view, composites, state, (RowBatchMatmulOp,)):
        is_alone = product.var not in attention.fused and product.var not in attention.calls
        if is_alone and takes_views(_inner(product), isa=isa):
            products = products.joined(_lying_product(view, product))
    for last in _products(view, composites, state, (FloatBatchMatmulOp,)):
        chain = _float_chain(view, composites, last)
        if chain is not None and not any(link.var.name in state.cuts for link in chain):
            attention = attention.joined(_float_attention(*chain, last))
    return attention.joined(products)


def _float_chain(view: DataflowView, composites: Mapping[str, Composite], last: _Link) -> tuple[_Link, _Link] | None:
    """Return the links before a product in float that nobody else reads: the product that makes scores, and their softmax."""
    second = last.composite.op
    assert isinstance(second, FloatBatchMatmulOp)
    if not isinstance(second.a, str) or not isinstance(second.b, str) or second.a == second.b:
        return None
    softmax = _before(view, composites, last, second.a)
    if softmax is None or not isinstance(softmax.composite.op, FloatSoftmaxOp) or not softmax.composite.op.gives_weights:
        return None
    between = softmax.composite.op
    scores = _before(view, composites, softmax, between.x)
    if scores is None or not isinstance(scores.composite.op, FloatBatchMatmulOp) or between.y is not None:
        return None
    first, shape = scores.composite.op, second.a_view.shape
    if not isinstance(first.a, str) or not isinstance(first.b, str):
        return None
    # Its rows may be those of more matrices, of heads that share keys: an addend's place follows from a row's number among all.
    is_plain = first.y_view == MatrixView.plain(shape) == second.a_view and shape[:-2] == second.y_view.shape[:-2]
    return (scores, softmax) if is_plain and between.shape[-1] == shape[-1] else None


def _float_attention(scores: _Link, softmax: _Link, last: _Link) -> Composed:
    first, between, second = scores.composite.op, softmax.composite.op, last.composite.op
    assert isinstance(first, FloatBatchMatmulOp)
    assert isinstance(between, FloatSoftmaxOp)
    assert isinstance(second, FloatBatchMatmulOp)
    operands = scores.operands | softmax.operands | last.operands
    names = [each for each in (first.a, first.b, second.b, between.addend) if isinstance(each, str)]
    op = FloatAttentionOp(op=second.op, scores=first, softmax=between, weighted=second)
    return _stepwise((scores, softmax, last), op, {name: operands[name] for name in names}, FLOAT_ATTENTION)


def _inner(link: _Link) -> int:
    return _left(link)[1][-1]


def _left(link: _Link) -> tuple[str, tuple[int, ...]]:
    """Return name and shape of the left operand of a product."""
    op = link.composite.op
    assert isinstance(op, RowBatchMatmulOp | BatchMatmulOp)
    tensor = op.a if isinstance(op, RowBatchMatmulOp) else op.a.tensor
    return tensor.name, tensor.shape


def _products(
    view: DataflowView, composites: Mapping[str, Composite], state: PartitionState, kinds: tuple[type[CompositeOp], ...]
) -> Iterator[_Link]:
    for binding in view.bindings:
        link = _link(view, composites, binding.var)
        if link is not None and isinstance(link.composite.op, kinds) and link.var.name not in state.cuts:
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
    softmax = _before(view, composites, last, _left(last)[0])
    if softmax is None or not isinstance(softmax.composite.op, FloatSoftmaxOp) or not softmax.composite.op.gives_weights:
        return None
    scores = _before(view, composites, softmax, softmax.composite.op.x)
    if scores is None:
        return None
    first, between, second = scores.composite.op, softmax.composite.op, last.composite.op
    if isinstance(second, BatchMatmulOp):
        if not isinstance(first, BatchMatmulOp) or not isinstance(first.y, FloatResult) or between.y is None:
            return None
        is_made = _is_bytes(first) and _is_bytes(second) and between.y.kernel_dtype == "uint8"
    else:
        is_made = isinstance(first, RowBatchMatmulOp) and between.y is None
    assert isinstance(second, RowBatchMatmulOp | BatchMatmulOp)
    if not is_made or not isinstance(first, RowBatchMatmulOp | BatchMatmulOp):
        return None
    shape = between.shape
    is_plain = first.y.shape == shape == _left(last)[1] and shape[:-2] == second.y.shape[:-2]
    return (scores, softmax) if is_plain else None


def _is_bytes(product: BatchMatmulOp) -> bool:
    """Return whether a product of bytes is scaled in float32, its left operand no constant."""
    is_scaled = product.narrow is None and product.fixed_point is None and not isinstance(product.y, SumResult)
    tensors = (product.a.tensor, product.b.tensor)
    is_byte = all(each.kernel_dtype == "uint8" for each in tensors) and product.y.kernel_dtype in ("uint8", "float32")
    return is_scaled and is_byte and product.a.values is None


def _before(view: DataflowView, composites: Mapping[str, Composite], link: _Link, name: str) -> _Link | None:
    """Return the link that makes an operand, if nobody else reads that; None of a constant."""
    var = link.operands.get(name)
    user = None if var is None else view.only_user(var)
    return _link(view, composites, var) if var is not None and user is not None and user.same_as(link.var) else None


def _attention(view: DataflowView, scores: _Link, softmax: _Link, last: _Link) -> Composed:
    first, between, second = scores.composite.op, softmax.composite.op, last.composite.op
    assert isinstance(first, RowBatchMatmulOp)
    assert isinstance(between, FloatSoftmaxOp)
    assert isinstance(second, RowBatchMatmulOp)
    k, v = _found(view, scores, first.b), _found(view, last, second.b)
    group = k.group if k.group == v.group else 1
    k, v = (each if each.group == group else _Found.plain(each.var) for each in (k, v))
    q = _found(view, scores, first.a) if group == 1 else _Found.plain(scores.operands[first.a.name])
    output, y_view = _result(view, last.var, second.y.shape, group)
    op = RowAttentionOp(
        q=q.operand(first.a, group),
        k=k.operand(first.b, group),
        v=v.operand(second.b, group),
        scores=first,
        softmax=between,
        weighted=second,
        y=second.y if output.same_as(last.var) else replace(second.y, name=output.name),
        y_view=y_view,
    )
    addend = {between.addend: softmax.operands[between.addend]} if isinstance(between.addend, str) else {}
    passed = {var: ATTENTION for var in (scores.var, softmax.var, last.var) if not var.same_as(output)}
    return _composed(view, (scores, softmax, last), op, ((q, k, v), addend), (output, passed))


def _known_attention(scores: _Link, softmax: _Link, last: _Link) -> Composed:
    """Return attention of tensors with constant parameters: where these are only transposed, the kernel's call finds out."""
    first, between, second = scores.composite.op, softmax.composite.op, last.composite.op
    assert isinstance(first, BatchMatmulOp)
    assert isinstance(between, FloatSoftmaxOp)
    assert isinstance(second, BatchMatmulOp)
    operands = scores.operands | softmax.operands | last.operands
    names = [each.tensor.name for each in (first.a, first.b, second.b) if each.values is None]
    names += [between.addend] if isinstance(between.addend, str) else []
    reads = {name: operands[name] for name in names}
    op = AttentionOp(scores=first, softmax=between, weighted=second)
    return _stepwise((scores, softmax, last), op, reads, KNOWN_ATTENTION)


def _stepwise(links: tuple[_Link, _Link, _Link], op: CompositeOp, reads: dict[str, Var], kernel: str) -> Composed:
    """Return the call of an op that links become, which reads and writes what they do."""
    *before, last = links
    ids = (tensor for link in links for tensor in link.composite.tensor_ids)
    composite = replace(
        last.composite,
        inputs=tuple(reads),
        op=op,
        quantize_info=op.quantize_info(),
        tensor_ids=tuple(dict.fromkeys(ids)),
    )
    return Composed(calls={last.var: (composite, tuple(reads.values()))}, fused={link.var: kernel for link in before})


def _lying_product(view: DataflowView, link: _Link) -> Composed:
    """Return a product that reads what its operands are copies of; nothing where they are none."""
    product = link.composite.op
    assert isinstance(product, RowBatchMatmulOp)
    b = _found(view, link, product.b)
    a = _found(view, link, product.a) if b.group == 1 else _Found.plain(link.operands[product.a.name])
    output, y_view = _result(view, link.var, product.y.shape, b.group)
    if output.same_as(link.var) and not a.passed and not b.passed:
        return Composed(calls={}, fused={})
    op = LyingProductOp(
        a=a.operand(product.a, b.group),
        b=b.operand(product.b, b.group),
        product=product,
        y=product.y if output.same_as(link.var) else replace(product.y, name=output.name),
        y_view=y_view,
    )
    passed = {} if output.same_as(link.var) else {link.var: TILED_ROWS}
    return _composed(view, (link,), op, ((a, b), {}), (output, passed))


def _composed(
    view: DataflowView,
    links: tuple[_Link, ...],
    op: LyingProductOp | RowAttentionOp,
    read: tuple[tuple[_Found, ...], dict[str, Var]],
    result: tuple[Var, dict[Var, str]],
) -> Composed:
    """Return the call of an op that links become: it reads operands and an addend, and passes variables before its result."""
    (operands, addend), (output, passed) = read, result
    reads = {each.source.name: each.source for each in operands} | addend
    fused = dict(passed)
    for var in dict.fromkeys(var for each in operands for var in each.passed):
        if not view.is_returned(var) and all(user in fused or user.same_as(output) for user in view.users(var)):
            fused[var] = ""
    ids = (tensor for link in links for tensor in link.composite.tensor_ids)
    composite = replace(
        links[-1].composite,
        inputs=tuple(reads),
        op=op,
        quantize_info=op.quantize_info(),
        tensor_ids=tuple(dict.fromkeys((*ids, *(var.name for var in fused)))),
    )
    return Composed(calls={output: (composite, tuple(reads.values()))}, fused=fused)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Found:
    """What is read in place of an operand.

    Parameters
    ----------
    var
        The operand.
    source
        What is read.
    axes
        Axis of the source that each axis of the operand is, all matrices of a group taken for one.
    group
        How many matrices in a row, along the last axis of the batch, are the same one.
    passed
        The variables that make the operand of the source, the last one first.
    """

    var: Var
    source: Var
    axes: tuple[int, ...]
    group: int = 1
    passed: tuple[Var, ...] = ()

    @staticmethod
    def plain(var: Var) -> _Found:
        """Return the operand itself."""
        return _Found(var=var, source=var, axes=tuple(range(len(static_shape(var) or ()))))

    def operand(self, tensor: DynamicTensor, group: int) -> LyingOperand:
        """Return how the kernel reads it; the rows of a group's matrices are those of one, which meets what they share."""
        shape = list(tensor.shape)
        if group > 1:
            shape[-3] //= group
            shape[-2] *= 1 if tensor.by_column else group
        lying = [0] * len(shape)
        for axis, size in zip(self.axes, shape, strict=True):
            lying[axis] = size
        along = -2 if tensor.by_column else -1
        place = self.axes[along]
        outer, columns = math.prod(lying[:place]), math.prod(lying[place + 1 :])
        if columns == 1:
            own = replace(tensor, name=self.source.name, shape=static_shape(self.source), scales=outer, by_column=False)
        else:
            own = replace(
                tensor,
                name=self.source.name,
                shape=(outer, lying[place], columns),
                scales=outer * columns,
                by_column=True,
            )
        pairs = [*shape]
        pairs[along] = 2
        views = (MatrixView(shape=tuple(each), axes=self.axes) for each in (shape, pairs))
        return LyingOperand(tensor=own, view=next(views), parameters=next(views))


def _found(view: DataflowView, link: _Link, tensor: DynamicTensor) -> _Found:
    """Return what can be read in place of an operand."""
    var, rank = link.operands[tensor.name], len(tensor.shape)
    source, axes, passed = var, tuple(range(rank)), ()
    permute = call_to(view.definition(var), "permute_dims")
    before = None if permute is None else permute.args[0]
    if permute is not None and isinstance(before, Var) and static_shape(before) is not None and permute.attrs.axes is not None:
        moved = tuple(int(axis) % rank for axis in permute.attrs.axes)
        # Kernels read rows of a along memory.
        if tensor.by_column or moved[-1] == rank - 1:
            source, axes, passed = before, moved, (var,)
    repeated = repeated_matrices(view, source) if tensor.by_column and axes[: rank - 2] == tuple(range(rank - 2)) else None
    if repeated is None:
        return _Found(var=var, source=source, axes=axes, passed=passed)
    shared, group, steps = repeated
    return _Found(var=var, source=shared, axes=axes, group=group, passed=(*passed, *steps))


def _result(view: DataflowView, var: Var, shape: tuple[int, ...], group: int) -> tuple[Var, MatrixView]:
    """Return the variable of the result, which a permutation behind it may make, and how its matrices lie in it."""
    if group > 1:
        return var, MatrixView.plain((*shape[:-3], shape[-3] // group, shape[-2] * group, shape[-1]))
    user = view.only_user(var)
    permute = None if user is None else call_to(view.definition(user), "permute_dims")
    if user is None or permute is None or permute.attrs.axes is None:
        return var, MatrixView.plain(shape)
    axes = [int(axis) % len(shape) for axis in permute.attrs.axes]
    if axes[-1] != len(shape) - 1:
        return var, MatrixView.plain(shape)
    return user, MatrixView(shape=shape, axes=tuple(int(axis) for axis in np.argsort(axes)))
