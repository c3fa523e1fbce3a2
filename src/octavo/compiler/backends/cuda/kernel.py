"""A kernel for the GPU: a function template of `device/`, the numbers it is compiled for, and how it is launched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from ....errors import CompileError

C_TYPES = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int16": "short",
    "uint16": "unsigned short",
    "int32": "int",
    "int64": "long long",
    "float32": "float",
    "bool": "unsigned char",
}
"""Elements of tensors in CUDA C."""

BYTES = {"int8": 1, "uint8": 1, "bool": 1, "int16": 2, "uint16": 2, "int32": 4, "float32": 4, "int64": 8}
"""Of one element, by dtypes that kernels hold."""

MAX_GRID = (2**31 - 1, 65535, 65535)
"""Blocks of a launch along x, y and z, of every architecture from 3.0 on (CUDA C++ Programming Guide, compute capabilities)."""

Number = int | float | bool
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Argument:
    """A pointer that a kernel takes, to elements of a dtype; `writes` says whether it writes there."""

    name: str
    dtype: str
    writes: bool = False

    @property
    def c_type(self) -> str:
        """The pointer's type."""
        return f"{C_TYPES[self.dtype]}{'' if self.writes else ' const'} *"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One kernel of fixed shapes: everything but its pointers is a constant in its code.

    Parameters
    ----------
    name
        For people: what `explain` shows. An identifier.
    header
        File of `device/` that holds the template.
    function
        The template in namespace octavo, of one type P, a structure that holds `parameters` as constants.
    parameters
        Integers and booleans become `static constexpr int` and `bool`; a float becomes a static function, since C++17 has no
        constant of that type in a template's structure that every compiler takes.
    arguments
        In their order; what is written last.
    grid, block
        Blocks of the launch, threads of a block.
    shared_bytes
        Dynamic shared memory of a block.
    types
        Dtypes by the names of types that P holds beside: {"X": "int8"}.
    structures
        Constants of structures within P, by their names.
    members
        Further members of P, in CUDA C.
    isa
        The ISA whose instructions it uses, for `explain`.
    text
        The whole function named `function` in CUDA C, in place of a template; it then needs no parameters.
    least_blocks
        How many blocks a multiprocessor must have registers for at once: the compiler gives threads no more than that leaves.
    """

    name: str
    header: str
    function: str
    parameters: Mapping[str, Number]
    arguments: tuple[Argument, ...]
    grid: Dim3
    block: Dim3
    isa: str
    shared_bytes: int = 0
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    structures: Mapping[str, Mapping[str, Number]] = field(default_factory=dict[str, Mapping[str, Number]])
    members: str = ""
    text: str = ""
    least_blocks: int = 1

    def __post_init__(self) -> None:
        """Check what CUDA would refuse at the launch only."""
        threads = self.block[0] * self.block[1] * self.block[2]
        if not 1 <= threads <= 1024 or any(not 1 <= size <= most for size, most in zip(self.grid, MAX_GRID, strict=True)):
            raise CompileError(f"kernel {self.name}: no launch has the grid {self.grid} of blocks {self.block}")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]

    def body(self, symbol: str) -> str:
        """Return its CUDA C, without the header's include: a structure of parameters and a function of that name.

        The blocks of a multiprocessor are asked for: without that, the compiler spills registers to fit more of them.
        """
        if self.text:
            return re.sub(rf"\b{self.function}\b", symbol, self.text)
        members = [f"  using {name} = {C_TYPES[dtype]};" for name, dtype in self.types.items()]
        members += [_member(name, value) for name, value in self.parameters.items()]
        for structure, own in self.structures.items():
            members += [f"  struct {structure} {{", *(_member(name, value) for name, value in own.items()), "  };"]
        declared = ", ".join(f"{each.c_type}__restrict__ {each.name}" for each in self.arguments)
        passed = ", ".join(each.name for each in self.arguments)
        return "\n".join(
            [
                f"struct {symbol}_parameters {{",
                *members,
                *([self.members] if self.members else []),
                "};",
                f'extern "C" __global__ void __launch_bounds__({self.threads}, {self.least_blocks}) {symbol}({declared}) {{',
                f"  octavo::{self.function}<{symbol}_parameters>({passed});",
                "}",
            ]
        )

    @property
    def symbol(self) -> str:
        """A name made of its content: equal kernels share one."""
        digest = hashlib.sha256(self.body("kernel").encode() + self.header.encode()).hexdigest()[:12]
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', self.name)}_{digest}"


BoundKernel = tuple[Kernel, tuple[npt.NDArray[Any], ...]]
"""A kernel, and the constants that it reads behind its inputs."""


def _member(name: str, value: Number) -> str:
    if isinstance(value, bool):
        return f"  static constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        return f"  static constexpr {'int' if -(2**31) <= value < 2**31 else 'long long'} {name} = {value};"
    return f"  static __device__ __forceinline__ float {name}() {{ return {float(value).hex()}f; }}"


def translation_unit(kernels: Sequence[Kernel]) -> str:
    """Return the CUDA C of kernels, each under its symbol, equal ones once."""
    by_symbol = {kernel.symbol: kernel for kernel in kernels}
    includes = sorted({kernel.header for kernel in by_symbol.values()})
    bodies = [kernel.body(symbol) for symbol, kernel in sorted(by_symbol.items())]
    return "\n".join([*(f'#include "{header}"' for header in includes), "", *bodies, ""])
