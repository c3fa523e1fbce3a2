"""The code of a worker pool: threads that run a program's body together, call after call. It is TIR; it starts no threads.

    octavo_main         announces a call, wakes the workers if that pays, and runs the body as task 0
    octavo_worker_work    a worker's life: wait for a call, run the body as task t, until dismissed
    octavo_worker_take    claims a piece of a unit's work
    octavo_worker_finish  counts a claimed piece as done
    octavo_worker_await   waits until a word of the control block has reached a number

The body is a sequence of units, each cut into pieces. Who comes to a unit claims one piece after the other until none is left,
and goes on when all of them are done: a thread that the system put aside delays the others by the one piece that it holds, and
one that never came by nothing. Who waits for long falls asleep: its core may be what the others wait for.

They share one block, "control": lines of numbers, the call's pointers, then a line for each unit with one word. From its highest
bits down the word holds the call that it belongs to, how many pieces are done, how many were claimed from the front and how many
from the back. A word of an earlier call means that nothing is claimed yet, so nothing is ever reset; after one of a later
call, nothing is left to do for a worker that slept through the rest of its own, and no one needs to wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as B

from ...ir.untyped import tirx
from ...runtime.control_block import (
    CALL,
    DISMISS,
    DISMISSED,
    ENDED,
    LINE,
    POINTERS,
    RESTING,
    SLEEPING,
    SPENT,
    TASKS,
    WORK,
    Layout,
)
from .tir_passes import CALLS_ATTR, PLAIN_CALL

# Kernels that TVM makes of plain ops are called octavo_take, octavo_add and the like.
BODY = "octavo_worker_body"
_TAKE = "octavo_worker_take"
_FINISH = "octavo_worker_finish"
_AWAIT = "octavo_worker_await"
WORKER_SYMBOLS = (BODY, WORK, DISMISS, _TAKE, _FINISH, _AWAIT)

MAX_PIECES = 63
"""Pieces that a unit may have."""


_DATA_FIELD = 1
"""Pointers are kept as the data of DLTensors, the only struct of pointers that TIR can read and write."""

_COUNT_BITS = 6
_DONE = 2 * _COUNT_BITS
_NUMBER = 3 * _COUNT_BITS
"""Shifts of a unit's word: pieces done, number of the call. Claims from the front are at bit 0, from the back at _COUNT_BITS."""

_SPINS = 2000
"""Turns that a task waits for a change before it sleeps, each a look and a pause: some 50 microseconds, what waking costs."""

_CLOSE = 1 << 17
_LONG = 1 << 19
"""Cycles of the clock, which ticks 2 to 3 times a nanosecond. To wake a worker takes as long as a small network, so it pays in a
call that is as long as the one before, if that was long, and where calls follow each other closely: the worker stays awake."""

_FUTEX = 202
_FUTEX_WAIT_PRIVATE = 128
_FUTEX_WAKE_PRIVATE = 129
_ALL = (1 << 31) - 1
"""Linux's call for sleeping on a number of 4 bytes, on x86-64: man 2 futex."""


def _pause() -> None:
    B.evaluate(B.call_llvm_intrin(B.llvm_lookup_intrinsic_id("llvm.x86.sse2.pause"), dtype="void"))


def _clock() -> Any:
    return B.call_llvm_intrin(B.llvm_lookup_intrinsic_id("llvm.readcyclecounter"), dtype="int64")


def _futex(word: Any, operation: int, value: Any) -> None:
    zero = B.int64(0)
    B.evaluate(B.call_extern("int64", "syscall", B.int64(_FUTEX), word, B.int64(operation), value, zero, zero, zero))


def _wake(word: Any, sleepers: Any) -> None:
    """Wake who sleeps on a word that has just been changed atomically; a sleeper counts itself before it looks a last time."""
    with B.If(atomic_load(sleepers) > 0), B.Then():
        _futex(word, _FUTEX_WAKE_PRIVATE, B.int64(_ALL))


def _variable(dtype: str, value: Any) -> Any:
    variable: Any = B.alloc_buffer((1,), dtype, scope="local")
    B.buffer_store(variable, value, [0])
    return variable


def _function(name: str, emit: Callable[[], None]) -> Any:
    with IRBuilder() as builder, B.prim_func():
        B.func_name(name)
        emit()
    func: Any = builder.get()
    return func.with_body(importing(func.body)).with_attrs({"global_symbol": name, CALLS_ATTR: True})


