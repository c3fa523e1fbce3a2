"""Which call computes a value that no variable holds: the kernel it was fused into, or the constant it was folded into."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import tvm
from tvm.ir import Call

from .dataflow import op_name
from .value_graph import ValueGraph
from .value_numbers import ValueNumbers


@dataclass(frozen=True, slots=True)
class Enclosing:
    """The call around a value: what is called, and the call in one line."""

    callee: str
    expression: str


def enclosing_calls(
    numbers: ValueNumbers, before: ValueGraph, after: ValueGraph, wanted: Collection[int]
) -> dict[int, Enclosing]:
    """Return for each wanted number the call of `after` that computes it on the way to its own result.

    A call encloses a value if its result is computed from the value (as `before` tells), and its operands cut every path from
    there to the inputs: then it can only have been computed within.
    """
    found: dict[int, Enclosing] = {}
    left = set(wanted)
    for place in after.places:
        if not left:
            break
        value = place.value
        if not isinstance(value, Call) or _is_plain_op(value):
            continue
        cut = frozenset(_flat(numbers, place.operands))
        for inner in _interior(numbers, before, place.number, cut) or ():
            if inner in left:
                left.discard(inner)
                found[inner] = Enclosing(place.path[-1] if place.path else op_name(value), place.expression)
    return found


def parts_of(numbers: ValueNumbers, before: ValueGraph, folded: Collection[int]) -> set[int]:
    """Return every value that went into one of the values that became constants."""
    return {inner for number in folded for inner in _interior(numbers, before, number, frozenset()) or ()}


def _is_plain_op(call: Call) -> bool:
    """Whether a call is of a Relax op, and not of a function or kernel."""
    return isinstance(call.op, tvm.ir.Op) and call.op.name not in ("relax.call_tir", "relax.call_dps_packed")


def _flat(numbers: ValueNumbers, operands: Collection[int]) -> list[int]:
    found: list[int] = []
    for operand in operands:
        found.append(operand)
        if numbers.nodes[operand].kind == "tuple":
            found.extend(_flat(numbers, numbers.nodes[operand].operands))
    return found


def _definition(numbers: ValueNumbers, graph: ValueGraph, number: int) -> tuple[int, ...]:
    """Return what a value is computed from in a module; from the value's own terms where no variable of it holds the value."""
    bound = [place.operands for place in graph.by_number.get(number, ()) if place.operands and place.operands != (number,)]
    return bound[0] if bound else numbers.nodes[number].operands


def _interior(numbers: ValueNumbers, graph: ValueGraph, result: int, cut: frozenset[int]) -> list[int] | None:
    """Return the values strictly between `result` and the cut; None if a path leads past the cut to an input."""
    seen: set[int] = {result}
    stack = [operand for operand in _definition(numbers, graph, result) if operand not in cut]
    interior: list[int] = []
    while stack:
        number = stack.pop()
        if number in seen:
            continue
        seen.add(number)
        if numbers.nodes[number].kind == "input":
            return None
        interior.append(number)
        stack.extend(operand for operand in _definition(numbers, graph, number) if operand not in cut)
    return interior
