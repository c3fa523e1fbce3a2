"""Following source tensors from one state of a module to the next, with proof: by structure, else by value.

A tensor whose computation is still there is kept, whatever it is called (value_numbers.py). For the others both modules are
computed on a probe, and a variable that agrees in every element is taken; equal ones from then on count as the same value, so
what was built on them is known by structure again. What is not shown this way is not claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import relax
from tvm.ir import Call, GlobalVar
from tvm.relax import ExternFunc, Var

from ..identity import TensorId, TensorState
from ..identity.relation import Relation, agree, agree_closely, find_relation
from ..identity.tensor_state import StateKind
from .dataflow import op_name
from .enclosing import enclosing_calls, parts_of
from .evaluate import Evaluator
from .recast import Recast
from .value_graph import Functions, GraphReader, Place, ValueGraph
from .value_numbers import ValueNumbers
from .value_search import Link, Spot, ValueSearch, tolerance_of

_CONSTANT_TOLERANCE = 1e-5
_FLOAT32_BITS = 23
_UNNAMED = "the step names no variable for it"
_UNNAMED_CONSTANT = "no constant of its values is left: it became part of others, or nothing reads it"
_RESHAPE = "vm.builtin.reshape"

Read = Callable[[Mapping[int, int]], ValueGraph]
"""Reads the module that is followed; the numbers of some places are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """What a step says of tensors whose values it changes.

    Parameters
    ----------
    holders
        TensorId -> the variable of the entry function that stands for it now, or its name, in a form that the step knows.
    fused_into
        TensorId -> the variable whose call computes it internally, or its name.
    permutations
        TensorId -> axes of the tensor in the order in which its holder has them, where that is another.
    relations
        TensorId -> how its holder's values relate to its own, where they are not the same.
    gone
        TensorId -> why nothing holds it any more.
    """

    holders: Mapping[str, str | Var]
    fused_into: Mapping[str, str | Var]
    permutations: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    relations: Mapping[str, Relation] = field(default_factory=dict[str, Relation])
    gone: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True, eq=False)
