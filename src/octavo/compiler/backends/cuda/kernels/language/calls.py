"""What a kernel's builder returns: launches in their order, and what each of their arguments is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from ...kernel import Kernel

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the caller has, by its number among those that the op reads."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Scratch:
    """Memory that only these launches use, so many bytes; its identity is what counts."""

    size: int


@dataclass(frozen=True, slots=True)
class Result:
    """The tensor that the op writes."""


Operand = Input | Scratch | Result | Array
"""Of a launch: an array is a constant."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelCall:
    """A launch of a kernel; `operands` in the order of its arguments.

    `key` names what can be chosen of it (`Tunable`), "" for nothing.
    """

    kernel: Kernel
    operands: tuple[Operand, ...]
    key: str = ""

    def __post_init__(self) -> None:
        """Check that every argument has an operand."""
        assert len(self.operands) == len(self.kernel.arguments), f"{self.kernel.name}: {len(self.operands)} operands"


def one_call(kernel: Kernel, inputs: int, constants: tuple[Array, ...]) -> tuple[KernelCall, ...]:
    """Return the one call of a kernel that takes its inputs, then constants, then the result."""
    read = tuple(Input(number) for number in range(inputs))
    return (KernelCall(kernel=kernel, operands=(*read, *constants, Result())),)
