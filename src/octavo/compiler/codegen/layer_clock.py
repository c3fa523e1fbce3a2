"""Layer clock: a Program whose entry notes the time before each of its calls and at its end. Not for steady use.

Before::

    octavo_0_a(input, constants + 0, workspace)
    octavo_1_b(workspace, output)

After, with one more argument `marks`, two int64 for each mark: seconds and nanoseconds::

    clock_gettime(1, marks);      octavo_0_a(input, constants + 0, workspace)
    clock_gettime(1, marks + 2);  octavo_1_b(workspace, output)
    clock_gettime(1, marks + 4)

It needs a Program, so no virtual machine, and a system whose C library has clock_gettime (POSIX). A mark takes some 30 ns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm.ir import Call, GlobalVar

from ...ir.untyped import tirx
from ...runtime.code import ENTRY
from ...runtime.huge_pages import empty_bytes, tensor_of
from ...runtime.runner import entry_inputs
from .generate import compile_program
from .program import native_program

_MONOTONIC = 1
_COPY = "copy"


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedCalls:
    """Compiled code that times its calls.

    Parameters
    ----------
    symbols
        Of the kernels, in the order of the calls; "copy" for a plain copy of memory.
    run
        Runs once and returns the nanoseconds of each call.
    move
        Takes other memory for constants and intermediate tensors: which pages a layer's weights lie on decides how well they fit
        the caches, so one placement favours a layer and another one doesn't.
    """

    symbols: tuple[str, ...]
    run: Callable[[], npt.NDArray[np.int64]]
    move: Callable[[], None]


def timed_calls(module: tvm.IRModule, target: tvm.target.Target, inputs: Sequence[npt.NDArray[Any]]) -> TimedCalls | None:
    """Compile a linked module with a clock between its calls; None where it needs the virtual machine.

    Parameters
    ----------
    inputs
        One array for each parameter of "main".
    """
    program = native_program(module)
    if program is None:
        return None
    entry, symbols = _with_marks(program.module[ENTRY])
    functions = {var: entry if var.name_hint == ENTRY else function for var, function in program.module.functions_items()}
    library = compile_program(replace(program, module=tvm.IRModule(functions)), target)
    call = library[ENTRY]
    marks: Any = tvm.runtime.tensor(np.zeros(2 * (len(symbols) + 1), np.int64))
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(value)) for value in inputs]
    results = [tvm.runtime.empty(shape, dtype) for shape, dtype in program.outputs]
    placed: list[Any] = []

    def move() -> None:
        before = list(placed)  # kept until there is another: memory that is given back first is what one gets again
        placed[:] = tensor_of(program.constants), empty_bytes(program.workspace)
        before.clear()

    def run() -> npt.NDArray[np.int64]:
        call(*entry_inputs(tensors), *placed, *results, marks)
        seconds, nanoseconds = marks.numpy().reshape(-1, 2).T
        return np.diff((seconds - seconds[0]) * 1_000_000_000 + nanoseconds)

    move()
    return TimedCalls(symbols=symbols, run=run, move=move)


def _with_marks(entry: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the entry with its clock, and what each of its statements calls."""
    statements = list(entry.body.seq) if isinstance(entry.body, tirx.SeqStmt) else [entry.body]
    marks = tirx.decl_buffer((2 * (len(statements) + 1),), "int64", name="marks")

    def mark(number: int) -> Any:
        return tirx.Evaluate(tirx.call_extern("int32", "clock_gettime", _MONOTONIC, tirx.address_of(marks[2 * number])))

    body: list[Any] = []
    for number, statement in enumerate(statements):
        body += [mark(number), statement]
    made = tirx.PrimFunc([*entry.params, marks], tirx.SeqStmt([*body, mark(len(statements))]), entry.ret_type, entry.attrs)
    return made, tuple(_callee(statement) for statement in statements)


def _callee(statement: Any) -> str:
    call = statement.value if isinstance(statement, tirx.Evaluate) else None
    return call.op.name_hint if isinstance(call, Call) and isinstance(call.op, GlobalVar) else _COPY
