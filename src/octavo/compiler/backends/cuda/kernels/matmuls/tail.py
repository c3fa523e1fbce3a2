"""What a product's kernel computes behind its own integers: the parameters and tables of `device/tail.cuh`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernel import Argument, Number
from ..elementwise.pair import PairFunction
from ..language.calls import Input, Operand

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tail:
    """Ops that follow a product in its kernel; none by default.

    Parameters
    ----------
    first, last
        Tables of 256 entries before and behind the function of two tensors, each for the integer whose byte is its place.
    first_is_signed
        Whether the entries of the first one are int8.
    pair
        The function of the product's integers and those of a tensor of the result's shape, which lies as the result does.
    is_first_operand
        Whether the product's integers are the first of the two.
    beside
        Dtype of that tensor.
    ops
        Names of the ops, for the kernel's.
    """

    first: Bytes | None = None
    first_is_signed: bool = False
    pair: PairFunction | None = None
    is_first_operand: bool = True
    beside: str = "int8"
    last: Bytes | None = None
    ops: tuple[str, ...] = ()

    def with_table(self, table: npt.NDArray[np.integer[Any]], dtype: str, op: str) -> Tail:
        """Return it with a table at its end, which has an entry for each integer of a dtype, least first."""
        by_byte = np.roll(table.view(np.uint8), 128) if dtype == "int8" else table.view(np.uint8)
        before = self.first if self.pair is None else self.last
        joined = by_byte if before is None else by_byte[before]
        ops = (*self.ops, op)
        if self.pair is None:
            return replace(self, first=joined, first_is_signed=table.dtype == np.int8, ops=ops)
        return replace(self, last=joined, ops=ops)

    def with_pair(self, pair: PairFunction, beside: str, *, is_first_operand: bool) -> Tail:
        """Return it with a function of two tensors at its end, of which it can have one."""
        assert self.pair is None, "a tail has one function of two tensors"
        return replace(self, pair=pair, beside=beside, is_first_operand=is_first_operand, ops=(*self.ops, pair.name))

    @property
    def suffix(self) -> str:
        """What the kernel's name gets: "_add"."""
        return "".join(f"_{op}" for op in self.ops)

    def structures(self) -> dict[str, dict[str, Number]]:
        """Return the structures within P."""
        own: dict[str, Number] = {
            "has_first": self.first is not None,
            "first_is_signed": self.first_is_signed,
            "has_pair": self.pair is not None,
            "is_first_operand": self.is_first_operand,
            "has_last": self.last is not None,
        }
        return {"Tail": own, "Pair": {} if self.pair is None else self.pair.parameters}

    def arguments(self) -> tuple[Argument, ...]:
        """Return what a kernel takes for it, in front of its result."""
        return Argument(name="beside", dtype=self.beside), Argument(name="tables", dtype="uint8")

    def operands(self, inputs: int) -> tuple[Operand, ...]:
        """Return what these are; the tensor that is read is the input behind so many of the product's own."""
        tables = [each for each in (self.first, self.last) if each is not None]
        beside = np.zeros(1, self.beside) if self.pair is None else Input(inputs)
        return beside, np.concatenate(tables) if tables else np.zeros(1, np.uint8)


NO_TAIL = Tail()
