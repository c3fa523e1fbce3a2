"""Functions of two 8-bit tensors over shapes that broadcast: sums, products, extremes, tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ......ir.composites.base import QuantizedOutput, QuantizedTensor
from ......ir.composites.elementwise import float_sum_of, scales_of
from ......numerics import requantize_multiplier
from ......numerics.quantized.binary import add_parameters
from ......numerics.quantized.compare import Comparison
from ...isa import Isa
from ...kernel import Argument, BoundKernel, Kernel, Number
from ..language.axes import Operand, axis_parameters, dense_steps, elements_of_thread, merged_axes

INTEGER_SUM, FLOAT_SUM, PRODUCT, MAXIMUM, MINIMUM, PAIR_TABLE, COMPARISON, LOGIC = range(8)
"""The enumeration `PairFunction` of the header."""

THREADS = 256


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PairFunction:
    """What is computed of two integers.

    Parameters
    ----------
    name
        Of the kernel.
    parameters
        Members of the structure P that `Pair<P>` reads.
    table
        Of uint8 or int8 (rows, 256): results; a single entry where none is looked up.
    """

    name: str
    parameters: dict[str, Number]
    table: npt.NDArray[np.generic]


def _of_numbers(name: str, number: int, y: QuantizedOutput, parameters: dict[str, Number]) -> PairFunction:
    common: dict[str, Number] = {"function": number, "qmin": y.qmin, "qmax": y.qmax}
    return PairFunction(name=name, parameters={**common, **parameters}, table=np.zeros(1, y.tensor.params.dtype))


def sum_of(rounding: str, a: QuantizedTensor, b: QuantizedTensor, y: QuantizedOutput, *, subtract: bool = False) -> PairFunction:
    """Return a sum or difference that rounds so."""
    name = "subtract" if subtract else "add"
    constants, relabelling = float_sum_of(rounding, a, b, y.tensor, subtract=subtract)
    if constants is not None:
        # Constants are about integers to which `relabelling` is added no more.
        shifts = {f"{role}_shift": each.relabelling - relabelling for role, each in (("a", a), ("b", b), ("y", y.tensor))}
        ratios = {"a_ratio": constants.a_ratio, "b_ratio": constants.b_ratio, "bias": constants.bias}
        return _of_numbers(name, FLOAT_SUM, y, {**shifts, **ratios, "sum_zero_point": constants.zero_point})
    scales, points = scales_of(a, b, y.tensor), [_zero_point(each) for each in (a, b, y.tensor)]
    p = add_parameters(scales[0], points[0], scales[1], points[1], scales[2], subtract=subtract)
    numbers = {"a_multiplier": p.a_multiplier, "b_multiplier": p.b_multiplier, "bias": p.bias, "shift": p.shift}
    return _of_numbers(name, INTEGER_SUM, y, {**numbers, "zero_point": points[2]})


def product_of(a: QuantizedTensor, b: QuantizedTensor, y: QuantizedOutput, *, stored_even: bool) -> PairFunction:
    """Return a product."""
    multiplier = float(requantize_multiplier(*scales_of(a, b, y.tensor)))
    points = {f"{role}zero_point": _zero_point(each) for role, each in (("a_", a), ("b_", b), ("", y.tensor))}
    return _of_numbers("multiply", PRODUCT, y, {**points, "multiplier": multiplier, "stored_even": stored_even})


def extreme_of(kind: str, y: QuantizedOutput) -> PairFunction:
    """Return the "max" or "min" of integers of one scale and zero point."""
    return _of_numbers("maximum" if kind == "max" else "minimum", MAXIMUM if kind == "max" else MINIMUM, y, {})


def table_of(table: npt.NDArray[np.generic], a_dtype: str, b_dtype: str) -> PairFunction:
    """Return the function whose table has a row for each integer of b, an entry for each of a's, least first."""
    least = {dtype: 128 if dtype == "int8" else 0 for dtype in (a_dtype, b_dtype)}
    parameters: dict[str, Number] = {"function": PAIR_TABLE, "a_shift": least[a_dtype], "b_shift": least.get(b_dtype, 0)}
    return PairFunction(name="pair_table", parameters=parameters, table=table)