class Tracker:
    """The state of every id in the module read last.

    Parameters
    ----------
    reader, evaluator
        Over one set of numbers.
    sources
        Number of each id's value in the source module.
    graph
        The source module.
    """

    reader: GraphReader
    evaluator: Evaluator
    sources: dict[TensorId, int]
    graph: ValueGraph
    links: dict[TensorId, Link] = field(default_factory=dict[TensorId, Link])
    states: dict[TensorId, TensorState] = field(default_factory=dict[TensorId, TensorState])

    def __post_init__(self) -> None:
        """Find every id in the source module."""
        self.links = {tensor: Link(number) for tensor, number in self.sources.items()}
        self.states = self._states(self.graph, {})

    @property
    def numbers(self) -> ValueNumbers:
        """The numbers of all values."""
        return self.reader.numbers

    def advance(
        self, functions: Functions, entry: str, params: Mapping[int, int], announced: Announced | None = None
    ) -> dict[TensorId, TensorState]:
        """Read the next module and return the state of each id in it."""
        before, after = self.graph, self.reader.read(functions, entry, params)
        if announced is not None:
            return self._apply_announced(announced, after)
        known = self._folded(before, after)
        if known:
            after = self.reader.read(functions, entry, params)
        self._recast(before, after)
        lost = self._lost(after)
        if lost:
            after = self._link_by_value(lost, before, after, lambda known: self.reader.read(functions, entry, params, known))
        lost = [tensor for tensor, link in self.links.items() if not after.holds(link.number)]
        enclosing = self._enclosing(lost, before, after, known)
        self.graph = after
        self.states = self._states(after, enclosing)
        return self.states

    def _apply_announced(self, announced: Announced, after: ValueGraph) -> dict[TensorId, TensorState]:
        """Take the links that a step states, for the tensors whose values it changed."""
        outer = [place for place in after.places if not place.path]
        by_name: dict[str | Var, Place] = {**{place.name: place for place in outer}, **{place.var: place for place in outer}}
        same_calls = _same_calls(self.reader.externs, self.graph, after)
        called = {_symbol_of(place.value) for place in after.places}
        states: dict[TensorId, TensorState] = {}
        for tensor, link in self.links.items():
            if after.holds(link.number):
                continue
            holder, around = by_name.get(announced.holders.get(tensor, "")), by_name.get(announced.fused_into.get(tensor, ""))
            if holder is None and around is None and self.numbers.nodes[link.number].kind == "constant":
                around = by_name.get(self._reader_of(link.number, announced))
            if holder is not None:
                relation = announced.relations.get(tensor, link.relation)
                source = self.numbers.nodes[self.sources[tensor]].ty
                relation = _arranged(relation, announced.permutations.get(tensor), source, holder.ty)
                self.links[tensor] = Link(holder.number, relation, "announced")
            elif link.number in same_calls:
                self.links[tensor] = Link(same_calls[link.number].number, link.relation, "announced")
            elif self.states[tensor].kind == "inside" and self.states[tensor].composite in called:
                states[tensor] = self.states[tensor]
            elif around is not None and isinstance(around.value, Call):
                states[tensor] = TensorState(
                    kind="inside", composite=op_name(around.value), expression=around.expression, evidence="announced"
                )
            elif self.states[tensor].kind == "gone":
                states[tensor] = self.states[tensor]
            else:
                is_constant = self.numbers.nodes[link.number].kind == "constant"
                states[tensor] = TensorState(
                    kind="gone", reason=announced.gone.get(tensor, _UNNAMED_CONSTANT if is_constant else _UNNAMED)
                )
        self.graph = after
        self.states = self._states(after, states)
        return self.states

    def _reader_of(self, constant: int, announced: Announced) -> str | Var:
        """Return the variable whose call packs a constant: what holds the first tensor that was computed from it; "" for none."""
        reached = {constant}
        for place in self.graph.places:
            if not reached.isdisjoint(place.operands):
                if place.name in announced.holders:
                    return announced.holders[place.name]
                reached.add(place.number)
        return ""

    def _lost(self, after: ValueGraph) -> list[TensorId]:
        """Return the ids that were there and are not."""
        links = self.links.items()
        return [tensor for tensor, link in links if not after.holds(link.number) and self.graph.holds(link.number)]

    def _recast(self, before: ValueGraph, after: ValueGraph) -> None:
        """Link the ids whose values are computed in another float type."""
        lost = self._lost(after)
        found = Recast(self.numbers, self.evaluator, before, after).find() if lost else {}
        for tensor in lost:
            link = self.links[tensor]
            places = found.get(link.number, [])
            place = next((each for each in places if each.name == tensor), places[0] if places else None)
            if place is not None:
                evidence = "announced" if link.evidence == "announced" else "value"
                self.links[tensor] = Link(place.number, link.relation, evidence)

    # ------------------------------------------------------------------------------------------------ constants folded

    def _folded(self, before: ValueGraph, after: ValueGraph) -> dict[int, int]:
        """Recognise new constants as values that were computed from constants alone; return number -> constant's number."""
        nodes = self.numbers.nodes
        fresh = [number for number in after.constants if not before.holds(number) and nodes[number].kind == "constant"]
        gone = [number for number in before.by_number if nodes[number].is_constant and not after.holds(number)]
        if not fresh or not gone:
            return {}
        values = self.evaluator.get([*gone, *fresh])
        found: dict[int, int] = {}
        for number in gone:
            if number not in values:
                continue
            for constant in fresh:
                if values[number].dtype == values[constant].dtype and agree(
                    values[number], values[constant], _CONSTANT_TOLERANCE
                ):
                    self.numbers.identify(constant, number)
                    found[number] = constant
                    break
        return found

    # ------------------------------------------------------------------------------------------------------- by value

    def _link_by_value(self, lost: list[TensorId], before: ValueGraph, after: ValueGraph, read: Read) -> ValueGraph:
        """Link ids to the values they are found in; return the module as read with what was shown to be equal."""
        found = self._by_value(lost, before, after)
        equal: dict[int, int] = {}
        constants: dict[int, int] = {}
        for spot, link in found.values():
            if link.number != spot.number:
                target = constants if spot.index is None else equal
                target[spot.number if spot.index is None else spot.index] = link.number
        constants = {number: known for number, known in constants.items() if self._is_close(number, known)}
        for number, known in constants.items():
            self.numbers.identify(number, known)
        proved = self._proved(before, after, equal, read) if equal else equal
        if proved or constants:
            after = read(proved)
        depths = self._depths(before)
        for tensor, (spot, link) in found.items():
            is_equal = link.number != spot.number
            if is_equal and (spot.number not in constants if spot.index is None else spot.index not in proved):
                continue
            # What was shown to be equal keeps its number; any other value has the one of its place.
            number = link.number if is_equal or spot.index is None else after.places[spot.index].number
            relation = link.relation if is_equal else self._confirmed(tensor, link.relation, number, depths)
            if relation is None:
                continue
            # A value that a step said is another one for the same tensor stays that, wherever it is found again.
            evidence = "announced" if self.links[tensor].evidence == "announced" else "value"
            self.links[tensor] = Link(number, relation, evidence)
        return after

    def _depths(self, before: ValueGraph) -> list[int]:
        """Return for each number how many ops lead to it from values of the module before, one behind the other."""
        depths: list[int] = []
        for number, node in enumerate(self.numbers.nodes):
            is_known = before.holds(number) or not node.operands
            depths.append(0 if is_known else 1 + max(depths[operand] for operand in node.operands))
        return depths

    def _confirmed(self, tensor: TensorId, relation: Relation, number: int, depths: Sequence[int]) -> Relation | None:
        """Return how a value computed from what was shown to be equal relates to a tensor; None if more than rounding is left."""
        source = self.sources[tensor]
        nodes, values = self.numbers.nodes, self.evaluator.get([source, number])
        if source not in values or number not in values:
            return None
        if values[source].dtype.kind != "f" or min(nodes[source].precision, nodes[number].precision) < _FLOAT32_BITS:
            return relation
        if relation.is_scaled:
            tolerance = tolerance_of(self.numbers, source, number)
            order = () if relation.permutation is None else (relation.permutation,)
            relation = find_relation(values[source], values[number], tolerance=tolerance, permutations=order) or relation
        return relation if agree_closely(relation.apply(values[source]), values[number], depths[number]) else None

    def _proved(self, before: ValueGraph, after: ValueGraph, equal: Mapping[int, int], read: Read) -> dict[int, int]:
        """Return those of the values believed equal, by their place, that are as close as the rounding of a few ops.

        Errors add up from layer to layer until a small bias is lost in them. So each is computed from the values that what it
        reads is believed to be, where only its own rounding is left; one that reads what is refuted must itself be that close.
        """
        trial = read(equal)
        for number in trial.recomputed.values():
            self.numbers.separate(number)
        self.evaluator.get([*trial.recomputed.values(), *equal.values()])
        depths = self._depths(before)
        refuted: set[int] = set()
        proved: dict[int, int] = {}
        for index, place in enumerate(after.places):
            is_tainted = any(operand in refuted for operand in self._flat(place.operands))
            known = equal.get(index)
            number = place.number if is_tainted else trial.recomputed.get(index, place.number)
            if known is not None and self._is_close(number, known, depths[number]):
                proved[index] = known
            elif known is not None or is_tainted:
                refuted.add(place.number)
        return proved

    def _flat(self, operands: Iterable[int]) -> Iterator[int]:
        for operand in operands:
            yield operand
            if self.numbers.nodes[operand].kind in ("tuple", "item"):
                yield from self._flat(self.numbers.nodes[operand].operands)

    def _is_close(self, number: int, known: int, depth: int = 1) -> bool:
        nodes, values = self.numbers.nodes, self.evaluator.values
        if number == known or number not in values or known not in values:
            return number == known
        if min(nodes[number].precision, nodes[known].precision) < _FLOAT32_BITS:
            return True  # coarser floats have no bound of few ops; the tolerance of their bits must do
        return agree_closely(values[known], values[number], depth)

    def _by_value(self, lost: list[TensorId], before: ValueGraph, after: ValueGraph) -> dict[TensorId, tuple[Spot, Link]]:
        """Return for each id that is found again where, and the link."""
        new = [
            Spot(place.number, place.name, bool(place.path), index)
            for index, place in enumerate(after.places)
            if isinstance(place.ty, relax.TensorType) and not before.holds(place.number)
        ]
        bound = {spot.number for spot in new}
        new += [
            Spot(number, "", False, None)
            for number in after.constants
            if number not in bound and not before.holds(number) and self.numbers.nodes[number].kind == "constant"
        ]
        if not new:
            return {}
        return ValueSearch(self.numbers, self.evaluator, self.sources, self.links, new, list(before.by_number)).find(lost)

    # ---------------------------------------------------------------------------------------------- what became of the rest

    def _enclosing(
        self, lost: list[TensorId], before: ValueGraph, after: ValueGraph, folded: Mapping[int, int]
    ) -> dict[TensorId, TensorState]:
        """Return the states of ids that no variable holds."""
        states: dict[TensorId, TensorState] = {}
        wanted = {self.links[tensor].number for tensor in lost}
        within = enclosing_calls(self.numbers, before, after, wanted)
        into_constant = parts_of(self.numbers, before, folded)
        for tensor in lost:
            number = self.links[tensor].number
            around = within.get(number)
            if number in into_constant:
                states[tensor] = TensorState(kind="folded", relation=self.links[tensor].relation, reason="part of a constant")
            elif around is not None:
                states[tensor] = TensorState(
                    kind="inside",
                    relation=self.links[tensor].relation,
                    composite=around.callee,
                    expression=around.expression,
                    evidence="structure",
                )
            elif self.states[tensor].kind in ("inside", "gone", "folded") and not self.graph.holds(number):
                states[tensor] = self.states[tensor]
            else:
                states[tensor] = TensorState(kind="gone", reason=self._why_gone(number, before))
        return states

    def _why_gone(self, number: int, before: ValueGraph) -> str:
        reason = self.evaluator.failed.get(number)
        if reason is not None:
            return f"no variable is shown to hold it, and it cannot be computed for comparing: {reason}"
        if number not in self._live(before):
            return "nothing read it"
        return "no variable holds its value any more"

    def _live(self, graph: ValueGraph) -> set[int]:
        live: set[int] = set()
        stack = [graph.result]
        while stack:
            number = stack.pop()
            if number not in live:
                live.add(number)
                stack.extend(self.numbers.nodes[number].operands)
                stack.extend(operand for place in graph.by_number.get(number, ()) for operand in place.operands)
        return live

    def _states(self, graph: ValueGraph, enclosing: Mapping[TensorId, TensorState]) -> dict[TensorId, TensorState]:
        holders: dict[int, list[TensorId]] = {}
        for tensor, link in self.links.items():
            holders.setdefault(link.number, []).append(tensor)
        shared = {number: _assign(tensors, graph.by_number.get(number, [])) for number, tensors in holders.items()}
        states: dict[TensorId, TensorState] = {}
        for tensor, link in self.links.items():
            if tensor in enclosing:
                states[tensor] = enclosing[tensor]
                continue
            place, others = shared[link.number][tensor]
            states[tensor] = self._state(graph, link, place, others, self.numbers.nodes[self.sources[tensor]].kind)
        return states

    def _state(
        self, graph: ValueGraph, link: Link, place: Place | None, others: tuple[TensorId, ...], source_kind: str
    ) -> TensorState:
        common: dict[str, Any] = {"relation": link.relation, "evidence": link.evidence}
        if place is None:
            constant = graph.constants[link.number]
            kind: StateKind = "folded" if source_kind != "constant" else _plain_kind(link.relation)
            return TensorState(kind=kind, holder="", expression="constant", dtype=str(constant.ty.dtype), **common)
        dtype = str(getattr(place.ty, "dtype", ""))
        kind = _plain_kind(link.relation)
        if others:
            kind = "merged"
        elif place.path or (link.evidence == "announced" and _is_of_kernel(place.value)):
            kind = "inside"
        return TensorState(
            kind=kind,
            composite=_composite(place, kind),
            holder=place.name,
            expression=place.expression,
            position=graph.places.index(place),
            merged_with=others,
            dtype=dtype,
            **common,
        )


