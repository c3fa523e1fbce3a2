"""ONNX Runtime's GroupQueryAttention as standard ops.

Its past is of one of two kinds. One that grows holds the rows before; the present is that with the new rows behind. A buffer
has a capacity, which stays; new rows are written behind those that `seqlens_k` and the number of new ones say are valid.
It is a buffer where the graph declares past and present, an input and an output, of one length; else it grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..frontend import RejectedOpError
from .attention_steps import LOWEST, Scores, attend, default_scale, masked
from .cache_steps import Rows, write_rows
from .rotary import Angles, angles_at, angles_from, turned
from .standard_steps import Steps

_QUANTIZED = "compute with a cache of floats"
_PAST_KEY, _PAST_VALUE = 3, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """Where the new rows lie among all.

    Parameters
    ----------
    rows
        How many are new, int64 of one axis.
    start
        How many come before, int64 of one axis, where it is the same for each sample; "" for none.
    starts
        The same, int64 [batch], where it is known at run time only; else "".
    is_buffer
        Whether the past has the length of the present.
    is_single
        Whether there is one new row.
    """

    rows: str
    start: str = ""
    starts: str = ""
    is_buffer: bool = False
    is_single: bool = False


def _refuse(r: Steps) -> None:
    r.refuse_inputs(12, 13, advice=_QUANTIZED)
    for name in ("k_quant_type", "v_quant_type"):
        if r.text(name) not in ("", "NONE"):
            raise RejectedOpError(f"its attribute {name} = {r.text(name)} is not supported; {_QUANTIZED}")
    r.refuse_attributes("kv_cache_bit_width", advice=_QUANTIZED)
    r.refuse_attributes("sliding_window_cache", advice="use a cache of the whole length")


def _parts(r: Steps, heads: int, shared: int) -> tuple[list[str], int]:
    """Return queries, keys and values in heads, and the size of one; all may lie in the first input."""
    query = r.required(0, "query")
    if r.input(1):
        size = r.size(query, 2) // heads
        parts = [query, r.input(1), r.required(2, "value")]
    else:
        size = r.size(query, 2) // (heads + 2 * shared)
        ends = [heads * size, (heads + shared) * size, (heads + 2 * shared) * size]
        parts = [r.cut(query, 2, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    counts = (heads, shared, shared)
    return [r.by_head(part, count, size) for part, count in zip(parts, counts, strict=True)], size


def _starts(r: Steps, rows: str) -> str:
    """Return how many rows are valid before the new ones, by sample: 0 in a prompt, else those in all without the new ones."""
    valid = r.emit("Sub", [r.emit("Add", [r.int64(r.required(5, "seqlens_k")), r.sizes(1)]), rows])
    valid = r.reshape(valid, -1)
    total = r.reshape(r.int64(r.required(6, "total_sequence_length")), -1)
    later = r.int64(r.emit("Greater", [total, rows]))
    return r.emit("Mul", [valid, later])


def _is_buffer(r: Steps) -> bool:
    """Whether the graph declares past and present of one length."""
    past, present = r.input(_PAST_KEY), r.output(1)
    lengths = [None if shape is None or len(shape) != 4 else shape[2] for shape in map(r.declared, (past, present))]
    return lengths[0] is not None and lengths[0] == lengths[1]


def _place(r: Steps, query: str, rows: str) -> _Place:
    """Return where new rows go. In a batch of one nothing but the new rows lies behind the past, whatever `seqlens_k` says."""
    past, is_single = r.input(_PAST_KEY), r.shape(query)[1] == 1
    if not past:
        return _Place(rows=rows, is_single=is_single)
    if not _is_buffer(r) and r.shape(query)[0] == 1:
        return _Place(rows=rows, start=r.dim(past, 2), is_single=is_single)
    return _Place(rows=rows, starts=_starts(r, rows), is_buffer=_is_buffer(r), is_single=is_single)


def _present(r: Steps, past: str, new: str, place: _Place, to: str) -> str:
    """Return keys or values with the past; behind the valid rows of a sample is what lay there before."""
    if not past:
        r.named(new, to)
        return new
    if not place.starts:
        return r.emit("Concat", [past, new], to=to, axis=2)
    if not place.is_buffer:
        past = r.emit("Concat", [past, r.zeros(r.emit("Shape", [new]))], axis=2)
    rows = Rows(starts=place.starts, axis=2, rank=4, is_single=place.is_single)
    return write_rows(r, past, new, rows, to=to)


def _rows(r: Steps, place: _Place) -> str:
    """Return the places of the new rows: int64 [rows], or [batch, rows] where they differ."""
    rows = r.range_to(place.rows)
    if place.starts:
        return r.emit("Add", [r.unsqueeze(place.starts, 1), rows])
    return r.emit("Add", [rows, place.start]) if place.start else rows


def _angles(r: Steps, place: _Place) -> Angles:
    caches = r.required(7, "cos_cache"), r.required(8, "sin_cache")
    is_interleaved = bool(r.attrs.get("rotary_interleaved", 0))
    if r.input(9):
        return angles_at(r, caches, r.int64(r.input(9)), is_interleaved=is_interleaved)
    form = angles_at if place.starts else angles_from
    return form(r, caches, _rows(r, place), is_interleaved=is_interleaved)


def _masks(r: Steps, place: _Place, keys: str) -> list[str]:
    """Return what is added: each row sees itself and what comes before, within a window where there is one."""
    window, is_causal = int(r.attrs.get("local_window_size", -1)), bool(r.attrs.get("causal", 1))
    if not place.starts and (not is_causal or (window < 0 and place.is_single)):
        return []
    column = r.range_to(r.dim(keys, 2))
    if is_causal:
        row = r.unsqueeze(_rows(r, place), *((1, 3) if place.starts else (1,)))
    else:
        last = r.emit("Sub", [r.emit("Add", [place.starts, place.rows]), r.sizes(1)])
        row = r.unsqueeze(last, 1, 2, 3)
    visible = r.emit("Not", [r.emit("Greater", [column, row])])
    if window >= 0:
        first = r.emit("Sub", [row, r.sizes(window - 1)])
        visible = r.emit("And", [visible, r.emit("Not", [r.emit("Less", [column, first])])])
    return [masked(r, visible, LOWEST)]


def _sink(r: Steps, heads: int) -> str:
    if r.input(11):
        return r.reshape(r.input(11), 1, heads, 1, 1)
    return r.number(0.0) if int(r.attrs.get("smooth_softmax", 0)) > 0 else ""


def _grouped(r: Steps) -> None:
    """Turn queries and keys, write keys and values to the past, attend."""
    _refuse(r)
    heads, shared = int(r.attrs["num_heads"]), int(r.attrs["kv_num_heads"])
    (q, k, v), size = _parts(r, heads, shared)
    query = r.required(0, "query")
    place = _place(r, query, r.dim(query, 1))
    norms = r.input(14), r.input(15)
    epsilon = float(r.attrs.get("qk_norm_epsilon", 1e-6))
    q, k = (r.rms_norm(each, norm, epsilon) if norm else each for each, norm in zip((q, k), norms, strict=True))
    if r.attrs.get("do_rotary", 0):
        angles = _angles(r, place)
        q, k = (turned(r, each, size, angles) for each in (q, k))
    k = _present(r, r.input(_PAST_KEY), k, place, r.output(1))
    v = _present(r, r.input(_PAST_VALUE), v, place, r.output(2))
    how = Scores(
        scale=default_scale(r, size),
        biases=[*_masks(r, place, k), *([r.input(10)] if r.input(10) else [])],
        softcap=float(r.attrs.get("softcap", 0.0)),
        groups=heads // shared,
        head_sizes=(shared, size),
        sink=_sink(r, heads),
    )
    made = attend(r, q, k, v, how)
    if r.output(3) and r.attrs.get("qk_output", 0) != 2:
        raise RejectedOpError(f"its output 3 ({r.output(3)!r}) with qk_output = 1 is not supported; ask for 2, the weights")
    r.named(made.weights, r.output(3))
    r.join_by_head(made.result, heads * size, to=r.output(0))


REWRITES: dict[str, Callable[[Steps], None]] = {"GroupQueryAttention": _grouped}
"""How each op becomes standard ones."""
