"""The first elements of a vector, so many as are known only when a kernel runs: read with masks where the ISA has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm.script.ir_builder import tirx as B

from .isa import AVX512_VNNI, checked_isa
from .vectors import Buffer, Expr, load, splat, store, tirx, vector_type


def has_masks(isa: str, dtype: str) -> bool:
    """Return whether the ISA reads and writes some lanes of a vector in one instruction."""
    return isa == AVX512_VNNI or (checked_isa(isa).family == "x86" and dtype in ("float32", "int32"))


def load_first(into: Buffer, at: Expr, buffer: Buffer, start: Expr, lanes: int, count: Expr, rest: Expr, *, isa: str) -> None:
    """Emit the copy of `count` elements of `buffer` from `start` on to `into`, and of `rest` to the others of the `lanes`.

    No other element is read.
    """
    dtype = str(buffer.dtype)
    if has_masks(isa, dtype):
        others = splat(rest, lanes)
        value = _masked("load", vector_type(dtype, lanes), B.address_of(buffer[start]), _mask(count, lanes), others)
        store(into, at, value, lanes)
        return
    store(into, at, splat(rest, lanes), lanes)
    with B.serial(0, count) as index:
        B.buffer_store(into, buffer[start + index], [at + index])


def lane_by_lane(count: Expr, lanes: int, rests: Sequence[Expr], read: Callable[[Expr], Sequence[Expr]]) -> list[Expr]:
    """Emit vectors whose first `count` lanes are read one after the other, and whose others are `rests`; return them.

    `read(lane)` gives a scalar for each vector. They come together in registers: a vector that is loaded from where scalars were
    just stored waits until all of them have left the store buffer.
    """
    dtypes = [str(rest.ty.dtype) for rest in rests]
    made: list[Any] = [B.alloc_buffer((lanes,), dtype, scope="local") for dtype in dtypes]
    for vector, rest in zip(made, rests, strict=True):
        store(vector, 0, splat(rest, lanes), lanes)
    with B.serial(0, count) as lane:
        is_own = tirx.Ramp(B.int32(0), B.int32(1), lanes).equal(splat(B.int32(0) + lane, lanes))
        for vector, value in zip(made, read(lane), strict=True):
            store(vector, 0, B.Select(is_own, splat(value, lanes), load(vector, 0, lanes)), lanes)
    return [B.Bind(load(vector, 0, lanes)) for vector in made]


def store_first(buffer: Buffer, start: Expr, value: Expr, lanes: int, count: Expr, dtype: str, *, isa: str) -> None:
    """Emit the store of the first `count` of a vector's lanes from `start` on; no other byte is touched."""
    if has_masks(isa, dtype):
        B.evaluate(_masked("store", "void", value, B.address_of(buffer[start]), _mask(count, lanes)))
        return
    staged: Any = B.alloc_buffer((lanes,), dtype, scope="local")
    store(staged, 0, value, lanes)
    with B.serial(0, count) as index:
        B.buffer_store(buffer, load(staged, index, 1), [start + index])


def _mask(count: Expr, lanes: int) -> Expr:
    return tirx.Ramp(B.int32(0), B.int32(1), lanes) < splat(B.int32(0) + count, lanes)


def _masked(name: str, dtype: str, *args: Expr) -> Expr:
    # Not pure: what is read may have been written before.
    return B.call_llvm_intrin(B.llvm_lookup_intrinsic_id(f"llvm.masked.{name}"), *args, dtype=dtype)


def load_partial(buffer: Buffer, index: Expr, lanes: int, valid: int, dtype: str = "float32") -> Expr:
    """Return a vector whose first `valid` lanes are read, in pieces of a power of two; nothing else is touched."""
    if valid == lanes:
        return load(buffer, index, lanes)
    staged: Any = B.alloc_buffer((lanes,), dtype, scope="local")
    store(staged, 0, B.broadcast(tirx.const(0, dtype), lanes), lanes)
    done = 0
    while done < valid:
        piece = 1 << ((valid - done).bit_length() - 1)
        store(staged, done, load(buffer, index + done, piece), piece)
        done += piece
    return B.Bind(load(staged, 0, lanes))