def _plain(name: str, params: Sequence[Any], emit: Callable[[], None], views: Sequence[Any] = ()) -> Any:
    """Return a function of pointers and numbers; `views` are the buffers that it reads and writes."""
    with IRBuilder() as builder, B.prim_func():
        B.func_name(name)
        emit()
    func: Any = builder.get()
    made = tirx.PrimFunc(list(params), importing(tirx.SeqStmt([*views, func.body])), tvm.ir.PrimType("int32"))
    return made.with_attr("global_symbol", name).with_attr("calling_conv", PLAIN_CALL)


def _pointer(name: str, dtype: str = "int64") -> Any:
    return tirx.Var(name, tvm.ir.PointerType(tvm.ir.PrimType(dtype), "global"))


def _take() -> Any:
    """Return octavo_worker_take(word, call, pieces, back, taken): write the number of a piece for the caller to do now, or -1.

    Tasks that claim from both ends keep to the pieces that were theirs in the last layer, whose results their caches hold.
    """
    word, call = _pointer("word"), tirx.Var("call", "int64")
    pieces, back = tirx.Var("pieces", "int32"), tirx.Var("back", "int32")
    pointer = _pointer("taken_data", "int32")
    taken = tirx.decl_buffer((1,), "int32", name="taken", data=pointer)

    def emit() -> None:
        seen = _variable("int64", atomic_load(word))
        trying = _variable("int32", B.int32(1))
        B.buffer_store(taken, B.int32(-1), [0])
        with B.While(trying[0] != 0):
            number, ours = B.shift_right(seen[0], B.int64(_NUMBER)), B.shift_left(call, B.int64(_NUMBER))
            counts = B.Bind(B.if_then_else(number < call, B.int64(0), seen[0] - ours))
            front = B.Bind(B.cast(B.bitwise_and(counts, B.int64(MAX_PIECES)), "int32"))
            rear = B.Bind(B.cast(B.bitwise_and(B.shift_right(counts, B.int64(_COUNT_BITS)), B.int64(MAX_PIECES)), "int32"))
            B.buffer_store(trying, B.int32(0), [0])
            with B.If(B.And(number <= call, front + rear < pieces)), B.Then():
                claim = B.if_then_else(back != 0, B.int64(1 << _COUNT_BITS), B.int64(1))
                found = B.Bind(compare_exchange(word, seen[0], ours + counts + claim))
                with B.If(found == seen[0]):
                    with B.Then():
                        B.buffer_store(taken, B.if_then_else(back != 0, pieces - 1 - rear, front), [0])
                    with B.Else():
                        B.buffer_store(seen, found, [0])
                        B.buffer_store(trying, B.int32(1), [0])

    return _plain(_TAKE, [word, call, pieces, back, pointer], emit, [tirx.DeclBuffer(taken, data=pointer)])


def _finish() -> Any:
    """Return octavo_worker_finish(word, pieces, sleeping): count a piece as done, and wake who waits for the last of them."""
    word, sleeping, pieces = _pointer("word"), _pointer("sleeping"), tirx.Var("pieces", "int32")

    def emit() -> None:
        before = B.Bind(
            B.cast(B.bitwise_and(B.shift_right(atomic_add(word, 1 << _DONE), B.int64(_DONE)), B.int64(MAX_PIECES)), "int32")
        )
        with B.If(before + 1 == pieces), B.Then():
            _wake(word, sleeping)

    return _plain(_FINISH, [word, pieces, sleeping], emit)


def _await() -> Any:
    """Return octavo_worker_await(word, minimum, sleepers): return when the word is `minimum` or more."""
    word, minimum, sleepers = _pointer("word"), tirx.Var("minimum", "int64"), _pointer("sleepers")

    def emit() -> None:
        seen = _variable("int64", atomic_load(word))
        spins = _variable("int32", B.int32(0))
        with B.While(B.And(seen[0] < minimum, spins[0] < _SPINS)):
            _pause()
            B.buffer_store(spins, spins[0] + 1, [0])
            B.buffer_store(seen, atomic_load(word), [0])
        with B.If(seen[0] < minimum), B.Then():
            B.evaluate(atomic_add(sleepers, 1))
            B.buffer_store(seen, atomic_load(word), [0])
            with B.While(seen[0] < minimum):  # a signal may end the sleep early
                _futex(word, _FUTEX_WAIT_PRIVATE, seen[0])
                B.buffer_store(seen, atomic_load(word), [0])
            B.evaluate(atomic_add(sleepers, -1))

    return _plain(_AWAIT, [word, minimum, sleepers], emit)