def _symbol_of(value: Any) -> str:
    """Return the symbol of object code that a value calls, "" for none."""
    callees = (value.op, *value.args[:1]) if isinstance(value, Call) else ()
    return next((str(callee.global_symbol) for callee in callees if isinstance(callee, ExternFunc)), "")


def _arranged(relation: Relation, axes: tuple[int, ...] | None, source: Any, now: Any) -> Relation:
    """Return a relation with the axes of a source tensor lying as its holder has them, which may have one of size 1 besides."""
    before, after = _shape_of(source), _shape_of(now)
    if before is None or after is None or len(after) != len(before) + 1:
        return relation if axes is None else replace(relation, permutation=axes, shape=None, shift=0)
    order = tuple(range(len(after))) if axes is None else axes
    image = [after[order.index(axis)] for axis in range(len(after))]
    added = next((axis for axis, size in enumerate(image) if size == 1 and (*image[:axis], *image[axis + 1 :]) == before), None)
    if added is None:
        return relation
    permutation = tuple(axis - (axis > added) for axis in order if axis != added)
    is_moved = permutation != tuple(range(len(before)))
    return replace(
        relation, permutation=permutation if is_moved else None, shape=after, shift=relation.shift if axes is None else 0
    )


def _shape_of(ty: Any) -> tuple[int, ...] | None:
    """Return the sizes of a tensor's type; None of any other, and of sizes that are not known."""
    sizes: list[Any] = (
        list(ty.shape.values) if isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr) else [None]
    )
    return tuple(int(size) for size in sizes) if all(hasattr(size, "value") for size in sizes) else None


