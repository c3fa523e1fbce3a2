"""Places: indices into tensors as expressions of a loop's turns, and what they come to. Knows no graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad
from tvm.relax import Expr, Var
from tvm.tirx import LT, Add, BufferLoad, BufferStore, Cast, FloorDiv, FloorMod, For, IntImm, Min, Mul, Select

from ....ir.graph.dataflow import static_shape
from ....ir.graph.sizes import buffers_and_dimensions, is_dimension
from ....ir.untyped import tirx

_SIZES = tvm.sym.ConstIntBound(0, tvm.sym.ConstIntBound.POS_INF)


def dims(tensor: Any) -> list[Any]:
    """Return the dimensions of a tensor as TVM has them."""
    return list(tensor.ty.shape.values)


def dimensions_of_call(function: Any, call: Any) -> dict[int, Any]:
    """Return what the sizes of a PrimFunc are in a call of it, by the addresses of their variables."""
    given = list(call.args[1].fields)
    buffers, sizes = buffers_and_dimensions(function)
    known = dict(zip(map(hash, sizes), filter(is_dimension, given), strict=True))
    shapes = [dims(each) for each in given if not is_dimension(each)] + [list(call.ty_args[0].shape.values)]
    for buffer, shape in zip(buffers, shapes, strict=True):
        known |= {hash(dim): size for dim, size in zip(buffer.ty.shape, shape, strict=True) if isinstance(dim, tirx.Var)}
    return known


def loads_in(value: Any) -> list[Any]:
    """Return what an expression loads."""
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (TensorLoad, found.append))
    return found


_LOADS_OF_PLACES = 4
"""A whole number that is made of more loads is no place: nothing in it cancels, and to look for it takes long."""


def simplified(value: Any, turns: Sequence[Any], extents: Sequence[Any]) -> Any:
    """Simplify places and whole numbers of a loop with turns that end at these extents: no float is touched."""
    analyzer: Any = tvm.sym.Analyzer()
    ends = {hash(turn): extent for turn, extent in zip(turns, extents, strict=True)}
    for turn, extent in zip(turns, extents, strict=True):
        tvm_ffi.structural_walk(extent, (tirx.Var, lambda each: analyzer.update(each, _SIZES, True)))
        analyzer.bind(turn, tvm.ir.Range(tirx.IntImm("int64", 0), extent))

    def condition(node: Any) -> Any:
        """Take for a condition what is written as a number: 0 < cast(x < y)."""
        is_cast = isinstance(node.a, IntImm) and int(node.a) == 0 and isinstance(node.b, Cast)
        return node.b.value if is_cast and str(node.b.value.ty.dtype) == "bool" else node

    found: dict[int, tuple[Any, Any]] = {}

    def simple(index: Any) -> Any:
        """Return an index, simplified once: loads that a value is made of share theirs."""
        if hash(index) not in found:
            found[hash(index)] = index, _place(analyzer, ends, index)
        return found[hash(index)][1]

    def place(node: Any) -> Any:
        return BufferLoad(node.source, [simple(index) for index in node.indices])

    def choice(node: Any) -> Any:
        chosen = analyzer.simplify(node.condition)
        if isinstance(chosen, IntImm):
            return node.true_value if int(chosen) else node.false_value
        return tirx.Select(chosen, node.true_value, node.false_value)

    made = tvm_ffi.structural_map(value, ((LT, condition), (TensorLoad, place), (Select, choice)))
    is_place = "float" not in str(made.ty.dtype) and len(loads_in(made)) <= _LOADS_OF_PLACES
    return _place(analyzer, ends, made) if is_place else made


def _place(analyzer: Any, ends: Mapping[int, Any], index: Any) -> Any:
    """Simplify an index; what is laid out by an extent and taken apart by it again is one turn and another."""
    extent = ends.get(hash(index))
    if isinstance(extent, IntImm) and int(extent) > 1:
        return index  # a turn of several: nothing is simpler

    def is_same(one: Any, other: Any) -> bool:
        return tvm_ffi.structural_equal(analyzer.simplify(one), analyzer.simplify(other))

    def quotient_of(node: Any) -> Any:
        parts = terms(node.a)
        multiples = [factor for factor in (_quotient(term, node.b) for term in parts) if factor is not None]
        others = [term for term in parts if _quotient(term, node.b) is None]
        if len(others) > 1 or not all(hash(each) in ends and is_same(ends[hash(each)], node.b) for each in others):
            return node
        return _sum(others) if isinstance(node, FloorMod) else _sum(multiples)

    def bounded(node: Any) -> Any:
        for one, other in ((node.a, node.b), (node.b, node.a)):
            if hash(one) in ends and is_same(ends[hash(one)] - 1, other):
                return one
        return node

    found = analyzer.simplify(index)
    if isinstance(found, (IntImm, tirx.Var)):
        return found
    return analyzer.simplify(tvm_ffi.structural_map(found, (((FloorDiv, FloorMod), quotient_of), (Min, bounded))))


def terms(value: Any) -> list[Any]:
    """Return the terms of a sum."""
    return [*terms(value.a), *terms(value.b)] if isinstance(value, Add) else [value]


def _quotient(term: Any, divisor: Any) -> Any | None:
    """Return the other factor of a product that has a divisor for one; None for what is none."""
    if not isinstance(term, Mul):
        return None
    for one, other in ((term.a, term.b), (term.b, term.a)):
        if tvm_ffi.structural_equal(one, divisor):
            return other
    return None


def _sum(parts: Sequence[Any]) -> Any:
    total: Any = tirx.IntImm("int64", 0)
    for term in parts:
        total = total + term
    return total


def unfolded(source: Expr, result: Var, turns: Sequence[Any]) -> list[Any]:
    """Return where an element of a reshaped tensor lies in its source: by groups of dimensions that are as many elements."""
    sizes = static_shape(source) or (), static_shape(result) or ()
    inner, outer = dims(source), dims(result)
    places: list[Any] = []
    first, turn = 0, 0
    while first < len(inner):
        end, last = _group(sizes[0], sizes[1], first, turn)
        flat: Any = tirx.IntImm("int64", 0)
        for place in range(turn, last):
            flat = flat * outer[place] + turns[place]
        group: list[Any] = []
        for place in reversed(range(first, end)):
            group.insert(0, flat if place == first else tirx.floormod(flat, inner[place]))
            flat = tirx.floordiv(flat, inner[place])
        places += group
        first, turn = end, last
    return places


def _group(inner: Sequence[int], outer: Sequence[int], first: int, turn: int) -> tuple[int, int]:
    """Return where the next dimensions end that are as many elements on both sides; the last ones take all that is left."""
    for end in range(first + 1, len(inner)):
        for last in range(turn, len(outer) + 1):
            if prod(inner[first:end]) == prod(outer[turn:last]):
                return end, last
    return len(inner), len(outer)


def only_block(function: Any) -> Any:
    """Return the one block of a function, which stores each element of the result in a turn of its own; None otherwise."""
    root = getattr(function.body, "block", None)
    if root is None or len(root.alloc_buffers) > 0:
        return None
    nest: list[Any] = []
    node = root.body
    while isinstance(node, For):
        nest.append(node.loop_var)
        node = node.body
    block = getattr(node, "block", None)
    if block is None or block.init is not None or len(block.alloc_buffers) > 0 or not isinstance(block.body, BufferStore):
        return None
    values, turns = list(node.iter_values), [each.var for each in block.iter_vars]
    indices = list(block.body.indices)
    are_turns = len(indices) == len(turns) and all(one.same_as(other) for one, other in zip(indices, turns, strict=True))
    is_nest = len(values) == len(nest) and all(one.same_as(other) for one, other in zip(values, nest, strict=True))
    return block if are_turns and is_nest else None
