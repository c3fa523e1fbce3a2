"""ONNX Runtime's Attention, QAttention and MultiHeadAttention as standard ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..frontend import RejectedOpError
from .attention_steps import Scores, attend, causal, default_scale, padding_mask
from .runtime_integers import scaled_product
from .standard_steps import Steps

_SHARED = "give the past as a tensor of its own length"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Projected:
    """Queries, keys and values as [batch, heads, rows, size], the sizes, and the length of the past: int64 [1], "" for none."""

    q: str
    k: str
    v: str
    size: int
    value_size: int
    heads: int
    past: str = ""


def _mask_value(r: Steps) -> float:
    return float(r.attrs.get("mask_filter_value", -10000.0))


def _result(r: Steps, heads: _Projected, mask: str, bias: str, source: str, scores_to: str = "") -> None:
    """End in the attention of these heads, with a mask of keys, a bias of scores, and what "unidirectional" says."""
    keys, biases = r.dim(heads.k, 2), list[str]()
    biases += padding_mask(r, mask, keys, _mask_value(r), source)
    if r.attrs.get("unidirectional", 0):
        biases.append(causal(r, r.dim(heads.q, 2), keys, heads.past))
    biases += [bias] if bias else []
    how = Scores(scale=default_scale(r, heads.size), biases=biases)
    made = attend(r, heads.q, heads.k, heads.v, how, scores_to=scores_to)
    r.join_by_head(made.result, heads.heads * heads.value_size, to=r.output(0))


# ------------------------------------------------------------------------------------------------- Attention, QAttention


def _split(r: Steps, projected: str, sizes: Sequence[int]) -> _Projected:
    """Cut [batch, rows, q + k + v] into the heads of each."""
    count = int(r.attrs["num_heads"])
    if sizes[0] != sizes[1] or any(size % count for size in sizes):
        raise RejectedOpError(f"its hidden sizes {list(sizes)} do not fit {count} heads; queries and keys must be of one size")
    ends = [sizes[0], sizes[0] + sizes[1], sum(sizes)]
    parts = [r.cut(projected, 2, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    q, k, v = (r.by_head(part, count, size // count) for part, size in zip(parts, sizes, strict=True))
    return _Projected(q=q, k=k, v=v, size=sizes[0] // count, value_size=sizes[2] // count, heads=count)


def _with_past(r: Steps, heads: _Projected, past: str) -> _Projected:
    """Put the past [2, batch, heads, length, size] ahead of keys and values; both are a result together, where it is read."""
    if past:
        old = [r.squeeze(r.cut(past, 0, place, place + 1), 0) for place in (0, 1)]
        k, v = (r.emit("Concat", list(pair), axis=2) for pair in zip(old, (heads.k, heads.v), strict=True))
        heads = replace(heads, k=k, v=v, past=r.dim(past, 3))
    if r.output(1):
        r.emit("Concat", [r.unsqueeze(heads.k, 0), r.unsqueeze(heads.v, 0)], to=r.output(1), axis=0)
    return heads


def _attention(r: Steps) -> None:
    """Project, cut into heads, attend."""
    r.refuse_attributes("do_rotary", advice="write a RotaryEmbedding ahead of MultiHeadAttention")
    r.refuse_attributes("past_present_share_buffer", advice=_SHARED)
    r.refuse_inputs(6, advice=_SHARED)
    source, weights, bias = r.required(0, "input"), r.required(1, "weights"), r.input(2)
    third = r.size(weights, 1) // 3
    sizes = [int(size) for size in r.attrs.get("qkv_hidden_sizes", ())] or [third] * 3
    projected = r.emit("MatMul", [source, weights])
    projected = r.emit("Add", [projected, bias]) if bias else projected
    heads = _with_past(r, _split(r, projected, sizes), r.input(4))
    _result(r, heads, r.input(3), r.input(5), source)


def _quantized_attention(r: Steps) -> None:
    """Project integers; the attention itself is of floats."""
    r.refuse_attributes("do_rotary", "past_present_share_buffer", advice="use MultiHeadAttention")
    source, weights = r.required(0, "input"), r.required(1, "weight")
    scales = r.required(3, "input_scale"), r.required(4, "weight_scale")
    projected = scaled_product(r, source, weights, scales, (r.input(6), r.input(7)), r.required(2, "bias"), "")
    third = r.size(weights, 1) // 3
    heads = _with_past(r, _split(r, projected, [third] * 3), r.input(8))
    _result(r, heads, r.input(5), "", source)


# ---------------------------------------------------------------------------------------------------- MultiHeadAttention


def _with_bias(r: Steps, value: str, start: int, size: int) -> str:
    """Add a part of the bias of queries, keys and values, which lies in one tensor."""
    bias = r.input(3)
    return r.emit("Add", [value, r.cut(bias, 0, start, start + size)]) if bias else value


def _packed(r: Steps, packed: str, count: int) -> list[str]:
    """Take [batch, rows, heads, count, size] apart, into [batch, rows, heads * size] each."""
    heads, size = r.size(packed, 2), r.size(packed, 4)
    return [r.reshape(r.cut(packed, 3, place, place + 1), 0, 0, heads * size) for place in range(count)]


def _multi_head_parts(r: Steps) -> tuple[list[str], list[int]]:
    """Return queries, keys and values before the bias, [batch, rows, features] or already in heads, and the features of each."""
    count = int(r.attrs["num_heads"])
    query, key, value = r.required(0, "query"), r.input(1), r.input(2)
    if not key:
        packed, features = _packed(r, query, 3), r.size(query, 2) * r.size(query, 4)
        return packed, [features] * 3
    features = r.size(query, 2)
    if not value:
        return [query, *_packed(r, key, 2)], [features] * 3
    has_heads = r.rank(value) == 4
    return [query, key, value], [features, features, r.size(value, -1) * (count if has_heads else 1)]


def _multi_head(r: Steps) -> None:
    """Attend with what is projected already; keys and values may be in heads."""
    r.refuse_inputs(8, 9, advice=_SHARED)
    count = int(r.attrs["num_heads"])
    parts, sizes = _multi_head_parts(r)
    in_heads = bool(r.input(2)) and r.rank(r.input(1)) == 4
    starts = [0, sizes[0], sizes[0] + sizes[1]]
    made: list[str] = []
    for place, (part, start, size) in enumerate(zip(parts, starts, sizes, strict=True)):
        if place and in_heads:
            made.append(part)
        else:
            made.append(r.by_head(_with_bias(r, part, start, size), count, size // count))
    past, length = (r.input(6), r.input(7)), ""
    if past[0]:
        length = r.dim(past[0], 2)
        made[1:] = [
            r.emit("Concat", [old, new], to=to, axis=2) for old, new, to in zip(past, made[1:], _presents(r), strict=True)
        ]
    else:
        for value, to in zip(made[1:], _presents(r), strict=True):
            r.named(value, to)
    q, k, v = made
    heads = _Projected(q=q, k=k, v=v, size=sizes[0] // count, value_size=sizes[2] // count, heads=count, past=length)
    _result(r, heads, r.input(4), r.input(5), r.required(0, "query"), scores_to=r.output(3))


def _presents(r: Steps) -> tuple[str, str]:
    return r.output(1), r.output(2)


REWRITES: dict[str, Callable[[Steps], None]] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "QAttention": _quantized_attention,
}
"""How each op becomes standard ones."""
