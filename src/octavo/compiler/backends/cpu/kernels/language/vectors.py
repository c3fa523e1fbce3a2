"""How the kernels are written down: PrimFuncs over flat buffers, vectors of them, loops cut into chunks for threads.

Nothing here knows an op or a rounding; `rounding` has the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
import tvm
from tvm import tirx as _tirx
from tvm.ir import Op, PrimType
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as B

from ......ir.graph.kernel_attributes import OPEN_ATTR, SIZE_NAME, SIZES_ATTR
from ......ir.graph.nodes import function_of
from ......runtime.shapes import typical
from ......runtime.size import Size, dimension, expressed_by, is_open
from .contents import UnknownContentError, content

# TVM annotates its constructors more narrowly than what they take.
tirx: Any = _tirx

Expr = Any
"""A TIR expression, scalar or vector: TVM builds its operators at run time and ships no types for them."""

Buffer = Any
"""A TIR buffer."""

CHUNK_CYCLES = 1 << 11
"""Cycles of work that a chunk must hold to be worth a thread: those of a call meet in some hundred, and then find each other's
results in the other's cache."""

OPERATIONS_PER_CYCLE = 8
"""Elementary operations on single elements that a vectorised loop does in a cycle, at least."""


_WITHOUT_BODIES = ContextVar("without_bodies", default=False)


@contextmanager
def without_bodies() -> Generator[None]:
    """Let `prim_func` emit no statements meanwhile, for who wants no kernel's code."""
    token = _WITHOUT_BODIES.set(True)
    try:
        yield
    finally:
        _WITHOUT_BODIES.reset(token)


_RECENT: dict[Any, tvm.tirx.PrimFunc] = {}
_KEEPING = Lock()
_RECENT_LIMIT = 256
"""PrimFuncs that are kept: those of a large network's kernels take some tens of MiB."""


def writes_bodies() -> bool:
    """Return whether `prim_func` emits statements."""
    return not _WITHOUT_BODIES.get()


def prim_func(arguments: Sequence[tuple[str, int, str]], body: Callable[..., None]) -> tvm.tirx.PrimFunc:
    """Return the PrimFunc "main" over one-dimensional buffers that `body`, called with those buffers, emits.

    Parameters
    ----------
    arguments
        (name, elements, dtype) of each buffer: the activation inputs, then the constants, then the output.
    body
        Emits the statements.

    An open dimension that a size or a statement reads is an argument before the output, as `call_tir` has them. Sizes that the
    statements read are computed once, before them. What was written lately for equal arguments and a body that does the same is
    returned again: equal layers, and the same model compiled with other parameters of some layers, are most of what is compiled.
    """
    key = _key(arguments, body)
    if key is None:
        return _emitted(arguments, body)
    func = _RECENT.pop(key, None) or _emitted(arguments, body)
    with _KEEPING:
        _RECENT[key] = func  # behind all others: the first is the one that was asked for least lately
        if len(_RECENT) > _RECENT_LIMIT:
            del _RECENT[next(iter(_RECENT))]
    return func


def _key(arguments: Sequence[tuple[str, int, str]], body: Callable[..., None]) -> Any:
    """Return what decides a PrimFunc; None where that isn't known, or an expression stands for an open size, one of its own."""
    try:
        return content((tuple(arguments), None if _WITHOUT_BODIES.get() else body))
    except UnknownContentError:
        return None


def _emitted(arguments: Sequence[tuple[str, int, str]], body: Callable[..., None]) -> tvm.tirx.PrimFunc:
    sizes = _Sizes()
    with IRBuilder() as builder, B.prim_func():
        B.func_name("main")
        B.func_attr({"tirx.noalias": True})
        with expressed_by(sizes.dimension):
            buffers = [B.arg(name, B.buffer((dimension(elements),), dtype)) for name, elements, dtype in arguments]
        with expressed_by(sizes.dimension, sizes.size):
            if _WITHOUT_BODIES.get():
                B.evaluate(0)
            else:
                body(*buffers)
    func: Any = builder.get()
    computed = sizes.computed()
    if not sizes.dimensions:
        return func
    params = list(func.params)
    params[-1:-1] = sizes.dimensions.values()
    statements = func.body if computed is None else tirx.SeqStmt([computed, func.body])
    made = function_of(params, statements, func.ret_type, func.attrs)
    return made.with_attrs({OPEN_ATTR: 1, SIZES_ATTR: list(map(str, sizes.variables))})


