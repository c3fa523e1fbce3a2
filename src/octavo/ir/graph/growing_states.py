"""Growing states: results that extend an input by rows, as a decoder's cache does. Found on the graph, kept as an attribute.

    present = R.concat((past, new), axis=2)        # past: an input of an open size along the axis; present: a result

Kernels write `present` with room for more rows than it has, so that a caller may give one memory as both: then the rows of `past`
are in place, and the new ones are written behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax import Var

from ...runtime.size import Size
from .dataflow import DataflowView, attrs_of, call_to, dtype_of, static_shape, view_of_main

STATES_ATTR = "octavo.growing_states"

GROWN = ("float32", "float16", "int8", "uint8")
"""Types of elements of which kernels write rows behind others."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GrowingState:
    """A result that is an input with rows behind it.

    Parameters
    ----------
    input, output
        Their numbers among the inputs and results of "main".
    axis
        Along which it grows.
    dimension
        Name of the open dimension that the input has there.
    """

    input: int
    output: int
    axis: int
    dimension: str

    @property
    def capacity(self) -> str:
        """Name of the dimension that says for how many rows there is room."""
        return f"{self.dimension}_capacity"

    @property
    def in_place(self) -> str:
        """Name of the dimension that is 1 where the input's rows lie in the result's memory, else 0."""
        return f"{self.dimension}_in_place"


def with_growing_states(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with its growing states as an attribute of "main"; the very one where there are none."""
    found = list(_found_in(view_of_main(module)))
    if not found:
        return module
    listed = [[each.input, each.output, each.axis, each.dimension] for each in found]
    changed = module.clone()
    changed.update_func(changed.get_global_var("main"), module["main"].with_attr(STATES_ATTR, listed))
    return changed


def growing_states(function: relax.Function) -> tuple[GrowingState, ...]:
    """Return the states that an attribute of a function lists."""
    listed: Any = attrs_of(function).get(STATES_ATTR, ())
    return tuple(
        GrowingState(input=int(first), output=int(second), axis=int(axis), dimension=str(name))
        for first, second, axis, name in listed
    )


def _found_in(view: DataflowView) -> Iterator[GrowingState]:
    params = list(view.function.params)
    results = list(view.result.fields) if isinstance(view.result, relax.Tuple) else [view.result]
    for number, result in enumerate(results):
        call = call_to(view.definition(result), "concat") if isinstance(result, Var) else None
        fields = None if call is None else view.definition(call.args[0])
        if call is None or not isinstance(fields, relax.Tuple) or len(fields.fields) != 2:
            continue
        first: Any = fields.fields[0]
        past, shape = view.root_of(first), static_shape(first)
        places = [place for place, param in enumerate(params) if param.same_as(past)]
        if not places or shape is None or call.attrs.axis is None or dtype_of(past) not in GROWN:
            continue
        axis = int(call.attrs.axis) % len(shape)
        dimension = shape[axis].name if isinstance(shape[axis], Size) else None
        # Who else reads the input would read it where there is room between its rows.
        if dimension is not None and sum(each.same_as(result) for each in results) == 1 and len(view.users(past)) == 1:
            yield GrowingState(input=places[0], output=number, axis=axis, dimension=dimension)
