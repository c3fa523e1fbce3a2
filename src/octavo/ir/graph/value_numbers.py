"""Numbers for values: the same number for the same computation on the same inputs, whatever variables and functions are called.

Numbers last over several modules, so a value is known again after a pass that renamed, outlined or repeated it. A computation
may be declared equal to one that has a number already; later readings follow. Reads no module (value_graph.py does).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal

import tvm
from tvm.relax import Expr
from tvm_ffi import structural_equal, structural_hash

Kind = Literal["input", "constant", "call", "kernel", "tuple", "item", "opaque"]

_MANTISSA_BITS = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}


@dataclass(frozen=True, slots=True, eq=False)
class Structure:
    """An object of TVM as a key: equal to those of the same structure.

    TVM's structural hash alone would not do: it gives windows of (1, 1) by (1, 2) and of (1, 4) by (4, 4) the same number.
    """

    value: Any
    _hash: int

    @staticmethod
    def of(value: Any) -> Structure:
        """Return the key of an object; its free variables are equal to any others."""
        return Structure(value, structural_hash(value, True))

    def __hash__(self) -> int:
        """Hash of the structure."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether both have the same structure."""
        return isinstance(other, Structure) and self._hash == other._hash and structural_equal(self.value, other.value, True)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """How one value is computed.

    Parameters
    ----------
    kind
        "input"; "constant" (payload: its tensor); "call" of an op (payload: writes the call from its operands); "kernel"
        (payload: a PrimFunc and the literal arguments behind the tensors); "tuple"; "item" (payload: the index) of a tuple;
        "opaque", which no one can compute again.
    operands
        Numbers of what it reads.
    ty
        Relax type of the result.
    precision
        Mantissa bits of the coarsest float it was computed through.
    is_constant
        Whether it depends on no input.
    """

    kind: Kind
    operands: tuple[int, ...]
    payload: Any
    ty: Any
    precision: int
    is_constant: bool


@dataclass(slots=True)
class ValueNumbers:
    """The numbers given so far; they index `nodes`."""

    nodes: list[Node] = field(default_factory=list[Node])
    _numbers: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _equal: dict[int, int] = field(default_factory=dict[int, int])
    _tensors: dict[int, tuple[Any, Structure]] = field(default_factory=dict[int, tuple[Any, Structure]])
    _functions: dict[int, tuple[Any, Structure]] = field(default_factory=dict[int, tuple[Any, Structure]])

    def input(self, key: Hashable, ty: Any) -> int:
        """Return the number of an input that nothing is known of but its place."""
        return self._number(("input", key), "input", (), key, ty)

    def constant(self, tensor: Any, ty: Any) -> int:
        """Return the number of a constant (a tvm Tensor): equal contents, equal number."""
        return self._number(("constant", self._content(tensor)), "constant", (), tensor, ty)

    def tuple(self, operands: tuple[int, ...], ty: Any) -> int:
        """Return the number of a tuple."""
        return self._number(("tuple", operands), "tuple", operands, None, ty)

    def item(self, full: int, index: int, ty: Any) -> int:
        """Return the number of a tuple's field: of the field itself where the tuple was written out."""
        node = self.nodes[full]
        if node.kind == "tuple":
            return node.operands[index]
        return self._number(("item", full, index), "item", (full,), index, ty)

    def call(self, key: Hashable, operands: tuple[int, ...], write: Callable[[list[Expr]], Expr], ty: Any) -> int:
        """Return the number of an op's result; `key` says everything of the op but its operands."""
        return self._number(("call", key, operands), "call", operands, write, ty)

    def find_call(self, key: Hashable, operands: tuple[int, ...]) -> int | None:
        """Return the number of an op's result if it has one."""
        number = self._numbers.get(("call", key, operands))
        return None if number is None else self._resolved(number)

    def name_call(self, key: Hashable, operands: tuple[int, ...], number: int) -> None:
        """Say that an op on these operands computes the value `number`."""
        self._numbers[("call", key, operands)] = number

    def kernel(self, function: Any, operands: tuple[int, ...], literals: tuple[Any, ...], ty: Any) -> int:
        """Return the number of a PrimFunc's result; names and attributes of the function don't matter."""
        key = ("kernel", self._body(function), operands, tuple(map(Structure.of, literals)))
        return self._number(key, "kernel", operands, (function, literals), ty)

    def opaque(self, operands: tuple[int, ...], ty: Any) -> int:
        """Return a number that no other value has."""
        return self._number(("opaque", len(self.nodes)), "opaque", operands, None, ty)

    def rebuilt(self, number: int, operands: tuple[int, ...]) -> int:
        """Return the number of the computation of `number` on other operands."""
        node = self.nodes[number]
        return self._number(("rebuilt", number, operands), node.kind, operands, node.payload, node.ty)

    def identify(self, number: int, known: int) -> None:
        """Let the computation that got `number` give `known` from now on: the two were shown to be one value."""
        if number != self._resolved(known):
            self._equal[number] = known

    def separate(self, number: int) -> None:
        """Take back what `identify` was told of a number."""
        self._equal.pop(number, None)

    def _resolved(self, number: int) -> int:
        while number in self._equal:
            number = self._equal[number]
        return number

    def _number(self, key: Hashable, kind: Kind, operands: tuple[int, ...], payload: Any, ty: Any) -> int:
        number = self._numbers.get(key)
        if number is not None:
            return self._resolved(number)
        read = [self.nodes[operand] for operand in operands]
        own = _MANTISSA_BITS.get(str(getattr(ty, "dtype", "")), 64)
        precision = min([own, *(node.precision for node in read)])
        is_constant = kind == "constant" or (bool(read) and all(node.is_constant for node in read))
        self.nodes.append(Node(kind, operands, payload, ty, precision, is_constant))
        number = self._numbers[key] = len(self.nodes) - 1
        return number

    def _content(self, tensor: Any) -> Structure:
        """Return what tells a constant's content, hashed once for each tensor object."""
        known = self._tensors.get(hash(tensor))
        if known is None or not known[0].same_as(tensor):
            self._tensors[hash(tensor)] = known = (tensor, Structure.of(tensor))
        return known[1]

    def _body(self, function: Any) -> Structure:
        known = self._functions.get(hash(function))
        if known is None or not known[0].same_as(function):
            bare = tvm.tirx.PrimFunc(function.params, function.body, function.ret_type, None)
            self._functions[hash(function)] = known = (function, Structure.of(bare))
        return known[1]