class _Sizes:
    """The open sizes of a PrimFunc: dimensions, each one more argument, int32, before the output, and what is computed of them.

    TVM's passes don't see what a variable of a size is made of: they would spend seconds on products of quotients, and write
    some twice.
    """

    def __init__(self) -> None:
        self.dimensions: dict[str, Any] = {}
        self.variables: dict[Size, Any] = {}

    def dimension(self, name: str) -> Any:
        """Return the argument of a dimension."""
        return self.dimensions.setdefault(name, tirx.Var(name, "int32"))

    def size(self, size: Size) -> Any:
        """Return the variable of a size."""
        if size == Size.named(str(size)):
            return self.dimension(str(size))
        return self.variables.setdefault(size, tirx.Var(SIZE_NAME, "int32"))

    def computed(self) -> Any:
        """Return the statement that computes the variables that were read; None where none was."""
        if not self.variables:
            return None
        with IRBuilder() as builder, B.prim_func():
            B.func_name("main")
            for size, variable in self.variables.items():
                B.Bind(kept(size.expression(self.dimension), "int32"), var=variable)
        func: Any = builder.get()
        return func.body


def vector_type(dtype: str, lanes: int) -> str:
    """Return the TIR dtype of a vector, e.g. "uint8x64"; one lane is a scalar."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def splat(value: Expr, lanes: int) -> Expr:
    """Return `value` in every lane."""
    return value if lanes == 1 else B.broadcast(value, lanes)


def intrinsic(name: str, dtype: str, *args: Expr) -> Expr:
    """Call an LLVM intrinsic that has no side effect.

    A kernel does so hundreds of times: TVM's own functions for that look up names, and check operands, each time.
    """
    return _call()(_prim_type(dtype), _pure_intrinsic(), [_intrinsic_id(name), *args], None, [], None)


@cache
def _call() -> Any:
    return tvm.get_global_func("ir.Call")


@cache
def _pure_intrinsic() -> Any:
    return Op.get("tirx.call_llvm_pure_intrin")


@cache
def _intrinsic_id(name: str) -> Any:
    """Return LLVM's number of an intrinsic."""
    return tirx.const(int(B.llvm_lookup_intrinsic_id(name)), "uint32")


@cache
def _prim_type(dtype: str) -> Any:
    return PrimType(dtype)


def load(buffer: Buffer, start: Expr, lanes: int, dtype: str | None = None) -> Expr:
    """Return `lanes` neighbours of `buffer` from `start` on, converted to `dtype` where one is given."""
    value = tirx.BufferLoad(buffer, [_span(start, lanes)])
    return value if dtype is None else value.astype(vector_type(dtype, lanes))


def store(buffer: Buffer, start: Expr, value: Expr, lanes: int) -> None:
    """Emit the store of a vector to `buffer` from `start` on."""
    B.buffer_store(buffer, value, [_span(start, lanes)])


def store_partial(buffer: Expr, index: Expr, value: Expr, lanes: int, valid: Expr, dtype: str = "uint8") -> None:
    """Emit a store of the first `valid` of `lanes` elements, in pieces of a power of two; no other byte is touched.

    `valid` may be an expression: then the store is a loop.
    """
    if isinstance(valid, int) and valid == lanes:
        store(buffer, index, value, lanes)
        return
    staged = B.alloc_buffer((lanes,), dtype, scope="local")
    store(staged, 0, value, lanes)
    if not isinstance(valid, int):
        with B.serial(0, valid) as lane:
            B.buffer_store(buffer, staged[lane], [index + lane])
        return
    done = 0
    while done < valid:
        piece = 1 << ((valid - done).bit_length() - 1)
        if piece == 1:
            B.buffer_store(buffer, staged[done], [index + done])
        else:
            store(buffer, index + done, load(staged, done, piece), piece)
        done += piece


def dword_of(x: Expr, index: Expr, count: int) -> Expr:
    """Return x[index : index + count], count < 4, as the low bytes of an int32; the others are 0 and are not read."""
    dword = B.cast(x[index], "int32")
    for byte in range(1, count):
        dword = dword | (B.cast(x[index + byte], "int32") << (8 * byte))
    return dword


def clamped_to(value: Expr, low: float, high: float, lanes: int) -> Expr:
    """Return float32 values within [low; high]; an infinite bound costs nothing."""
    if not math.isinf(low):
        value = B.max(value, splat(B.float32(low), lanes))
    if not math.isinf(high):
        value = B.min(value, splat(B.float32(high), lanes))
    return value


def prefetch(buffer: Buffer, index: Expr, *, to_write: bool) -> None:
    """Emit the request for the cache line of an element that will soon be read or written; it changes no value."""
    line = B.address_of(buffer[index])
    nearest, data = B.int32(3), B.int32(1)
    intrinsic_id = B.llvm_lookup_intrinsic_id("llvm.prefetch")
    B.evaluate(B.call_llvm_intrin(intrinsic_id, line, B.int32(to_write), nearest, data, dtype="void"))


