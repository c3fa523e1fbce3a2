"""Kernels that differ in numbers alone become one, which takes those as arguments: layers of one shape share their machine code.

Scales and zero points are literals of the kernels, where TVM's passes and LLVM fold what they can. Each layer has its own, and
would have its own machine code.

Before::

    octavo_3: y[0:16] = T.Cast("float32x16", x[0:16]) * T.Broadcast(T.float32(0.25), 16)    # called with (x,)
    octavo_7: y[0:16] = T.Cast("float32x16", x[0:16]) * T.Broadcast(T.float32(0.125), 16)

After::

    octavo_3, octavo_7:  ... * T.Broadcast(T.reinterpret("float32", number), 16)            # called with (x, bits of 0.25)

Only numbers that are values are looked at, no sizes, places or extents: those shape the code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm_ffi
from tvm.ir import Call
from tvm_ffi import StructuralKey

from ....ir.untyped import tirx
from .context import PlacedKernel

Numbers = tuple[int, ...]
_INTEGER, _REAL = tirx.IntImm("int32", 0), tirx.FloatImm("float32", 0.0)


def share_kernels(kernels: Mapping[str, PlacedKernel]) -> tuple[dict[str, PlacedKernel], dict[str, Numbers]]:
    """Return the kernels by symbol, and what each that is shared now takes behind its sizes: int32, of floats the bits."""
    shared, given = dict(kernels), dict[str, Numbers]()
    for equal in _differing(kernels):
        alike: dict[Any, list[tuple[list[str], list[int]]]] = {}
        for symbols in equal:
            numbers: list[int] = []
            blank = _with_numbers(kernels[symbols[0]].func, lambda literal, numbers=numbers: _noted(literal, numbers))
            alike.setdefault(_content(blank, blank.body), []).append((symbols, numbers))
        for group in alike.values():
            values = list(zip(*(numbers for _, numbers in group), strict=True))
            own = {each: number for number, each in enumerate(dict.fromkeys(each for each in values if len(set(each)) > 1))}
            for member, (symbols, _) in enumerate(group if own else ()):
                made = _shared(kernels[symbols[0]].func, [own.get(each) for each in values], len(own))
                for symbol in symbols:
                    given[symbol] = tuple(each[member] for each in own)
                    func = tirx.PrimFunc(made.params, made.body, made.ret_type, kernels[symbol].func.attrs)
                    shared[symbol] = replace(kernels[symbol], func=func)
    return shared, given


def _differing(kernels: Mapping[str, PlacedKernel]) -> list[list[list[str]]]:
    """Return the symbols of equal kernels, for all of a name and of the same arguments where these aren't all equal.

    To look into a kernel takes longer than to compare it, and that longer than to compare its arguments.
    """
    found: dict[Any, list[str]] = {}
    for symbol, kernel in kernels.items():
        found.setdefault((kernel.name, _content(kernel.func, tirx.Evaluate(0))), []).append(symbol)
    differing: list[list[list[str]]] = []
    for symbols in found.values():
        equal: dict[Any, list[str]] = {}
        for symbol in symbols if len(symbols) > 1 else ():
            equal.setdefault(_content(kernels[symbol].func, kernels[symbol].func.body), []).append(symbol)
        differing += [list(equal.values())] if len(equal) > 1 else []
    return differing


def _content(func: Any, body: Any) -> Any:
    """Return the key of a function with this body; attributes say what it is used for."""
    return StructuralKey(tirx.PrimFunc(func.params, body, func.ret_type))


def _noted(literal: Any, numbers: list[int]) -> Any:
    is_integer = isinstance(literal, tirx.IntImm)
    numbers.append(int(literal.value) if is_integer else int(np.float32(literal.value).view(np.int32)))
    return _INTEGER if is_integer else _REAL


def _shared(func: Any, places: Sequence[int | None], count: int) -> Any:
    """Return a function that takes so many numbers in place of its literals; `places` says for each which one, if any."""
    numbers = [tirx.Var(f"number.{number}", "int32") for number in range(count)]  # no dimension's name has a dot
    left = iter(places)

    def taken(literal: Any) -> Any:
        place = next(left)
        if place is None:
            return literal
        return numbers[place] if isinstance(literal, tirx.IntImm) else tirx.reinterpret("float32", numbers[place])

    made = _with_numbers(func, taken)
    params = [*made.params[:-1], *numbers, made.params[-1]]
    return tirx.PrimFunc(params, made.body, made.ret_type, made.attrs)


def _with_numbers(func: Any, replaced: Callable[[Any], Any]) -> Any:
    """Return a function with others in place of the literals that are values, in their order."""

    def is_number(node: Any) -> bool:
        return isinstance(node, tirx.IntImm) and str(node.ty.dtype) == "int32"

    def real(node: Any) -> Any:
        return replaced(node) if str(node.ty.dtype) == "float32" else node

    def broadcast(node: Any) -> Any:
        return tirx.Broadcast(replaced(node.value), node.lanes) if is_number(node.value) else node

    def stored(node: Any) -> Any:
        return tirx.BufferStore(node.buffer, replaced(node.value), node.indices) if is_number(node.value) else node

    def summed(node: Any) -> Any:  # an integer beside bits of a float: no index is made of these
        return type(node)(node.a, replaced(node.b)) if is_number(node.b) and isinstance(node.a, Call) else node

    callbacks = (
        (tirx.FloatImm, real),
        (tirx.Broadcast, broadcast),
        (tirx.BufferStore, stored),
        ((tirx.Add, tirx.Sub), summed),
    )
    return func.with_body(tvm_ffi.structural_map(func.body, callbacks))
