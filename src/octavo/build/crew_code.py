"""The code of a crew: threads that run one program's body together, call after call. TIR alone; no tensors, no Python threads.

    octavo_main      hands the call's pointers to the workers, runs the body as task 0
    octavo_work      a worker's life: wait for a call, run the body as task t, until dismissed
    octavo_meet      all tasks of a call wait for each other

They share one block, "control": a line of numbers, then for each task a line with its count of meetings and a line with its
semaphore, then the pointers. Each count has one writer, so plain loads and stores do on x86-64, whose stores become visible in
their order; semaphores are the C library's. A worker that waits for a call spins for a moment, then sleeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx as _tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as B

from .tir_passes import PLAIN_CALL

# TVM annotates its constructors more narrowly than what they take.
tirx: Any = _tirx

BODY = "octavo_body"
WORK = "octavo_work"
ENLIST = "octavo_enlist"
DISMISS = "octavo_dismiss"
_MEET = "octavo_meet"
CREW_SYMBOLS = (BODY, WORK, ENLIST, DISMISS, _MEET)

TASKS = 0
"""Index in control: how many tasks a call has, the caller's among them."""

_DISMISSED = 1
_MEETINGS = 2
_LINE = 8
_COUNTS = _LINE
_TENSOR_WORDS = 6
_DATA_FIELD = 1
"""Pointers are kept as the data of DLTensors, the only struct of pointers that TIR can read and write."""

_WAIT_SPINS = 4000
"""Turns that a worker spins for its next call, each a try of its semaphore and a pause: some 100 microseconds."""

_MEET_SPINS = 4000
_MEET_YIELDS = 200
_NAP_US = 20
"""A task that waits for the others spins for so many turns, then offers them its core for so many, then sleeps between looks:
the others wait for a core themselves, and an idle one goes to whoever waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Where things are in the control block, in words of 8 bytes, for `tasks` at most and so many pointers."""

    tasks: int
    pointers: int

    @property
    def table(self) -> int:
        """First word of the pointers."""
        return _COUNTS + 2 * self.tasks * _LINE

    @property
    def words(self) -> int:
        """Words of the whole block."""
        return self.table + self.pointers * _TENSOR_WORDS


def control_layout(tasks: int, inputs: int, outputs: int) -> Layout:
    """Return the layout for a program's calls: pointers to its inputs, constants, workspace and outputs."""
    return Layout(tasks=tasks, pointers=inputs + 2 + outputs)


def _pause() -> None:
    B.evaluate(B.call_llvm_intrin(B.llvm_lookup_intrinsic_id("llvm.x86.sse2.pause"), dtype="void"))


def _function(name: str, emit: Callable[[], None]) -> Any:
    with IRBuilder() as builder, B.prim_func():
        B.func_name(name)
        emit()
    func: Any = builder.get()
    return func.with_attr("global_symbol", name)


def _plain(name: str, params: Sequence[Any], views: Sequence[Any], body: Any) -> Any:
    made = tirx.PrimFunc(list(params), tirx.SeqStmt([*views, body]), tvm.ir.PrimType("int32"))
    return made.with_attr("global_symbol", name).with_attr("calling_conv", PLAIN_CALL)


def _semaphore(control: Any, layout: Layout, task: Any) -> Any:
    return B.address_of(control[_COUNTS + (layout.tasks + task) * _LINE])


def crew_functions(layout: Layout) -> dict[str, Any]:
    """Return the functions that know no program: enlist, dismiss, meet, by symbol."""

    def enlist() -> None:
        control = B.arg("control", B.buffer((layout.words,), "int64"))
        with B.serial(0, layout.tasks) as task:
            B.evaluate(B.call_extern("int32", "sem_init", _semaphore(control, layout, task), 0, 0))

    def dismiss() -> None:
        control = B.arg("control", B.buffer((layout.words,), "int64"))
        B.buffer_store(control, B.int64(1), [_DISMISSED])
        with B.serial(0, layout.tasks) as task:
            B.evaluate(B.call_extern("int32", "sem_post", _semaphore(control, layout, task)))

    return {ENLIST: _function(ENLIST, enlist), DISMISS: _function(DISMISS, dismiss), _MEET: _meet(layout)}


def _meet(layout: Layout) -> Any:
    """Return octavo_meet(control, task, tasks, count): say that `task` has come to meeting `count`, wait until all have."""
    pointer = _pointer("control_data", "int64")
    control = tirx.decl_buffer((layout.words,), "int64", name="control", data=pointer)
    task, tasks = tirx.Var("task", "int32"), tirx.Var("tasks", "int32")
    count = tirx.Var("count", "int64")
    with IRBuilder() as builder, B.prim_func():
        B.func_name(_MEET)
        B.buffer_store(control, count, [_COUNTS + task * _LINE])
        spins = B.alloc_buffer((1,), "int32", scope="local")
        B.buffer_store(spins, B.int32(0), [0])
        with B.serial(0, tasks) as other, B.While(control[_COUNTS + other * _LINE] < count):
            with B.If(spins[0] < _MEET_SPINS + _MEET_YIELDS):
                with B.Then():
                    B.buffer_store(spins, spins[0] + 1, [0])
                    with B.If(spins[0] > _MEET_SPINS), B.Then():
                        B.evaluate(B.call_extern("int32", "sched_yield"))
                with B.Else():
                    B.evaluate(B.call_extern("int32", "usleep", _NAP_US))
            _pause()
    func: Any = builder.get()
    return _plain(_MEET, [pointer, task, tasks, count], [tirx.DeclBuffer(control, data=pointer)], func.body)


