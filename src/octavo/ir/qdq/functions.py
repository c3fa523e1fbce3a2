"""Functions of one tensor in a float graph, element by element: the ops that tables of 256 entries stand for together, and those
that a product's kernel can compute of its float sums. It decides which ops make one, and whether no more.

Where constants of several elements take part (a normalization's factors, a parametric relu's slopes) each of their values has a
table of its own. What may be computed of float sums is what `matchers.elementwise.function_tail` finds in a quantized graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax
from tvm.relax import Expr, Var

from ...numerics import PAIR_LOOKUP_MAX_ROWS
from ..graph.constants import Constants
from ..graph.dataflow import DataflowView, call_to, dtype_of, op_name, operand_vars, static_shape
from . import cluster
from .cluster import PRELU
from .matchers.elementwise.float_chain import CHAINED

_BATCH_NORM = "nn.batch_norm"
_PRODUCTS = ("nn.conv2d", "matmul")
_SLOW = ("erf", "nn.gelu")
"""In a kernel's loop over sums these take longer than a table."""
_SCALED = ("nn.relu", "nn.leakyrelu", "nn.prelu", "clip", "multiply", "divide")
"""Functions of these alone let factors of channels pass."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FunctionOfOne:
    """A function of the elements of `source`: its ops' variables, and whether constants of several elements take part."""

    source: Var
    members: tuple[Var, ...]
    has_rows: bool


def function_of_one(
    view: DataflowView, constants: Constants, first: Var, *, with_rows: bool, ends_at: Callable[[Var], bool] = lambda var: False
) -> FunctionOfOne | None:
    """Return the run of elementwise ops that starts at `first`: as many as end in one value that others read.

    For x * sigmoid(x), from the variable of the sigmoid: x and the variables of both. None if the op reads two tensors, is not
    elementwise, or changes the shape. `with_rows` admits constants of several elements. No run goes beyond what `ends_at` says.
    """
    run = _Run(view=view, constants=constants, with_rows=with_rows, ends_at=ends_at)
    alone = _longest(view, run, first, beside=False)
    if run.source is None or len(view.users(run.source)) < 2:
        return alone
    wider = _longest(view, _Run(view=view, constants=constants, with_rows=with_rows, ends_at=ends_at), first, beside=True)
    if alone is None or wider is None:
        return alone or wider
    return wider if len(wider.members) > len(alone.members) else alone


def _longest(view: DataflowView, run: _Run, first: Var, *, beside: bool) -> FunctionOfOne | None:
    """Return the longest run; with `beside` it takes ops that read the source itself, too, as the parts of an ELU do."""
    if not run.takes(first):
        return None
    assert run.source is not None, "an op was taken"
    longest: FunctionOfOne | None = None
    ahead = _Ahead(view, after=first)
    if beside:
        ahead.add_readers(run.source)
    var: Var | None = first
    while var is not None:
        if var.same_as(first) or run.takes(var):
            run.members[var] = None
            ahead.add_readers(var)
            open_ends = [member for member in run.members if _is_read_outside(view, member, run.members)]
            if len(open_ends) == 1 and open_ends[0].same_as(var) and dtype_of(var) == "float32":
                longest = FunctionOfOne(source=run.source, members=tuple(run.members), has_rows=bool(run.rows))
            if run.ends_at(var):
                break
        var = ahead.next()
    return longest


class _Ahead:
    """What reads given variables, also by other names, behind a first one: each once, in the order of the graph."""

    def __init__(self, view: DataflowView, *, after: Var) -> None:
        self._view, self._first = view, after
        self._heap: list[int] = []
        self._seen: set[Var] = {after}

    def add_readers(self, var: Var) -> None:
        """Add what reads a variable."""
        for user in self._view.users(var):
            if user not in self._seen and self._view.is_bound_before(self._first, user):
                self._seen.add(user)
                heapq.heappush(self._heap, self._view.place_of(user))
                if isinstance(self._view.bindings[self._view.place_of(user)].value, Var):
                    self.add_readers(user)

    def next(self) -> Var | None:
        """Take the first of them; None where none is left."""
        return self._view.bindings[heapq.heappop(self._heap)].var if self._heap else None


