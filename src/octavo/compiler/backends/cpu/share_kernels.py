"""Kernels that differ in numbers alone become one, which takes those as arguments: layers of one shape share their machine code.

Scales and zero points are literals of the kernels, where TVM's passes and LLVM fold what they can. Each layer has its own, and
would have its own machine code.

Before::

    octavo_3: y[0:16] = T.Cast("float32x16", x[0:16]) * T.Broadcast(T.float32(0.25), 16)    # called with (x,)
    octavo_7: y[0:16] = T.Cast("float32x16", x[0:16]) * T.Broadcast(T.float32(0.125), 16)

After::

    octavo_3, octavo_7:  ... * T.Broadcast(T.reinterpret("float32", number), 16)            # called with (x, bits of 0.25)

Of kernels of known sizes only numbers that are values are looked at, no places or extents: those shape the code. One of open
sizes computes with variables anyway: it takes sizes, strides and counts of channels, too, so that layers of any image share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir import Call
from tvm_ffi import StructuralKey

from ....ir.graph.nodes import function_of
from ....ir.untyped import tirx
from ....runtime.size import Size
from .context import PlacedKernel
from .lift_sizes import LiftedKernel, lifted

Numbers = tuple[int | Size, ...]


def share_kernels(kernels: Mapping[str, PlacedKernel]) -> tuple[dict[str, PlacedKernel], dict[str, Numbers]]:
    """Return the kernels by symbol, and what each that is shared now takes between its buffers: int32, of floats the bits."""
    shared, given = dict(kernels), dict[str, Numbers]()
    for group in (group for alike in _alike(kernels) for group in _groups(alike)):
        values = list(zip(*(each.bits for each in group), strict=True))
        own = {each: number for number, each in enumerate(dict.fromkeys(each for each in values if len(set(each)) > 1))}
        if not own and len({sizes for each in group for sizes in each.code.sizes.values()}) == 1:
            continue
        func = _with_arguments(group[0], [own.get(each) for each in values], len(own))
        for member, each in enumerate(group):
            for symbol, sizes in each.code.sizes.items():
                given[symbol] = *sizes, *(numbers[member] for numbers in own)
                attributed = function_of(func.params, func.body, func.ret_type, kernels[symbol].func.attrs)
                shared[symbol] = replace(kernels[symbol], func=attributed)
    return shared, given


@dataclass(frozen=True, kw_only=True, slots=True)
class _Code:
    """A PrimFunc without attributes, and the sizes that it is called with, by the symbols of the kernels that are no more."""

    func: Any
    sizes: dict[str, tuple[Size, ...]]

    @property
    def is_open(self) -> bool:
        return any(self.sizes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Numbered:
    """Code with variables in place of its literals; those, and the bits of each."""

    code: _Code
    blank: Any
    literals: list[Any]
    bits: list[int]


def _alike(kernels: Mapping[str, PlacedKernel]) -> list[list[_Code]]:
    """Return what kernels are made of, for all of a name and of the same arguments where not all are called alike.

    To look into a kernel takes longer than to compare it, and that longer than to compare its arguments.
    """
    named: dict[str, list[str]] = {}
    for symbol, kernel in kernels.items():
        named.setdefault(kernel.name, []).append(symbol)
    found: dict[Any, dict[str, LiftedKernel]] = {}
    for name, symbols in named.items():
        for symbol in symbols if len(symbols) > 1 else ():
            kernel = lifted(kernels[symbol].func)
            # Buffers of open kernels may differ in size.
            key = len(kernel.func.params) if kernel.sizes else _content(kernel.func, tirx.Evaluate(0))
            found.setdefault((name, key), {})[symbol] = kernel
    alike: list[list[_Code]] = []
    for some in found.values():
        codes: dict[Any, _Code] = {}
        for symbol, each in some.items() if len(some) > 1 else ():
            code = codes.setdefault(_content(each.func, each.func.body), _Code(func=each.func, sizes={}))
            code.sizes[symbol] = each.sizes
        if len(codes) > 1 or len({sizes for code in codes.values() for sizes in code.sizes.values()}) > 1:
            alike.append(list(codes.values()))
    return alike


def _groups(alike: Sequence[_Code]) -> Iterable[list[_Numbered]]:
    """Return what differs in numbers alone."""
    groups: dict[Any, list[_Numbered]] = {}
    for code in alike:
        numbered = _numbered(code)
        # A literal may stand where the comparison doesn't look, in a type that nothing reads: it counts all the same.
        groups.setdefault((StructuralKey(numbered.blank), len(numbered.bits)), []).append(numbered)
    return groups.values()


def _content(func: Any, body: Any) -> Any:
    """Return the key of a function with this body; attributes say what it is used for."""
    return StructuralKey(function_of(func.params, body, func.ret_type))


@cache
def _variable(place: int, dtype: str) -> Any:
    """Return what stands for the literal of this place: the same in all functions, which are equal where no others differ."""
    return tirx.Var("number", dtype)


def _numbered(code: _Code) -> _Numbered:
    literals: list[Any] = []
    bits: list[int] = []

    def noted(literal: Any) -> Any:
        dtype = str(literal.ty.dtype)
        bits.append(int(np.float32(literal.value).view(np.int32)) if dtype == "float32" else int(literal.value))
        literals.append(literal)
        return _variable(len(literals), dtype)

    callbacks = _extent_callbacks(code.func, noted) if code.is_open else _value_callbacks(noted)
    blank = tvm_ffi.structural_map(code.func, callbacks)
    return _Numbered(code=code, blank=blank, literals=literals, bits=bits)


def _with_arguments(numbered: _Numbered, places: Sequence[int | None], count: int) -> Any:
    """Return a function that takes so many numbers in place of its literals; `places` says for each which one, if any."""
    numbers = [tirx.Var(f"number.{number}", "int32") for number in range(count)]  # no dimension's name has a dot
    replaced: dict[int, Any] = {}
    for index, (literal, place) in enumerate(zip(numbered.literals, places, strict=True), 1):
        dtype = str(literal.ty.dtype)
        replaced[hash(_variable(index, dtype))] = literal if place is None else _value(numbers[place], dtype)
    func = tvm_ffi.structural_map(numbered.blank, (tirx.Var, lambda variable: replaced.get(hash(variable), variable)))
    return function_of([*func.params[:-1], *numbers, func.params[-1]], func.body, func.ret_type)


def _value(number: Any, dtype: str) -> Any:
    """Return the literal that an argument stands for."""
    if dtype == "float32":
        return tirx.reinterpret(dtype, number)
    return number if dtype == "int32" else tirx.Cast(dtype, number)


_Noted = Callable[[Any], Any]
"""Returns what stands in place of a literal."""


def _is_number(node: Any) -> bool:
    return isinstance(node, tirx.IntImm) and str(node.ty.dtype) == "int32"


def _is_lane(node: Any) -> bool:
    """Return whether a literal is a value where it is in all lanes of a vector: zero points are of fewer bits, too."""
    return isinstance(node, tirx.IntImm) and str(node.ty.dtype) in ("int32", "int16", "uint16", "int8", "uint8")


def _value_callbacks(noted: _Noted) -> tuple[Any, ...]:
    """Return what exchanges the literals that are values."""

    def real(node: Any) -> Any:
        return noted(node) if str(node.ty.dtype) == "float32" else node

    def broadcast(node: Any) -> Any:
        return tirx.Broadcast(noted(node.value), node.lanes) if _is_lane(node.value) else node

    def stored(node: Any) -> Any:
        return tirx.BufferStore(node.buffer, noted(node.value), node.indices) if _is_number(node.value) else node

    def summed(node: Any) -> Any:  # an integer beside bits of a float: no index is made of these
        return type(node)(node.a, noted(node.b)) if _is_number(node.b) and isinstance(node.a, Call) else node

    return (tirx.FloatImm, real), (tirx.Broadcast, broadcast), (tirx.BufferStore, stored), ((tirx.Add, tirx.Sub), summed)


_BINARY = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


def _extent_callbacks(func: Any, noted: _Noted) -> tuple[Any, ...]:
    """Return what exchanges places and extents, too, but for those that shape the code even of open sizes.

    These are divisors, what intrinsics take, lanes and places of vectors, which tell registers apart, and accumulators.
    """
    own: list[Any] = []
    tvm_ffi.structural_walk(func.body, (tirx.AllocBuffer, lambda node: own.append(node.buffer.ty)))

    def exchanged(node: Any) -> Any:
        return noted(node) if _is_number(node) else node

    def binary(node: Any) -> Any:
        if not isinstance(node.a, tirx.IntImm) and not isinstance(node.b, tirx.IntImm):
            return node
        return type(node)(exchanged(node.a), exchanged(node.b))

    def chosen(node: Any) -> Any:
        return tirx.Select(node.condition, exchanged(node.true_value), exchanged(node.false_value))

    def loop(node: Any) -> Any:
        if node.kind != tirx.ForKind.SERIAL or not _is_number(node.extent):
            return node
        return tirx.For(node.loop_var, node.min, noted(node.extent), node.kind, node.body, None, node.annotations, node.step)

    def bound(node: Any) -> Any:
        return tirx.Bind(node.var, noted(node.value)) if _is_number(node.value) else node

    def shaped(kind: Any) -> Any:
        if kind.storage_scope == "local" and any(kind.same_as(each) for each in own):
            return kind
        return tirx.decl_buffer([exchanged(dim) for dim in kind.shape], str(kind.dtype), scope=kind.storage_scope).ty

    values = [each for each in _value_callbacks(noted) if tirx.Add not in (each[0] if isinstance(each[0], tuple) else each)]
    extents = (_BINARY, binary), (tirx.Select, chosen), (tirx.For, loop), (tirx.Bind, bound), (tirx.BufferType, shaped)
    return (*values, *extents)