def _pointer(name: str, dtype: str) -> Any:
    return tirx.Var(name, tvm.ir.PointerType(tvm.ir.PrimType(dtype), "global"))


class CrewCode:
    """The functions of one program for a crew.

    Parameters
    ----------
    buffers
        The entry's arguments, less control.
    tasks
        The most that a call may have.
    """

    def __init__(self, buffers: Sequence[Any], tasks: int) -> None:
        self.layout = Layout(tasks=tasks, pointers=len(buffers))
        self._buffers = list(buffers)
        self.control = tirx.decl_buffer((self.layout.words,), "int64", name="control")
        self.task, self.tasks = tirx.Var("task", "int32"), tirx.Var("tasks", "int32")
        self._chunks: dict[int, tuple[Any, Any]] = {}
        self._begun = tirx.Var("begun", "int64")
        self._met = 0

    def meet(self) -> Any:
        """Return the statement at which all tasks meet."""
        self._met += 1
        arguments = (tirx.buffer.buffer_data(self.control), self.task, self.tasks, self._begun + self._met)
        return tirx.Evaluate(tirx.call_extern("int32", _MEET, *arguments))

    def alone(self, statement: Any) -> Any:
        """Return a statement that only the caller's own thread runs."""
        return tirx.IfThenElse(self.task == 0, statement, None)

    def chunks(self, count: int) -> tuple[Any, Any]:
        """Return [first; last) of the chunks of `count` that a task takes."""
        if count not in self._chunks:
            self._chunks[count] = tirx.Var(f"first_of_{count}", "int32"), tirx.Var(f"last_of_{count}", "int32")
        return self._chunks[count]

    def functions(self, statements: Sequence[Any]) -> dict[str, Any]:
        """Return all functions but the entry, by symbol; `statements` are the body's, made with the methods above."""
        return {**crew_functions(self.layout), BODY: self._body([*statements, self.meet()]), WORK: self._work()}

    def _body(self, statements: Sequence[Any]) -> Any:
        """Return octavo_body(task, tasks, control, pointers...): the part of `task` in one call."""
        buffers = [self.control, *self._buffers]
        params = [_pointer(f"{buffer.name}_data", str(buffer.ty.dtype)) for buffer in buffers]
        views = [tirx.DeclBuffer(buffer, data=param) for buffer, param in zip(buffers, params, strict=True)]
        binds = [tirx.Bind(self._begun, self.control[_MEETINGS])]
        for count, (first, last) in self._chunks.items():
            binds.append(tirx.Bind(first, self.task * count // self.tasks))
            binds.append(tirx.Bind(last, (self.task + 1) * count // self.tasks))
        return _plain(BODY, [self.task, self.tasks, *params], [*views, *binds], tirx.SeqStmt(list(statements)))

    def entry(self, symbol: str, control_at: int) -> Any:
        """Return the entry: its arguments with control at that place. To be called after `functions`."""
        layout, met = self.layout, self._met
        arguments = [*self._buffers[:control_at], self.control, *self._buffers[control_at:]]
        control = self.control
        with IRBuilder() as builder, B.prim_func():
            B.func_name(symbol)
            tasks = B.Bind(B.cast(control[TASKS], "int32"))
            with B.If(tasks > 1), B.Then():
                table = B.address_of(control[layout.table])
                for index, buffer in enumerate(self._buffers):
                    B.evaluate(B.tvm_struct_set(table, index, _DATA_FIELD, tirx.buffer.buffer_data(buffer)))
                with B.serial(1, tasks) as task:
                    B.evaluate(B.call_extern("int32", "sem_post", _semaphore(control, layout, task)))
            pointers = [tirx.buffer.buffer_data(buffer) for buffer in (control, *self._buffers)]
            B.evaluate(B.call_extern("int32", BODY, 0, tasks, *pointers))
            B.buffer_store(control, control[_MEETINGS] + met, [_MEETINGS])
        func: Any = builder.get()
        return tirx.PrimFunc(arguments, func.body).with_attr("global_symbol", symbol)

    def _work(self) -> Any:
        """Return octavo_work(control, task): the life of the worker that is `task`."""
        layout = self.layout

        def emit() -> None:
            control = B.arg("control", B.buffer((layout.words,), "int64"))
            task = B.arg("task", B.int32())
            semaphore = _semaphore(control, layout, task)
            failed = B.alloc_buffer((1,), "int32", scope="local")
            spins = B.alloc_buffer((1,), "int32", scope="local")
            with B.While(control[_DISMISSED] == 0):
                B.buffer_store(spins, B.int32(0), [0])
                B.buffer_store(failed, B.call_extern("int32", "sem_trywait", semaphore), [0])
                with B.While(B.And(failed[0] != 0, spins[0] < _WAIT_SPINS)):
                    _pause()
                    B.buffer_store(spins, spins[0] + 1, [0])
                    B.buffer_store(failed, B.call_extern("int32", "sem_trywait", semaphore), [0])
                with B.While(failed[0] != 0):  # a signal may end the wait early
                    B.buffer_store(failed, B.call_extern("int32", "sem_wait", semaphore), [0])
                with B.If(control[_DISMISSED] == 0), B.Then():
                    table = B.address_of(control[layout.table])
                    pointers = [B.tvm_struct_get(table, index, _DATA_FIELD, "handle") for index in range(layout.pointers)]
                    tasks = B.cast(control[TASKS], "int32")
                    B.evaluate(B.call_extern("int32", BODY, task, tasks, tirx.buffer.buffer_data(control), *pointers))

        return _function(WORK, emit)