def values_by_turn(value: Expr) -> Callable[[Expr], Expr]:
    """Emit two copies of an int32 before a loop, and return what reads one of them, chosen by the loop's variable.

    LLVM loads before a loop what is loaded from the same place in every turn, even if that takes more registers than there are:
    then it spills them, and reads the stack instead. It can't see that an index read from here never changes.
    """
    copies: Any = B.alloc_buffer((2,), "int32", scope="local")
    for copy in range(2):
        B.buffer_store(copies, value, [copy])
    return lambda turn: B.Bind(copies[turn & 1])


def shuffled(parts: Sequence[Expr], lanes: Sequence[int]) -> Expr:
    """Return the lanes of these vectors, counted through all of them."""
    return tirx.Shuffle(parts, [_constant(lane) for lane in lanes])


def _span(start: Expr, lanes: int) -> Expr:
    if lanes == 1:
        return start
    return tirx.Ramp(_constant(start) if isinstance(start, int) else start, _constant(1), _constant(lanes))


@cache
def _constant(value: int) -> Any:
    """Return an int32; to make one takes as long as an expression that has it."""
    return tirx.IntImm("int32", value)


def kept(value: Expr, dtype: str) -> Expr:
    """Emit the store of a scalar to a variable of its own and return that.

    What is bound, TVM's simplifier may put in wherever it is read; in a long chain of values that are read twice that has no end.
    """
    variable: Any = B.alloc_buffer((1,), dtype, scope="local")
    B.buffer_store(variable, value, [0])
    return variable[0]


