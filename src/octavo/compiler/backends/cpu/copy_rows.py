"""What of open sizes is copied where a condition holds, and filled elsewhere, is filled first, and copied row by row after that.

Before, of a padding::

    for row, column: y[row, column] = x[row - 1, column - 1] if 1 <= row <= height and 1 <= column <= width else 0

After::

    y[0:, 0:] = 0
    for row in range(1, height + 1), column in range(1, width + 1): y[row, column] = x[row - 1, column - 1]    # in vectors

TVM cuts loops so where sizes are known; of others each element asks. What is transposed has loops of its own for one turn of the
innermost: one token is one row. No arithmetic is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import Call, TensorLoad
from tvm.tirx import GE, GT, LE, LT, And, BufferLoad, BufferStore, For, IntImm, PrimFunc

from ....ir.untyped import s_tir, tirx
from .places import loads_in, only_block

_LANES = 8


def copy_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with the rows of its functions cut where they can be."""
    changed: dict[Any, Any] = {}
    for var, function in module.functions_items():
        if isinstance(function, PrimFunc):
            made = _cut(function)
            if made is not None:
                changed[var] = made
    result = module.clone() if changed else module
    for var, function in changed.items():
        result.update_func(var, function)
    return result


def _cut(function: Any) -> Any | None:
    """Return a function with its rows cut; None where it copies none by a condition, or they are of known length."""
    block = only_block(function)
    if block is None or len(block.iter_vars) == 0:
        return None
    turns, extents = [each.var for each in block.iter_vars], [each.dom.extent for each in block.iter_vars]
    value = block.body.value
    if isinstance(extents[-1], IntImm):
        return None
    if isinstance(value, TensorLoad):
        if len(value.indices) == 0 or _is_row(value, turns[-1]):
            return None
        return _with_body(function, _single_or_all(block.body, turns, extents))
    if not isinstance(value, Call) or str(getattr(value.op, "name", "")) != "prim.if_then_else":
        return None
    condition, copied, fill = value.args
    if not isinstance(fill, (tirx.FloatImm, IntImm)) or not _is_row(copied, turns[-1]):
        return None
    loops = _Loops.of(condition, turns, extents)
    if loops is None:
        return None
    return _with_body(function, _filled_and_copied(block.body.buffer, loops, copied, fill))


def _with_body(function: Any, body: Any) -> Any:
    """Return a function that does this instead."""
    root = function.body.block
    made = s_tir.SBlock(root.iter_vars, root.reads, root.writes, root.name_hint, body)
    return function.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), made))


