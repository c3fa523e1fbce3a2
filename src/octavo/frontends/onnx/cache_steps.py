"""Keys and values of a past as standard ops: new rows behind it, or at places of a buffer that are known at run time.

A past is [batch, heads, length, size]; rows lie along axis 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..frontend import RejectedOpError
from .standard_steps import Steps


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Which rows of a buffer are written: along `axis` of `rank`, from `starts` on, int64 [batch].

    What would lie behind the end of the buffer is dropped, or goes on at its beginning where it is circular.
    """

    starts: str
    axis: int
    rank: int
    is_single: bool
    is_circular: bool = False


def write_rows(r: Steps, buffer: str, update: str, rows: Rows, *, to: str = "") -> str:
    """Return a buffer with the rows of `update` in place of its own."""
    axis, rank = rows.axis, rows.rank
    capacity, count = r.dim(buffer, axis), r.dim(update, axis)
    along = [1] * rank
    along[axis] = -1
    place = r.reshape(r.range_to(capacity), *along)
    offset = r.emit("Sub", [place, r.reshape(rows.starts, -1, *[1] * (rank - 1))])
    if rows.is_circular:
        offset = r.emit("Mod", [r.emit("Add", [offset, capacity]), capacity])
    zero = r.sizes(0)
    is_new = r.emit("And", [r.emit("Not", [r.emit("Less", [offset, zero])]), r.emit("Less", [offset, count])])
    if rows.is_single:
        source = update
    else:
        last = r.emit("Sub", [count, r.sizes(1)])
        index = r.emit("Min", [r.emit("Max", [offset, zero]), last])
        shape = r.emit("Shape", [update])
        parts = [r.cut(shape, 0, 0, axis), capacity, r.cut(shape, 0, axis + 1)]
        source = r.emit("GatherElements", [update, r.emit("Expand", [index, r.emit("Concat", parts, axis=0)])], axis=axis)
    return r.emit("Where", [is_new, source, buffer], to=to)


def _tensor_scatter(r: Steps) -> None:
    """Write rows into a cache at places that are known at run time, or from its beginning on."""
    past, update = r.required(0, "past_cache"), r.required(1, "update")
    rank = r.rank(past)
    axis = int(r.attrs.get("axis", -2)) % rank
    mode = r.text("mode") or "linear"
    if mode not in ("linear", "circular") or axis == 0:
        raise RejectedOpError(f"its mode {mode!r} along axis {axis} is not supported; use linear along another axis than 0")
    starts = r.input(2) or r.emit("Mul", [r.dim(past, 0), r.sizes(0)])
    is_single = r.shape(update)[axis] == 1
    rows = Rows(starts=starts, axis=axis, rank=rank, is_single=is_single, is_circular=mode == "circular")
    write_rows(r, past, update, rows, to=r.output(0))


STANDARD_REWRITES: dict[str, Callable[[Steps], None]] = {"TensorScatter": _tensor_scatter}
"""How each op of ONNX becomes others."""
