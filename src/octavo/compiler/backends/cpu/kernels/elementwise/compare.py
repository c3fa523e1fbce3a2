"""Comparisons of quantized tensors, logic of boolean values, and choices by them.

Oracles: `compare` and `LOGIC` of `numerics.quantized.compare`, `numpy.where`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tvm import tirx
from tvm.script.ir_builder import tirx as B

from ......numerics.quant_params import INTEGER_RANGE
from ......numerics.quantized.compare import COMPARE_FRACTION_BITS, CompareRounding, Comparison, Logic, compare_multiplier
from ..language.broadcast import broadcast_shape, for_each_element
from ..language.fixed_point import fixed_point_scaled
from ..language.kernel import Kernel
from ..language.vectors import Buffer, Expr, prim_func
from .spec import Side

_COMPARISONS = {
    "equal": tirx.EQ,
    "not_equal": tirx.NE,
    "greater": tirx.GT,
    "greater_equal": tirx.GE,
    "less": tirx.LT,
    "less_equal": tirx.LE,
}

_LOGIC = {"and": tirx.And, "or": tirx.Or, "not": tirx.Not}


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareSpec:
    """a and b, whose shapes broadcast, to bool; `rounding` says what of them is compared."""

    kind: Comparison
    a: Side
    b: Side
    rounding: CompareRounding
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class LogicalSpec:
    """bool a and b, whose shapes broadcast, to bool; "not" has one operand."""

    kind: Logic
    shapes: tuple[tuple[int, ...], ...]
    threads: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """What a choice takes from: integers as kernels hold them, as they are or by a table with an entry for each, least first."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "int16"]
    table: npt.NDArray[np.integer] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SelectSpec:
    """a where the condition holds, b elsewhere; the three shapes broadcast. `dtype` is the result's."""

    condition: tuple[int, ...]
    a: Chosen
    b: Chosen
    dtype: Literal["uint8", "int16"]
    threads: int = 1


def compare(spec: CompareSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = a kind b."""

    def emit(a: Buffer, b: Buffer, y: Buffer) -> None:
        def one(places: list[Expr], at: Expr) -> None:
            sides = [
                _compared(buffer[place], side, spec.rounding)
                for buffer, place, side in zip((a, b), places, (spec.a, spec.b), strict=True)
            ]
            B.buffer_store(y, _COMPARISONS[spec.kind](*sides), [at])

        for_each_element((spec.a.shape, spec.b.shape), spec.threads, one)

    arguments = [(name, math.prod(side.shape), side.dtype) for name, side in (("a", spec.a), ("b", spec.b))]
    size = math.prod(broadcast_shape(spec.a.shape, spec.b.shape))
    return Kernel(name=f"compare.{spec.kind}", isa=isa, func=prim_func([*arguments, ("y", size, "bool")], emit))


def _compared(integer: Expr, side: Side, rounding: CompareRounding) -> Expr:
    if rounding == "integers":
        return integer.astype("int32")
    distance = integer.astype("int32") - side.zero_point
    if rounding == "float32":
        return distance.astype("float32") * B.float32(float(np.float32(side.scale)))
    return fixed_point_scaled(distance.astype("int64") << B.int64(COMPARE_FRACTION_BITS), compare_multiplier(side.scale), 1)


def logical(spec: LogicalSpec, *, isa: str) -> Kernel:
    """Return the kernel of boolean values."""

    def emit(*buffers: Buffer) -> None:
        *operands, y = buffers

        def one(places: list[Expr], at: Expr) -> None:
            values = [buffer[place] for buffer, place in zip(operands, places, strict=True)]
            B.buffer_store(y, _LOGIC[spec.kind](*values), [at])

        for_each_element(spec.shapes, spec.threads, one)

    arguments = [(f"x{i}", math.prod(shape), "bool") for i, shape in enumerate(spec.shapes)]
    func = prim_func([*arguments, ("y", _size(spec.shapes), "bool")], emit)
    return Kernel(name=f"logical.{spec.kind}", isa=isa, func=func)


def select(spec: SelectSpec, *, isa: str) -> Kernel:
    """Return the kernel of y = a where the condition holds, else b."""
    sides = (spec.a, spec.b)
    tables = tuple(side.table.astype(spec.dtype) for side in sides if side.table is not None)

    def emit(condition: Buffer, a: Buffer, b: Buffer, *rest: Buffer) -> None:
        *entries, y = rest

        def one(places: list[Expr], at: Expr) -> None:
            left = list(entries)
            values = [
                buffer[place] if side.table is None else left.pop(0)[buffer[place].astype("int32") - INTEGER_RANGE[side.dtype][0]]
                for buffer, place, side in zip((a, b), places[1:], sides, strict=True)
            ]
            B.buffer_store(y, B.Select(condition[places[0]], *values), [at])

        for_each_element((spec.condition, spec.a.shape, spec.b.shape), spec.threads, one)

    arguments = [("condition", math.prod(spec.condition), "bool")]
    arguments += [(name, math.prod(side.shape), side.dtype) for name, side in zip("ab", sides, strict=True)]
    arguments += [(f"table{i}", table.size, spec.dtype) for i, table in enumerate(tables)]
    size = _size((spec.condition, spec.a.shape, spec.b.shape))
    func = prim_func([*arguments, ("y", size, spec.dtype)], emit)
    return Kernel(name="select", isa=isa, func=func, constants=tables)


def _size(shapes: Sequence[tuple[int, ...]]) -> int:
    shape: tuple[int, ...] = ()
    for own in shapes:
        shape = broadcast_shape(shape, own)
    return math.prod(shape)