class _Run:
    """The ops taken so far, the tensor that they read, and the constants of several elements, broadcast to its shape."""

    def __init__(self, *, view: DataflowView, constants: Constants, with_rows: bool, ends_at: Callable[[Var], bool]) -> None:
        self.ends_at = ends_at
        self.source: Var | None = None
        self.members: dict[Var, None] = {}
        self.rows: list[npt.NDArray[Any]] = []
        self._view = view
        self._constants = constants
        self._with_rows = with_rows

    def takes(self, var: Var) -> bool:
        """Take an op that reads what is here, or the tensor that this reads, and constants; return whether it is one."""
        value: Any = self._view.definition(var)
        if isinstance(value, relax.TupleGetItem):
            return value.index == 0 and self._view.binding_of(value.tuple_value) in self.members
        if not is_elementwise(value):
            return False
        source, rows = self.source, list(self.rows)
        for position, operand in enumerate(value.args):
            if _is_number(operand):
                continue
            constant = self._constants.numbers(operand)
            if constant is not None and constant.size == 1:
                continue
            if constant is not None:
                rows.append(constant.reshape(_aligned(value, position, constant)))
                continue
            roots = [self._view.root_of(name) for name in operand_vars(operand)]
            if len(roots) != 1:
                return False
            if roots[0] in self.members:
                continue
            if source is not None and not roots[0].same_as(source):
                return False
            source = roots[0]
        data = value.args[0] if call_to(value, _BATCH_NORM) is not None else var
        if source is None or static_shape(source) is None or static_shape(source) != static_shape(data):
            return False
        if len(rows) > len(self.rows) and not (self._with_rows and _count(rows) <= PAIR_LOOKUP_MAX_ROWS):
            return False
        self.source, self.rows = source, rows
        return True


def _count(rows: list[npt.NDArray[Any]]) -> int:
    """Return how many different values the constants have together."""
    shape = np.broadcast_shapes(*(values.shape for values in rows))
    together = np.stack([np.broadcast_to(values, shape).reshape(-1).astype(np.float64) for values in rows], axis=1)
    return len(together) if len(together) <= PAIR_LOOKUP_MAX_ROWS else len(np.unique(together, axis=0))


def _aligned(value: Any, position: int, constant: npt.NDArray[Any]) -> tuple[int, ...]:
    """Return the shape that aligns an operand with the result at the end."""
    shape = static_shape(value.args[0])
    if position == 0 or shape is None or call_to(value, _BATCH_NORM, PRELU) is None:
        return constant.shape
    behind = len(shape) - 1 - int(value.attrs.axis) % len(shape)
    return (constant.size, *[1] * behind)


def is_elementwise(value: Any) -> bool:
    """Return whether a bound value is a function of single elements; so is a normalization by factors that are known."""
    norm = call_to(value, _BATCH_NORM)
    return cluster.is_elementwise(value) if norm is None else not norm.attrs.training


def _is_number(operand: Expr) -> bool:
    return isinstance(getattr(operand, "value", None), (int, float))


def _is_read_outside(view: DataflowView, var: Var, members: Collection[Var]) -> bool:
    return view.is_returned(var) or any(user not in members for user in view.users(var))


def is_float_function(view: DataflowView, source: Var, members: Collection[Var]) -> bool:
    """Return whether ops are such a function of a tensor, which they alone read."""
    if view.is_returned(source) or any(user not in members for user in view.users(source)):
        return False
    names = [op_name(view.definition(member)) for member in members]
    return all(name in CHAINED and name not in _SLOW for name in names)


def has_slopes_alone(view: DataflowView, constants: Constants, members: Collection[Var]) -> bool:
    """Return whether all that differs from channel to channel in a function are slopes of parametric relus."""
    calls: list[Any] = [view.definition(member) for member in members]
    others = (arg for call in calls for arg in call.args[: 1 if op_name(call) == PRELU else None])
    found = (constants.find(arg) for arg in others)
    return all(constant is None or constants.value(constant).size == 1 for constant in found)


def has_factors_alone(view: DataflowView, constants: Constants, members: Sequence[Var], axis: int) -> bool:
    """Return whether a product's kernel, whose channels lie along `axis`, takes all that differs in a function.

    These are slopes, and factors that the last op multiplies a function by.
    """
    *before, last = members
    if has_slopes_alone(view, constants, members):
        return True
    call, shape = call_to(view.definition(last), "multiply"), static_shape(last)
    if call is None or shape is None or not before or not has_slopes_alone(view, constants, before):
        return False
    found = [constant.shape for arg in call.args if (constant := constants.find(arg)) is not None]
    along = tuple(size if place == axis % len(shape) else 1 for place, size in enumerate(shape))
    return len(found) == 1 and (1,) * (len(shape) - len(found[0])) + tuple(found[0]) == along


def function_results(view: DataflowView, constants: Constants) -> dict[Var, Var]:
    """Return the results of all such functions through which no factors pass, each with what it is a function of."""
    found: dict[Var, Var] = {}
    taken: set[Var] = set()
    for binding in view.bindings:
        if binding.var in taken or not is_elementwise(binding.value):
            continue
        function = function_of_one(view, constants, binding.var, with_rows=False)
        if function is None:
            continue
        taken.update(function.members)
        bends = any(op_name(view.definition(member)) not in _SCALED for member in function.members)
        if bends and _is_product(view, function.source) and is_float_function(view, function.source, function.members):
            found[function.members[-1]] = function.source
    return found


def _is_product(view: DataflowView, var: Var) -> bool:
    """Return whether a variable is a product, or the sum of one with something else."""
    added = call_to(view.definition(var), "add")
    parts = [var] if added is None else [arg for arg in added.args if isinstance(arg, Var)]
    return any(call_to(view.definition(part), *_PRODUCTS) is not None for part in parts)