RELATIONS: tuple[Comparison, ...] = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
"""In the order of the header's numbers."""

_LOGIC = {"and": 0, "or": 1, "not": 2}


def comparison_of(kind: Comparison, a: QuantizedTensor, b: QuantizedTensor, *, in_float: bool) -> PairFunction:
    """Return whether a relation is that of integers, or of the float32 numbers that they stand for."""
    parameters: dict[str, Number] = {"function": COMPARISON, "relation": RELATIONS.index(kind), "in_float": in_float}
    for role, tensor in (("a", a), ("b", b)):
        parameters |= {f"{role}_scale": float(tensor.params.scale), f"{role}_zero_point": _zero_point(tensor)}
        parameters |= {f"{role}_shift": tensor.relabelling}
    return PairFunction(name="compare", parameters=parameters, table=np.zeros(1, np.bool_))


def logic_of(kind: str) -> PairFunction:
    """Return "and", "or" or "not", which reads its first operand, of booleans."""
    parameters: dict[str, Number] = {"function": LOGIC, "relation": _LOGIC[kind], "in_float": False}
    return PairFunction(name=f"logical_{kind}", parameters=parameters, table=np.zeros(1, np.bool_))


def _zero_point(tensor: QuantizedTensor) -> int:
    return int(tensor.params.zero_point)


def pair(
    function: PairFunction,
    shape: tuple[int, ...],
    sides: tuple[Operand, Operand],
    dtype: str,
    isa: Isa,
    *,
    b_values: npt.NDArray[np.generic] | None = None,
) -> BoundKernel:
    """Return the kernel of a function of two tensors, for a result of this shape in memory; b may be a constant, behind a."""
    a, b = sides
    axes = merged_axes(shape, [a.steps, b.steps, dense_steps(shape)])
    own = [(size, each[:2]) for size, each in axes]
    items, count = math.prod(shape), elements_of_thread(axes, (dtype,), isa, ends=True)
    kernel = Kernel(
        name=function.name,
        header="pair.cuh",
        function="pair",
        parameters={
            "items": items,
            "threads": THREADS,
            "elements_of_thread": count,
            **axis_parameters(own, ("a", "b")),
            **function.parameters,
        },
        types={"A": a.dtype, "B": b.dtype, "Y": dtype},
        arguments=(
            Argument(name="a", dtype=a.dtype),
            Argument(name="b", dtype=b.dtype),
            Argument(name="table", dtype=dtype),
            Argument(name="y", dtype=dtype, writes=True),
        ),
        grid=(-(-items // (count * THREADS)), 1, 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, (*(() if b_values is None else (np.ascontiguousarray(b_values),)), function.table)


def select(shape: tuple[int, ...], operands: tuple[Operand, Operand, Operand], dtype: str, isa: Isa) -> BoundKernel:
    """Return the kernel of a choice by booleans between two tensors of the result's dtype; `shape` is that in memory."""
    axes = merged_axes(shape, [each.steps for each in operands])
    items = math.prod(shape)
    kernel = Kernel(
        name="select",
        header="pair.cuh",
        function="select",
        parameters={"items": items, "threads": THREADS, **axis_parameters(axes, ("c", "a", "b"))},
        types={"Y": dtype},
        arguments=(
            Argument(name="condition", dtype="bool"),
            Argument(name="a", dtype=dtype),
            Argument(name="b", dtype=dtype),
            Argument(name="y", dtype=dtype, writes=True),
        ),
        grid=(-(-items // THREADS), 1, 1),
        block=(THREADS, 1, 1),
        isa=isa.name,
    )
    return kernel, ()