def _same_calls(externs: Mapping[str, Any], before: ValueGraph, after: ValueGraph) -> dict[int, Place]:
    """Return by number what object code gave before a step, and gives after it from other operands, say: the variable there."""
    found: dict[int, Place] = {}
    for symbol, function in externs.items():
        if isinstance(function, relax.Function):
            old, new = (list(_given(graph, symbol)) for graph in (before, after))
            found |= {one.number: other for one, other in zip(old, new, strict=False)} if len(old) == len(new) else {}
    return found


def _given(graph: ValueGraph, symbol: str) -> Iterator[Place]:
    """Yield the variables of tensors that a function's code gives, in order."""
    calls = [place.var for place in graph.places if not place.path and _symbol_of(place.value) == symbol]
    for place in graph.places:
        is_item = isinstance(place.value, relax.TupleGetItem) and place.value.tuple_value in calls
        if (place.var in calls or is_item) and isinstance(place.ty, relax.TensorType):
            yield place


def _composite(place: Place, kind: StateKind) -> str:
    """Return the function around a variable; of one that a kernel made of several ops, the kernel."""
    if place.path:
        return place.path[-1]
    return op_name(place.value) if kind == "inside" and isinstance(place.value, Call) else ""


def _is_of_kernel(value: Any) -> bool:
    """Whether a call is of a function or kernel, which may have made one of several ops."""
    callees = (value.op, *value.args[:1]) if isinstance(value, Call) else ()
    return any(
        isinstance(callee, GlobalVar) or (isinstance(callee, ExternFunc) and str(callee.global_symbol) != _RESHAPE)
        for callee in callees
    )


def _plain_kind(relation: Relation) -> StateKind:
    if relation.is_scaled:
        return "rescaled"
    return "laid out anew" if relation.is_rearranged else "kept"


def _assign(tensors: list[TensorId], places: list[Place]) -> dict[TensorId, tuple[Place | None, tuple[TensorId, ...]]]:
    """Give each id that has this value a variable that holds it: its own by name, else one left over, else another's."""
    outer = [place for place in places if not place.path] or places
    # A second name for a variable is no second holder.
    outer = [place for place in outer if not isinstance(place.value, Var)] or outer
    result: dict[TensorId, tuple[Place | None, tuple[TensorId, ...]]] = {}
    left = list(outer)
    for tensor in tensors:
        own = next((place for place in left if place.name == tensor), None)
        if own is not None:
            left.remove(own)
            result[tensor] = (own, ())
    for tensor in tensors:
        if tensor in result:
            continue
        if left:
            result[tensor] = (left.pop(0), ())
        elif outer:
            result[tensor] = (outer[0], tuple(other for other in tensors if other != tensor))
        else:
            result[tensor] = (None, ())
    return result
