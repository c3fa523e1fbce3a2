"""Finding values again that a pass computes in another float type: the same ops on the same operands, with casts between.

A float16 network drifts away from the float32 one, layer by layer, until no tolerance tells a tensor from its neighbour. So
structure proposes the partner here, and values decide one op at a time: each is computed from its partner's operands as they
were, cast, and must agree with its partner. Claims nothing that does not agree, nor anything computed from such.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tvm import relax
from tvm.ir import Call
from tvm_ffi import structural_equal

from ..identity.relation import agree
from .dataflow import call_to, dtype_of, op_name
from .evaluate import Evaluator
from .value_graph import Place, ValueGraph
from .value_numbers import ValueNumbers
from .value_search import tolerance_of


@dataclass(slots=True, eq=False)
class Recast:
    """The partners of one module's values in the module before it.

    Parameters
    ----------
    partners
        Number of a value that is new -> number of the value before that it seems to be, in another float type.
    """

    numbers: ValueNumbers
    evaluator: Evaluator
    before: ValueGraph
    after: ValueGraph
    partners: dict[int, int] = field(default_factory=dict[int, int])
    _local: dict[int, int] = field(default_factory=dict[int, int])

    def find(self) -> dict[int, list[Place]]:
        """Return number of a value before -> the variables that hold it in another float type now, in order."""
        proposed = self._proposed()
        if not any(self._has_fewer_bits(place.number) for place in proposed):
            return {}
        inputs = {("recast", number): old for number, old in self.partners.items()}
        known = self.evaluator.get(self.partners.values())
        for key, old in inputs.items():
            if old in known:
                self.evaluator.inputs[key] = known[old].astype(dtype_of_number(self.numbers, key[1]))
        local = {place.number: self._rebuilt(place.number) for place in proposed}
        values = self.evaluator.get(local.values())
        found: dict[int, list[Place]] = {}
        wrong: set[int] = set()
        for place in proposed:
            old, new = self.partners[place.number], local[place.number]
            is_right = (
                wrong.isdisjoint(self._reads(place.number))
                and old in known
                and new in values
                and agree(known[old], values[new], tolerance_of(self.numbers, old, place.number))
            )
            if not is_right:
                wrong.add(place.number)
            elif self._has_fewer_bits(place.number):
                found.setdefault(old, []).append(place)
        return found

    def _has_fewer_bits(self, number: int) -> bool:
        """Whether a new value is computed through fewer bits than its partner; one that is not may be that very value."""
        return self.numbers.nodes[number].precision < self.numbers.nodes[self.partners[number]].precision

    def _proposed(self) -> list[Place]:
        """Return the new values that do what one value before did, on what stands for the same operands."""
        by_op: dict[tuple[str, tuple[int, ...]], list[Place]] = {}
        for place in self.before.places:
            if isinstance(place.value, Call):
                by_op.setdefault((op_name(place.value), place.operands), []).append(place)
        proposed: list[Place] = []
        for place in self.after.places:
            if self.before.holds(place.number) or not isinstance(place.value, Call) or place.number in self.partners:
                continue
            operands = tuple(self.partners.get(operand, operand) for operand in place.operands)
            if call_to(place.value, "astype") is not None and len(operands) == 1:
                partner = operands[0]
            else:
                partner = _only(by_op.get((op_name(place.value), operands), []), place.value)
            if partner is not None and self._are_floats(partner, place):
                self.partners[place.number] = partner
                proposed.append(place)
        return proposed

    def _are_floats(self, partner: int, place: Place) -> bool:
        before = self.numbers.nodes[partner].ty
        is_tensor = isinstance(before, relax.TensorType) and isinstance(place.ty, relax.TensorType)
        return is_tensor and "float" in str(before.dtype) and "float" in dtype_of(place.var)

    def _reads(self, number: int) -> Iterable[int]:
        """Return the proposed values that a new value is computed from, through values that are not."""
        stack, seen = list(self.numbers.nodes[number].operands), set[int]()
        while stack:
            operand = stack.pop()
            if operand in seen:
                continue
            seen.add(operand)
            if operand in self.partners:
                yield operand
            else:
                stack.extend(self.numbers.nodes[operand].operands)

    def _rebuilt(self, number: int) -> int:
        """Return the number of the same computation where it reads its operands' partners, cast."""
        node = self.numbers.nodes[number]
        operands = tuple(self._standing(operand) for operand in node.operands)
        return number if operands == node.operands else self.numbers.rebuilt(number, operands)

    def _standing(self, number: int) -> int:
        if number in self.partners:
            return self.numbers.input(("recast", number), self.numbers.nodes[number].ty)
        if number not in self._local:
            self._local[number] = self._rebuilt(number)
        return self._local[number]


def _only(fitting: list[Place], call: Call) -> int | None:
    """Return the one value that may be meant: of several (pools of several sizes, say) the one of the same attributes."""
    numbers = {place.number for place in fitting}
    if len(numbers) > 1:
        calls = [(place.number, place.value) for place in fitting if isinstance(place.value, Call)]
        numbers = {number for number, value in calls if structural_equal(value.attrs, call.attrs)}
    return numbers.pop() if len(numbers) == 1 else None


def dtype_of_number(numbers: ValueNumbers, number: int) -> str:
    """Return the element type of a numbered tensor."""
    return str(numbers.nodes[number].ty.dtype)