def _single_or_all(stored: Any, turns: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Return a copy's loops, and those without the innermost one where that has one turn: then the next is in vectors."""
    zero = tirx.IntImm("int64", 0)
    single = tvm_ffi.structural_map(stored, (tirx.Var, lambda var: zero if var.same_as(turns[-1]) else var))
    both: list[Any] = [single, For(turns[-1], zero, extents[-1], tirx.ForKind.SERIAL, stored)]
    for number, body in enumerate(both):
        for turn, extent in zip(reversed(turns[:-1]), reversed(extents[:-1]), strict=True):
            own = tirx.Var(turn.name, "int64")
            inner = tvm_ffi.structural_map(body, (tirx.Var, lambda var, turn=turn, own=own: own if var.same_as(turn) else var))
            body = For(own, zero, extent, tirx.ForKind.SERIAL, inner)
        both[number] = body
    return tirx.IfThenElse(extents[-1].equal(1), *both)


def _is_row(value: Any, turn: Any) -> bool:
    """Return whether a value is that of neighbours in the turns of the innermost loop."""
    if not isinstance(value, TensorLoad) or len(value.indices) == 0:
        return False
    *outer, last = value.indices
    is_step = _offset(last, turn) is not None
    return is_step and not any(loads_in(each) for each in value.indices) and not any(_mentions(each, turn) for each in outer)


def _offset(index: Any, turn: Any) -> Any | None:
    """Return how far an index is behind a turn; None where that depends on the turn."""
    rest = tvm.sym.Analyzer().simplify(index - turn)
    return None if _mentions(rest, turn) else rest


def _mentions(expression: Any, var: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (tirx.Var, lambda each: found.append(each) if each.same_as(var) else None))
    return bool(found)


@dataclass(frozen=True, slots=True)
class _Loops:
    """Turns of planes, those of their rows and of a row's elements, their extents, and [first; last) of what is copied.

    Where there are no rows, those of the one row that there is.
    """

    turns: list[Any]
    extents: list[Any]
    rows: tuple[Any, Any]
    columns: tuple[Any, Any]

    @staticmethod
    def of(condition: Any, turns: list[Any], extents: list[Any]) -> _Loops | None:
        """Return the loops; None where some part of the condition is no end of one of them."""
        if len(turns) < 2:
            return None
        *_, row, column = turns
        of_rows, of_columns, others = list[Any](), list[Any](), list[Any]()
        for part in _parts(condition):
            is_of = _mentions(part, row), _mentions(part, column)
            if all(is_of):
                return None
            (of_rows if is_of[0] else of_columns if is_of[1] else others).append(part)
        rows, columns = _ends(of_rows, row, extents[-2]), _ends(of_columns, column, extents[-1])
        if rows is None or columns is None:
            return None
        if others:
            rows = rows[0], tirx.Select(reduce(tirx.And, others), rows[1], tirx.IntImm("int64", 0))
        return _Loops(turns, extents, rows, columns)


def _ends(parts: Sequence[Any], turn: Any, extent: Any) -> tuple[Any, Any] | None:
    """Return [first; last) of the turns for which all parts hold, none where last is less; None where that is not known."""
    first, last = tirx.IntImm("int64", 0), extent
    for each in parts:
        if not isinstance(each, (LT, LE, GT, GE)):
            return None
        less, more = (each.a, each.b) if isinstance(each, (LT, LE)) else (each.b, each.a)
        is_below = _mentions(less, turn)
        offset = _offset(less if is_below else more, turn)
        other = more if is_below else less
        if offset is None or _mentions(other, turn):
            return None
        is_equal = isinstance(each, (LE, GE))
        if is_below:
            last = tirx.min(last, other - offset + int(is_equal))
        else:
            first = tirx.max(first, other - offset + int(not is_equal))
    simplify: Any = tvm.sym.Analyzer().simplify
    return simplify(first), simplify(last)


def _parts(condition: Any) -> list[Any]:
    return [*_parts(condition.a), *_parts(condition.b)] if isinstance(condition, And) else [condition]


def _filled_and_copied(y: Any, loops: _Loops, copied: Any, fill: Any) -> Any:
    """Return the loop over planes: each is filled, which its first-level cache then holds, and its rows are copied."""
    *planes, row, column = loops.turns
    *_, height, width = loops.extents
    zero = tirx.IntImm("int64", 0)
    count, first, last = (tirx.Var(name, "int64") for name in ("count", "first", "last"))

    def filled(at: Any, lanes: int) -> Any:
        # Rows lie side by side: counted from the first element of the first one.
        place = at if lanes == 1 else tirx.Ramp(at, 1, lanes)
        return BufferStore(y, fill if lanes == 1 else tirx.Broadcast(fill, lanes), [*planes, zero, place])

    def neighbours(at: Any, lanes: int) -> Any:
        start = first + at
        *outer, place = (
            tvm_ffi.structural_map(each, (tirx.Var, lambda var: start if var.same_as(column) else var)) for each in copied.indices
        )
        source, target = (place, start) if lanes == 1 else (tirx.Ramp(each, 1, lanes) for each in (place, start))
        return BufferStore(y, BufferLoad(copied.source, [*outer, source]), [*planes, row, target])

    copy = For(
        row,
        loops.rows[0],
        tirx.max(loops.rows[1] - loops.rows[0], zero),
        tirx.ForKind.SERIAL,
        _by_vectors(count, neighbours, _LANES, _LANES // 2),
    )
    body: Any = tirx.SeqStmt([_by_vectors(height * width, filled, _LANES), copy])
    for var, extent in zip(reversed(planes), reversed(loops.extents[:-2]), strict=True):
        body = For(var, zero, extent, tirx.ForKind.SERIAL, body)
    known = [
        tirx.Bind(first, loops.columns[0]),
        tirx.Bind(last, loops.columns[1]),
        tirx.Bind(count, tirx.max(last - first, zero)),
    ]
    return tirx.SeqStmt([*known, body])


def _by_vectors(count: Any, body: Callable[[Any, int], Any], *sizes: int) -> Any:
    """Return `body(first, lanes)` over all elements by the first of these sizes of which there are as many, or one by one.

    The last vector ends with the last element: it may store some again.
    """
    if not sizes:
        return _loop(count, lambda at: body(at, 1))
    lanes, *smaller = sizes
    full = _loop(tirx.floordiv(count + (lanes - 1), lanes), lambda at: body(tirx.min(at * lanes, count - lanes), lanes))
    return tirx.IfThenElse(count >= lanes, full, _by_vectors(count, body, *smaller))


def _loop(count: Any, body: Callable[[Any], Any]) -> Any:
    at = tirx.Var("at", "int64")
    return For(at, tirx.IntImm("int64", 0), count, tirx.ForKind.SERIAL, body(at))