@contextmanager
def chunked(count: int, threads: int) -> Generator[Expr, None, None]:
    """Emit a loop over range(count), in `threads` balanced chunks that run in parallel; yield its variable."""
    if threads == 1:
        with B.serial(0, count) as index:
            yield index
        return
    with B.parallel(0, threads) as chunk, B.serial(chunk * count // threads, (chunk + 1) * count // threads) as index:
        yield index


def worthwhile(threads: int, operations: int, pieces: int) -> int:
    """Return how many chunks, `threads` at most, these elementary operations on `pieces` of work are worth."""
    return chunks_for(threads, typical(operations) / OPERATIONS_PER_CYCLE, typical(pieces))


def chunks_for(threads: int, cycles: float, pieces: int) -> int:
    """Return how many chunks, `threads` at most, so many cycles of work in `pieces` are worth."""
    return max(1, min(threads, int(cycles / CHUNK_CYCLES), pieces))


def for_each_vector(size: int, lanes: int, threads: int, body: Callable[[Expr, int], None], *, operations: int = 1) -> None:
    """Emit `body(start, lanes)` for every full vector of range(size), then once for the shorter rest; of an open one, by element.

    Parameters
    ----------
    size
        Elements.
    lanes
        Length of a full vector.
    threads
        Chunks that the full vectors are cut into; too little work stays in one.
    body
        Emits the work on elements [start; start + lanes).
    operations
        Elementary operations that an element costs.
    """
    vectors, rest = divmod(size, lanes)

    def body_of_rest() -> None:
        if not is_open(rest):
            if rest:
                body(vectors * lanes, rest)
            return
        with B.serial(0, rest) as index:
            body(vectors * lanes + index, 1)

    shared = worthwhile(threads, size * operations, vectors)
    if shared > 1:
        with B.parallel(0, shared) as chunk:
            with B.serial(chunk * vectors // shared, (chunk + 1) * vectors // shared) as index:
                body(index * lanes, lanes)
            if is_open(rest) or rest:  # within the one parallel loop: a kernel that is no more than that can be shared
                with B.If(chunk == shared - 1), B.Then():
                    body_of_rest()
        return
    if is_open(vectors) or vectors:
        with B.serial(0, vectors) as index:
            body(index * lanes, lanes)
    body_of_rest()


def bound(size: int | Expr) -> int | Expr:
    """Return a size as the kernel reads it: an int as it is, an open one as an expression."""
    return size.asobject() if isinstance(size, Size) else size


def least(one: Expr, other: Expr) -> Expr:
    """Return the smaller of two sizes, an int of ints."""
    return min(one, other) if isinstance(one, int) and isinstance(other, int) else B.min(one, other)


def split(index: Expr, count: int | Expr) -> tuple[Expr, Expr]:
    """Return index // count and index % count of an index that isn't negative.

    By an open count both round to 0: what TVM makes of other quotients binds variables within expressions, which it writes twice.
    """
    if isinstance(count, int):
        return index // count, index % count
    count = B.int32(0) + count
    quotient = B.Bind(B.truncdiv(index, count))
    return quotient, B.Bind(index - quotient * count)


def float_of(size: Expr) -> Expr:
    """Return a size as float32; one that is open is rounded when the kernel runs, to the same."""
    return (B.int64(0) + size).astype("float32") if is_open(size) else B.float32(float(np.float32(size)))


def where_at_least(size: Expr, least: int, enough: Callable[[], None], fewer: Callable[[], None]) -> None:
    """Emit `enough()` for a size that is at least so much, `fewer()` for another; of an open one both, and the choice."""
    if not is_open(size):
        (enough if size >= least else fewer)()
        return
    with B.If(B.int32(0) + size >= least):
        with B.Then():
            enough()
        with B.Else():
            fewer()


def across_lanes(value: Expr, lanes: int, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    """Return all lanes combined: the upper half with the lower, until one is left."""
    value = B.Bind(value)
    while lanes > 1:
        lanes //= 2
        halves = [shuffled([value], [first + i for i in range(lanes)]) for first in (0, lanes)]
        value = B.Bind(combine(*halves))
    return value


def where_left(rest: Expr, body: Callable[[], None]) -> None:
    """Emit `body()` where something is left: of a rest that is no number, the kernel finds out when it runs."""
    if not isinstance(rest, int):
        with B.If(B.int32(0) + rest > 0), B.Then():
            body()
    elif rest:
        body()


def for_tiles(count: Expr, height: int, body: Callable[[Expr, int], None]) -> None:
    """Emit `body(first, rows)` for tiles of `height` rows over range(count), and for the rows that are left behind them."""
    if is_open(count):
        for_open_tiles(count, height, body, overlaps=False)
        return
    full, left = divmod(count, height)
    if full:
        with B.serial(0, full) as index:
            body(B.Bind(index * height), height)
    if left:
        body(B.int32(full * height), left)


def for_open_tiles(count: Expr, height: int, body: Callable[[Expr, int], None], *, overlaps: bool = True) -> None:
    """Emit `body(first, rows)` for tiles of `height` rows over range(count), where that is known only when the kernel runs.

    The last tile ends with the last row: it computes some rows again, to the same values. Fewer rows than a tile's are taken in
    powers of two. Unless it `overlaps`, rows behind the last whole tile are taken by two, which costs less where a row costs
    much, and compiles faster than more heights would: then a tile of an even height has an even start.
    """
    if height == 1:
        with B.serial(0, count) as index:
            body(index, 1)
        return
    rows = B.Bind(B.int32(0) + count)

    def in_powers(first: Expr, left: Expr) -> None:
        for part in reversed(range((height - 1).bit_length())):
            with B.If(B.bitwise_and(left, B.int32(1 << part)) != 0), B.Then():
                body(B.Bind(first + B.bitwise_and(left, B.int32(-2 << part))), 1 << part)

    if not overlaps:
        full = B.Bind(B.floordiv(rows, B.int32(height)))
        with B.serial(0, full) as index:
            body(B.Bind(index * height), height)
        left = B.Bind(rows - full * height)
        if height > 2:
            with B.serial(0, B.shift_right(left, B.int32(1))) as index:
                body(B.Bind(full * height + index * 2), 2)
        with B.If(B.bitwise_and(left, B.int32(1)) != 0), B.Then():
            body(B.Bind(rows - 1), 1)
        return
    with B.If(rows >= height):
        with B.Then(), B.serial(0, B.floordiv(rows + (height - 1), B.int32(height))) as index:
            body(B.Bind(B.min(index * height, rows - height)), height)
        with B.Else():
            in_powers(B.int32(0), rows)


def interior(start: Expr, taps: int, dilation: int, extent: int, *, always: bool) -> tuple[Expr, Expr]:
    """Return [first; last) of the taps whose index start + tap * dilation lies in range(extent).

    Parameters
    ----------
    start
        Index of tap 0; negative inside the padding.
    taps, dilation
        Of one axis of a window.
    extent
        Of the image along that axis.
    always
        Whether every tap is known to lie inside: then both bounds are plain numbers.
    """
    if always:
        return 0, taps
    # Both quotients round up: the first tap not before 0, the first not before `extent`.
    first = B.Bind(B.min((B.max(B.int32(0), -start) + dilation - 1) // dilation, B.int32(taps)))
    last = B.min((B.max(B.int32(0), extent - start) + dilation - 1) // dilation, B.int32(taps))
    return first, B.Bind(B.max(first, last))
