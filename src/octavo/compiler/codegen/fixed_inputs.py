"""What is computed of one input alone: a caller who feeds that unchanged again need not have it computed again.

A decoder's step reads keys and values of what was encoded, the same ones at each step. Their integers stay in the workspace; who
calls with it says by a dimension of the input's own (`fixed_dimension`) that they are there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.relax import Expr

from ...ir.graph.dataflow import dtype_of, static_shape
from ...ir.graph.growing_states import growing_states
from ...runtime.description import fixed_dimension
from ...runtime.size import names_in
from .call_memory import KernelCall


def fixed_inputs(function: relax.Function, results: Sequence[Expr]) -> Iterator[int]:
    """Yield the numbers of the inputs that may stay the same from step to step, where states grow.

    They hold floats, and have no open size that a step's results have, but for those of all rows of a state.
    """
    states, shapes = growing_states(function), [static_shape(param) or () for param in function.params]
    others = (size for each in states for axis, size in enumerate(shapes[each.input]) if axis != each.axis)
    varying = names_in(size for result in results for size in static_shape(result) or ()) - names_in(others)
    grown = {each.input for each in states}
    for number, param in enumerate(function.params):
        if states and number not in grown and dtype_of(param) == "float32" and not names_in(shapes[number]) & varying:
            yield number


def with_fixed(calls: Sequence[KernelCall], inputs: Sequence[Any], fixed: Collection[int]) -> list[KernelCall]:
    """Return calls, of which those that read nothing but constants and one of the inputs `fixed` say what leaves them out.

    What other calls read of their results is kept. Those that write a result of the program are always done.
    """
    sources = {id(memory): frozenset([number]) for number, memory in enumerate(inputs)}
    found: list[KernelCall] = []
    for call in calls:
        reads, writes = call.operands[: -call.results], call.operands[-call.results :]
        of = frozenset[int]().union(*(sources.get(id(memory), ()) for memory in reads))
        sources |= {id(memory): of for memory in writes}
        is_alone = len(of) == 1 and of <= set(fixed) and all(memory.argument is None for memory in writes)
        found.append(replace(call, unless=fixed_dimension(min(of))) if is_alone else call)
    left_out = {id(memory) for call in found if call.unless for memory in call.operands[-call.results :]}
    for call in found:
        for memory in () if call.unless else call.operands[: -call.results]:
            if id(memory) in left_out:
                memory.kept, memory.first, memory.last = True, 0, len(calls)
    return found
