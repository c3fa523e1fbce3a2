"""What a C library consists of, before any of it is written: its tensors, and for each CPU that it has code for, the calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import tvm

from ...compiler.backends.cpu.lowering import Lowered
from ...compiler.codegen.generate import external_objects
from ...compiler.codegen.objects import distinct_functions, object_code
from ...compiler.codegen.planned_calls import CallPlan
from ...compiler.codegen.program import call_plan
from ...compiler.codegen.tir_passes import HALF_CONVERSIONS, has_placeholders
from ...compiler.partition.pipeline import linked
from ...errors import CompileError
from ...ir.graph.growing_states import GrowingState
from ...runtime.code_cache import user_cache
from ...runtime.cpu_features import Feature, features_of
from ...runtime.llvm_host import is_wasm
from ...runtime.shapes import largest
from ...runtime.size import Size

_ON_STACK = 1 << 14
"""Bytes of buffers that a kernel may have on the stack; more are part of the workspace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CTensor:
    """An input or output: its name in the source, dtype, shape, and of integers with one scale their parameters.

    Open dimensions are Sizes; so are then its numbers of elements and bytes. `start`: the bytes that a carried input begins as,
    where the source states them. `indices`: the least and the greatest integer of an input that picks rows of a table.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scale: float | None = None
    zero_point: int | None = None
    start: bytes | None = None
    indices: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return self.size * self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return -(-int(tvm.DataType(self.dtype).bits) // 8)


@dataclass(frozen=True, kw_only=True, slots=True)
class CDimension:
    """An open dimension: its name in the source, that of its field in C, its least size, and its largest (None: no bound)."""

    name: str
    field: str
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """The code for one kind of CPU.

    Parameters
    ----------
    plan
        Its calls.
    symbols
        Of the kernels, by their names in the plan.
    objects
        Object files, by symbol.
    features
        What a CPU must have to run them.
    limits, extents
        As a Description has them.
    growing
        The outputs that extend an input.
    """

    plan: CallPlan
    symbols: Mapping[str, str]
    objects: Mapping[str, bytes]
    features: tuple[Feature, ...]
    limits: tuple[tuple[Size, int], ...] = ()
    extents: tuple[Size, ...] = ()
    growing: tuple[GrowingState, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CLibrary:
    """A library: `name` prefixes all that it defines; of its `variants` the first that the CPU can run is taken.

    Parameters
    ----------
    dimensions
        The open ones, in the order of the fields.
    carried
        Which outputs a step hands to which inputs of the next, as (output, input).
    """

    name: str
    inputs: tuple[CTensor, ...]
    outputs: tuple[CTensor, ...]
    variants: tuple[Variant, ...]
    dimensions: tuple[CDimension, ...] = ()
    carried: tuple[tuple[int, int], ...] = ()

    @property
    def picks(self) -> list[tuple[int, CTensor]]:
        """The inputs that pick rows of tables, with their numbers."""
        return [(number, tensor) for number, tensor in enumerate(self.inputs) if tensor.indices is not None]

    @property
    def limits(self) -> tuple[tuple[Size, int], ...]:
        """Open sizes up to which the kernels of every variant are exact."""
        return tuple(dict.fromkeys(limit for variant in self.variants for limit in variant.limits))

    @property
    def extents(self) -> tuple[Size, ...]:
        """Open sizes of tensors within, which must be at least 1."""
        return tuple(dict.fromkeys(size for variant in self.variants for size in variant.extents))

    @property
    def growing(self) -> tuple[GrowingState, ...]:
        """The outputs that extend an input: the same in every variant."""
        return self.variants[0].growing

    @property
    def workspace(self) -> int:
        """Bytes of the workspace that serves any variant."""
        return largest(variant.plan.workspace for variant in self.variants)

    @property
    def constants(self) -> int:
        """Bytes of all constants."""
        return sum(variant.plan.constants.nbytes for variant in self.variants)


def variant_of(lowered: Lowered, target: tvm.target.Target) -> Variant:
    """Compile the kernels of a lowered module to object files.

    Raises
    ------
    CompileError
        A step that only TVM's virtual machine or its runtime can run.
    """
    module = linked(lowered, target)
    plan = call_plan(module, on_stack=_ON_STACK)
    if plan is None:
        raise CompileError("shapes that depend on values need TVM's virtual machine, which a C library does without")
    with target:
        kernels = distinct_functions(plan.module, target)
        code = object_code({each.symbol: each for each in kernels.values()}.values(), target, user_cache())
    symbols = {name: each.symbol for name, each in kernels.items()}
    objects = {symbol: _checked(symbol, image, target) for symbol, image in code.items()}
    external = {f"external{number}": image for number, image in enumerate(external_objects(module))}
    return Variant(
        plan=plan,
        symbols=symbols,
        objects=objects | external,
        features=features_of(target),
        limits=lowered.limits,
        extents=lowered.extents,
        growing=lowered.states,
    )


_TVM_SYMBOL = re.compile(rb"\0(_*TVM(?:Backend|FFI)[A-Za-z]*)(?=\0)")
_TVM_SYMBOL_OF_WASM = re.compile(rb"(_*TVM(?:Backend|FFI)[A-Za-z]*)")
"""There a name stands behind its length, and nothing ends it."""


def _checked(symbol: str, image: bytes, target: tvm.target.Target) -> bytes:
    """Return an object file that needs nothing but the C library, and defines nothing that other code may look for."""
    needed = (_TVM_SYMBOL_OF_WASM if is_wasm(target) else _TVM_SYMBOL).search(image)
    if needed is not None:
        raise CompileError(f"kernel {symbol} calls TVM's runtime ({needed[1].decode()}), which a C library does without")
    if has_placeholders(target) and not is_wasm(target):
        # Under their own names these would be taken for the functions, by whatever else is linked with the library.
        for name in HALF_CONVERSIONS:
            other = f"octavo_{name.strip('_')}"[: len(name)]
            image = image.replace(f"\0{name}\0".encode(), f"\0{other}\0".encode())
    return image
