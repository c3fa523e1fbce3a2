"""What attention is made of, as standard ops: products of queries and keys, masks that are added, softmax, products with values.

All tensors are [batch, heads, rows, size]. Scores without weight get a large negative number, as exporters do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from ..frontend import RejectedOpError
from .standard_steps import Steps

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """How scores are made of queries and keys, and weights of scores.

    Parameters
    ----------
    scale
        Factor of the products.
    biases
        What is added to them, broadcast.
    softcap
        Where it is not 0, scores are kept within it by a tanh, before anything is added.
    groups
        How many heads of queries share one of keys and values.
    head_sizes
        Heads of keys and values, and their size, where several heads of queries share one.
    sink
        A score of every row that no value belongs to: a constant or one of [1, heads, 1, 1]; "" for none.
    """

    scale: float
    biases: Sequence[str] = ()
    softcap: float = 0.0
    groups: int = 1
    head_sizes: tuple[int, int] = (0, 0)
    sink: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attended:
    """Names of what attention computes on its way: the scores, the weights, and the result."""

    scores: str
    weights: str
    result: str


def attend(r: Steps, q: str, k: str, v: str, how: Scores, *, scores_to: str = "") -> Attended:
    """Return the values weighted by the softmax of scaled products, with the steps; `scores_to` names the scores."""
    if how.groups > 1:
        k, v = (_repeated(r, each, how) for each in (k, v))
    value = r.emit("Mul", [r.emit("MatMul", [q, r.transpose(k, 0, 1, 3, 2)]), r.number(how.scale)])
    if how.softcap:
        capped = r.emit("Tanh", [r.emit("Div", [value, r.number(how.softcap)])])
        value = r.emit("Mul", [capped, r.number(how.softcap)])
    for bias in how.biases:
        value = r.emit("Add", [value, bias])
    if scores_to:
        r.named(value, scores_to)
    weights = _softmax_with_sink(r, value, how.sink) if how.sink else _softmax(r, value)
    return Attended(scores=value, weights=weights, result=r.emit("MatMul", [weights, v]))


def _softmax(r: Steps, value: str) -> str:
    return r.emit("Softmax", [value], axis=3)  # the last one: before opset 13 those from it on count as one


def _softmax_with_sink(r: Steps, value: str, sink: str) -> str:
    """Softmax with one more score in each row, whose weight is dropped."""
    column = r.emit("Add", [r.emit("Mul", [r.cut(value, 3, 0, 1), r.number(0.0)]), sink])
    weights = _softmax(r, r.emit("Concat", [value, column], axis=3))
    return r.cut(weights, 3, 0, -1)


def _repeated(r: Steps, value: str, how: Scores) -> str:
    """Give each head of keys or values to the queries of its group."""
    heads, size = how.head_sizes
    wide = r.emit("Expand", [r.unsqueeze(value, 2), r.sizes(1, 1, how.groups, 1, 1)])
    return r.reshape(wide, 0, heads * how.groups, -1, size)


def masked(r: Steps, visible: str, low: float, *, axes: Sequence[int] = ()) -> str:
    """Return what is added to scores: 0 where a bool, or a positive integer, says so, else a large negative number."""
    value = r.unsqueeze(visible, *axes) if axes else visible
    return r.emit("Where", [value, r.number(0.0), r.number(low)])


def positive(r: Steps, mask: str) -> str:
    """Return where an integer mask is more than 0."""
    return r.emit("Cast", [mask], to_type=onnx.TensorProto.BOOL)


def causal(r: Steps, rows: str, keys: str, past: str = "", low: float = LOWEST) -> str:
    """Return the mask [rows, keys] by which each row sees itself and what comes before; `past` rows came before the first."""
    row = r.unsqueeze(r.range_to(rows), 1)
    if past:
        row = r.emit("Add", [row, past])
    column = r.unsqueeze(r.range_to(keys), 0)
    return masked(r, r.emit("Not", [r.emit("Greater", [column, row])]), low)


def padding_mask(r: Steps, mask: str, keys: str, low: float, batch_of: str) -> list[str]:
    """Return what is added for a mask of keys, by its form.

    [batch, keys] and [batch, rows, keys] say which keys are seen; [batch] where the padding behind them starts, [2 * batch] also
    where that ahead of them ends.
    """
    if not mask:
        return []
    rank = r.rank(mask)
    if rank == 2:
        return [masked(r, positive(r, mask), low, axes=(1, 2))]
    if rank == 3:
        return [masked(r, positive(r, mask), low, axes=(1,))]
    if rank != 1:
        raise RejectedOpError(
            f"its mask {mask!r} of {rank} axes is not supported; give one of [batch, keys] or [batch, rows, keys]"
        )
    column, counts = r.unsqueeze(r.range_to(keys), 0, 1, 2), r.int64(mask)
    count = _per_sample(r, mask, batch_of)
    batch = r.dim(batch_of, 0)
    end = r.reshape(counts if count == 1 else r.cut(counts, 0, 0, batch), -1, 1, 1, 1)
    visible = r.emit("Less", [column, end])
    if count == 2:
        start = r.reshape(r.cut(counts, 0, batch), -1, 1, 1, 1)
        visible = r.emit("And", [visible, r.emit("Not", [r.emit("Less", [column, start])])])
    return [masked(r, visible, low)]


def _per_sample(r: Steps, mask: str, batch_of: str) -> int:
    """Return how many numbers a mask of one axis has for each sample: one, but where sizes that are known say two."""
    size, batch = r.shape(mask)[0], r.shape(batch_of)[0]
    is_known = isinstance(size, int) and isinstance(batch, int)
    if is_known and size not in (batch, 2 * int(batch)):
        raise RejectedOpError(
            f"its mask {mask!r} of {size} numbers for a batch of {batch} is not supported; give one of [batch, keys]"
        )
    return 2 if is_known and size == 2 * int(batch) else 1


def default_scale(r: Steps, size: int) -> float:
    """Return the attribute "scale", by default one over the root of the size of a head."""
    return float(r.attrs.get("scale", 0.0)) or float(1.0 / np.sqrt(size))
