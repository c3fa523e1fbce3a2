"""Sums of the activations under each output pixel's window, which correct for the zero point of asymmetric weights.

sum(x * (w - z)) = sum(x * w) - z * sum(x), and sum(x) is the same for every output channel of a group: it is computed once for
each pixel, before the channels. Padding lies in the scratch as the input's zero point and counts like any other value.
"""

from __future__ import annotations

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..vectors import Expr
from . import vector as v
from .packing import Reduction


def _ones_from(start: int, size: int, end: int | None = None) -> Expr:
    """Return int8 x size that is 1 at [start; end) and 0 elsewhere."""
    if start == 0 and end is None:
        return T.broadcast(T.int8(1), size)
    # Picked from two constants: TVM's analysis of ranges fails on a vector of comparisons, should it be given a name.
    indices = [T.int32(size * (start <= index < (size if end is None else end))) for index in range(size)]
    return tirx.Shuffle([T.broadcast(T.int8(0), size), T.broadcast(T.int8(1), size)], indices)


def emit_window_sum(x: Expr, base: Expr, reduction: Reduction, *, has_slack: bool) -> Expr:
    """Emit the sum of all x under the window whose first byte is x[base] and return it, an int32 expression.

    `has_slack` says that 64 bytes after the window may be read.
    """
    run = reduction.run
    if run < 16 and not has_slack:
        total = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(total, T.int32(0), [0])
        _over_taps(base, reduction, lambda at: _add_scalars(total, x, at, run))
        return total[0]
    lanes = 16 if run >= 64 else 8 if run >= 32 else 4
    sums = T.alloc_buffer((lanes,), "int32", scope="local")
    v.store(sums, 0, T.broadcast(T.int32(0), lanes), lanes)
    _over_taps(base, reduction, lambda at: _add_vectors(sums, x, at, run, lanes))
    return v.horizontal_sum(v.load(sums, 0, lanes), lanes)


def _over_taps(base: Expr, reduction: Reduction, body: object) -> None:
    """Emit the loops over taps and `body(first byte of the run)` inside."""

    def nest(at: Expr, taps: tuple[tuple[int, int], ...]) -> None:
        if not taps:
            assert callable(body)
            body(at)
            return
        (extent, distance), rest = taps[0], taps[1:]
        with T.serial(0, extent) as tap:
            nest(at + tap * distance, rest)

    nest(base, tuple(entry for entry in reduction.taps if entry[0] > 1))


def _add_scalars(total: Expr, x: Expr, at: Expr, run: int) -> None:
    value = total[0]
    for byte in range(run):
        value = value + T.cast(x[at + byte], "int32")
    T.buffer_store(total, value, [0])


def _add_vectors(sums: Expr, x: Expr, at: Expr, run: int, lanes: int) -> None:
    size = 4 * lanes

    def add(start: Expr, ones: Expr) -> None:
        v.store(sums, 0, v.dot(v.load(sums, 0, lanes), v.load(x, start, size), ones, lanes), lanes)

    if run < size:  # only with slack: the bytes past the run count 0
        add(at, _ones_from(0, size, run))
        return
    if run // size == 1:
        add(at, _ones_from(0, size))
    else:
        with T.serial(0, run // size) as chunk:
            add(at + chunk * size, _ones_from(0, size))
    if run % size:  # the last load ends with the run; what the loop has counted counts 0
        add(at + (run - size), _ones_from(size - run % size, size))
