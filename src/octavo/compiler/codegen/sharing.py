"""How the threads of one call share its kernels: which kernels they cut in pieces, and which must be done before others begin.

A kernel whose whole work is one parallel loop is shared: a thread runs ranges of the loop. Any other kernel is one thread's.
Where a kernel reads or overwrites what another writes, that one must be done before it begins; nowhere else do threads wait.

Before:  kernel(x, y): for chunk in parallel(0, 2): ...
After:   kernel(x, y, first, last): for chunk in serial(first, last): ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.tirx import IntImm

from ...ir.untyped import tirx

ByteRange = tuple[int, int, int]
"""Bytes [start; stop) of an argument of the entry: (argument, start, stop)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """What one call reads and writes, and whether several threads may take part in it."""

    reads: tuple[ByteRange, ...]
    writes: tuple[ByteRange, ...]
    shared: bool

    def conflicts(self, other: Access) -> bool:
        """Return whether one writes what the other reads or writes."""
        return _overlap(self.writes, other.writes) or _overlap(self.writes, other.reads) or _overlap(self.reads, other.writes)


def _overlap(some: Sequence[ByteRange], others: Sequence[ByteRange]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def phases(accesses: Sequence[Access]) -> list[list[list[int]]]:
    """Return the calls, by index, in units, and the units in phases: those of one run side by side, after the phase before.

    A unit is one shared call, or all calls of a phase that aren't shared: one thread makes them, in their order.
    """
    made: list[list[list[int]]] = []
    since: list[Access] = []
    single: list[int] | None = None
    for index, access in enumerate(accesses):
        meet = any((access.shared or other.shared) and access.conflicts(other) for other in since)
        if meet or not made:
            made.append([])
            since, single = [], None
        since.append(access)
        if access.shared:
            made[-1].append([index])
        elif single is None:
            single = [index]
            made[-1].append(single)
        else:
            single.append(index)
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedKernel:
    """A kernel's body for a range of the chunks of its parallel loop.

    Parameters
    ----------
    body
        The statement.
    first, last
        The variables that bound the range.
    chunks
        How many there are.
    """

    body: Any
    first: Any
    last: Any
    chunks: int


def shared_kernel(kernel: Any) -> SharedKernel | None:
    """Return a PrimFunc's body for a range of chunks; None where it is more than one parallel loop and what it reads, or less."""
    statements = list(kernel.body.seq) if isinstance(kernel.body, tirx.SeqStmt) else [kernel.body]
    own = [each.buffer for each in statements if isinstance(each, tirx.AllocBuffer)]
    loops = [each for each in statements if not _is_local(each, own)]
    if len(loops) != 1 or not isinstance(loops[0], tirx.For):
        return None
    loop: Any = loops[0]
    if loop.kind != tirx.ForKind.PARALLEL or not isinstance(loop.extent, tirx.IntImm) or not _is(loop.min, 0):
        return None
    first, last = tirx.Var("first_chunk", "int32"), tirx.Var("last_chunk", "int32")
    serial = tirx.For(loop.loop_var, first, last - first, tirx.ForKind.SERIAL, loop.body)
    body = serial if len(statements) == 1 else tirx.SeqStmt([serial if each is loop else each for each in statements])
    return SharedKernel(body=body, first=first, last=last, chunks=int(loop.extent))


def _is_local(statement: Any, own: Sequence[Any]) -> bool:
    """Return whether a statement only names or computes what each thread may have for itself, in these buffers of its own."""
    if isinstance(statement, tirx.BufferStore):
        return any(statement.buffer.same_as(buffer) for buffer in own)
    return isinstance(statement, tirx.DeclBuffer | tirx.AllocBuffer | tirx.Bind)


def _is(value: Any, number: int) -> bool:
    return isinstance(value, IntImm) and int(value) == number
