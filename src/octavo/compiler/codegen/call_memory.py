"""The calls of a program, and where the bytes lie that they read and write. Plans nothing: `program` does."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.ir import GlobalVar

from ...runtime.size import is_open
from .sharing import Access, ByteRange


@dataclass(eq=False, kw_only=True, slots=True)
class Memory:
    """Where the bytes of a value lie: in argument `argument` of the entry, `offset` bytes from its start.

    None until it is known: the workspace, unless the caller wants it as a result. Calls `first` to `last` write or read it. One
    that is written `over` another lies where that does. One that is `kept` stays there from one run to the next.
    """

    size: int
    argument: int | None = None
    offset: int = 0
    first: int = 0
    last: int = -1
    over: Memory | None = None
    kept: bool = False

    @property
    def root(self) -> Memory:
        """The memory that it lies in: its own, or what it is written over."""
        return self if self.over is None else self.over.root

    @property
    def place(self) -> ByteRange:
        """The bytes, once they are known; a value of an open size is all that its argument holds, and counts as one."""
        if self.over is not None:
            return self.over.place
        assert self.argument is not None, "every tensor has its place"
        return self.argument, self.offset, self.offset + (1 if is_open(self.size) else self.size)


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCall:
    """One call; `callee` is None for a copy of the first operand to the second. The last `results` operands are written.

    A copy is of so many `bytes`. `shapes` are those of the operands, `sizes` the open ones that the kernel takes behind them.
    Where the dimension `unless` is not 0, the call is left out.
    """

    callee: GlobalVar | None
    operands: tuple[Memory, ...]
    results: int = 1
    shapes: tuple[tuple[int, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    bytes: int = 0
    unless: str = ""

    def access(self, *, shared: bool) -> Access:
        """Return what it reads and writes; to be called once all memory has its place."""
        places = [memory.place for memory in self.operands]
        inputs = len(places) - self.results
        return Access(reads=tuple(places[:inputs]), writes=tuple(places[inputs:]), shared=shared)