def _dismiss() -> Any:
    """Return octavo_worker_dismiss(control): let every worker's life end; a last call without a body tells them."""

    def emit() -> None:
        control = B.arg("control", B.buffer((POINTERS,), "int64"))
        call, resting = (B.address_of(control[index]) for index in (CALL, RESTING))
        B.buffer_store(control, B.int64(1), [DISMISSED])
        B.evaluate(atomic_add(call, 1))
        _wake(call, resting)

    return _function(DISMISS, emit)


def fixed_functions() -> dict[str, Any]:
    """Return the functions that know no program, by symbol: take, finish, await, dismiss."""
    return {_TAKE: _take(), _FINISH: _finish(), _AWAIT: _await(), DISMISS: _dismiss()}


class WorkerPoolCode:
    """The functions of one program for a worker pool.

    Parameters
    ----------
    buffers
        The entry's arguments, less control.
    tasks
        The most that a call may have.
    units
        How many units its body has.
    """

    def __init__(self, buffers: Sequence[Any], tasks: int, units: int) -> None:
        self.layout = Layout(tasks=tasks, pointers=len(buffers), units=units)
        self._buffers = list(buffers)
        self._control = tirx.decl_buffer((self.layout.words,), "int64", name="control")
        self._task, self._call = tirx.Var("task", "int32"), tirx.Var("call", "int64")
        self._pieces: list[int] = []

    @property
    def units(self) -> int:
        """How many units were made so far."""
        return len(self._pieces)

    def unit(self, chunks: int, work: Callable[[Any, Any], Any]) -> Any:
        """Return the statement of a unit of so many chunks, of which `work(first, last)` returns the statement for a range."""
        pieces = min(chunks, MAX_PIECES)
        word = self._word(len(self._pieces))
        self._pieces.append(pieces)
        back = tirx.bitwise_and(self._task, tirx.IntImm("int32", 1))
        with IRBuilder() as builder, B.prim_func():
            B.func_name("unit")
            piece = _variable("int32", B.int32(0))
            take = B.call_extern("int32", _TAKE, word, self._call, pieces, back, B.address_of(piece[0]))
            B.evaluate(take)
            with B.While(piece[0] >= 0):
                B.add_to_parent(work(piece[0] * chunks // pieces, (piece[0] + 1) * chunks // pieces))
                B.evaluate(B.call_extern("int32", _FINISH, word, pieces, self._at(SLEEPING)))
                B.evaluate(take)
        func: Any = builder.get()
        return func.body

    def wait(self, unit: int) -> Any:
        """Return the statement that waits until a unit is done, numbered as they were made."""
        done = tirx.IntImm("int64", self._pieces[unit] << _DONE)
        minimum = tirx.shift_left(self._call, tirx.IntImm("int64", _NUMBER)) + done
        return tirx.Evaluate(tirx.call_extern("int32", _AWAIT, self._word(unit), minimum, self._at(SLEEPING)))

    def alone(self, statement: Any) -> Any:
        """Return a statement that only the caller's own thread runs."""
        return tirx.IfThenElse(self._task == 0, statement, None)

    def _word(self, unit: int) -> Any:
        return self._at(self.layout.first_unit + unit * LINE)

    def _at(self, index: int) -> Any:
        return tirx.address_of(self._control[index])

    def functions(self, statements: Sequence[Any]) -> dict[str, Any]:
        """Return all functions but the entry, by symbol; `statements` are the body's, made with the methods above."""
        assert len(self._pieces) == self.layout.units, "as many units as the control block has words for"
        return {**fixed_functions(), BODY: self._body(statements), WORK: self._work()}

    def _body(self, statements: Sequence[Any]) -> Any:
        """Return octavo_worker_body(task, call, control, pointers...): the part of `task` in one call."""
        buffers = [self._control, *self._buffers]
        params = [_pointer(f"{buffer.name}_data", str(buffer.ty.dtype)) for buffer in buffers]
        views = [tirx.DeclBuffer(buffer, data=param) for buffer, param in zip(buffers, params, strict=True)]
        body = tirx.SeqStmt([*views, *statements])
        made = tirx.PrimFunc([self._task, self._call, *params], body, tvm.ir.PrimType("int32"))
        return made.with_attrs({"global_symbol": BODY, "calling_conv": PLAIN_CALL, CALLS_ATTR: True})

    def entry(self, symbol: str, control_at: int) -> Any:
        """Return the entry: its arguments with control at that place."""
        arguments = [*self._buffers[:control_at], self._control, *self._buffers[control_at:]]
        control = self._control
        with IRBuilder() as builder, B.prim_func():
            B.func_name(symbol)
            table = B.address_of(control[POINTERS])
            with B.If(control[TASKS] > 1), B.Then():
                for index, buffer in enumerate(self._buffers):
                    B.evaluate(B.tvm_struct_set(table, index, _DATA_FIELD, tirx.buffer.buffer_data(buffer)))
            call = B.Bind(atomic_add(self._at(CALL), 1) + 1)
            began = _variable("int64", _clock())
            pays = B.Or(began[0] - control[ENDED] < _CLOSE, control[SPENT] > _LONG)
            with B.If(B.And(control[TASKS] > 1, pays)), B.Then():
                _wake(self._at(CALL), self._at(RESTING))
            pointers = [tirx.buffer.buffer_data(buffer) for buffer in (control, *self._buffers)]
            B.evaluate(B.call_extern("int32", BODY, 0, call, *pointers))
            B.buffer_store(control, _clock(), [ENDED])
            B.buffer_store(control, control[ENDED] - began[0], [SPENT])
        func: Any = builder.get()
        return tirx.PrimFunc(arguments, importing(func.body)).with_attrs({"global_symbol": symbol, CALLS_ATTR: True})

    def _work(self) -> Any:
        """Return octavo_worker_work(control, task): the life of the worker that is `task`."""
        layout = self.layout

        def emit() -> None:
            control = B.arg("control", B.buffer((layout.words,), "int64"))
            task = B.arg("task", B.int32())
            call, resting = (B.address_of(control[index]) for index in (CALL, RESTING))
            latest = _variable("int64", B.int64(0))
            with B.While(control[DISMISSED] == 0):
                B.evaluate(B.call_extern("int32", _AWAIT, call, latest[0] + 1, resting))
                B.buffer_store(latest, atomic_load(call), [0])
                with B.If(control[DISMISSED] == 0), B.Then():
                    table = B.address_of(control[POINTERS])
                    pointers = [B.tvm_struct_get(table, index, _DATA_FIELD, "handle") for index in range(layout.pointers)]
                    B.evaluate(B.call_extern("int32", BODY, task, latest[0], tirx.buffer.buffer_data(control), *pointers))

        return _function(WORK, emit)


_LOAD = "octavo_atomic_load"
_ADD = "octavo_atomic_add"
_COMPARE_EXCHANGE = "octavo_compare_exchange"
_IMPORT = "pragma_import_llvm"

_TEXT = f"""
define i64 @{_LOAD}(ptr %word) {{
  %value = load atomic i64, ptr %word seq_cst, align 8
  ret i64 %value
}}

define i64 @{_ADD}(ptr %word, i64 %more) {{
  %value = atomicrmw add ptr %word, i64 %more seq_cst
  ret i64 %value
}}

define i64 @{_COMPARE_EXCHANGE}(ptr %word, i64 %expected, i64 %new) {{
  %both = cmpxchg ptr %word, i64 %expected, i64 %new seq_cst seq_cst
  %value = extractvalue {{ i64, i1 }} %both, 0
  ret i64 %value
}}
"""


def atomic_load(word: Any) -> Any:
    """Return the word at an address, read anew each time."""
    return B.call_extern("int64", _LOAD, word)


def atomic_add(word: Any, more: int) -> Any:
    """Add to the word at an address; return what it was."""
    return B.call_extern("int64", _ADD, word, B.int64(more))


def compare_exchange(word: Any, expected: Any, new: Any) -> Any:
    """Write `new` to an address if it holds `expected`; return what was there."""
    return B.call_extern("int64", _COMPARE_EXCHANGE, word, expected, new)


def importing(body: Any) -> Any:
    """Return a statement that calls the functions above, with their text."""
    return tirx.AttrStmt(tirx.IntImm("int32", 0), _IMPORT, tvm.ir.StringImm(_TEXT), body)
