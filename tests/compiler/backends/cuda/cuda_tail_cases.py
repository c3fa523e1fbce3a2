"""What follows a product in its kernel, drawn at random, with what the oracles of the ops then give."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from emulated_ops import output, tensor

from octavo.compiler.backends.cuda.kernels.elementwise.pair import extreme_of, product_of, sum_of
from octavo.compiler.backends.cuda.kernels.matmuls.output import Output
from octavo.compiler.backends.cuda.kernels.matmuls.tail import Tail
from octavo.evaluation.conformance.oracles import expected
from octavo.ir.composites.elementwise import Operand, PairwiseOp
from octavo.numerics import INTEGER_RANGE

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Step:
    """An op of a tail: "table" or a kind of a PairwiseOp; the dtype of its result, and of what it reads beside."""

    kind: str
    dtype: str = "int8"
    beside: str = "int8"
    rounding: str = "half_even"
    is_first_operand: bool = True


def signs(first: str, second: str, *, kind: str = "add", rounding: str = "half_even", is_first_operand: bool = True) -> Step:
    return Step(kind, first, second, rounding, is_first_operand)


TAILS = (
    (signs("int8", "int8"),),
    (signs("uint8", "uint8", rounding="half_up", is_first_operand=False),),
    (signs("int8", "uint8", rounding="half_even_stored"),),
    (signs("uint8", "int8", kind="sub", rounding="half_up", is_first_operand=False),),
    (signs("int8", "int8", kind="sub"),),
    (signs("int8", "uint8", kind="mul", is_first_operand=False),),
    (signs("uint8", "uint8", kind="mul", rounding="half_even_stored"),),
    (signs("int8", "int8", kind="max"),),
    (Step("table", "int8"),),
    (Step("table", "uint8"),),
    (Step("table", "uint8"), Step("table", "int8")),
    (signs("int8", "int8", rounding="half_up"), Step("table", "uint8")),
    (Step("table", "int8"), signs("int8", "int8")),
    (Step("table", "uint8"), signs("uint8", "int8", is_first_operand=False)),
    (Step("table", "int8"), signs("uint8", "uint8", rounding="half_up"), Step("table", "int8"), Step("table", "int8")),
)
"""Every function and rounding, tables at each place, both dtypes everywhere."""


def followed(rng: np.random.Generator, own: Output, values: Array, steps: tuple[Step, ...]) -> tuple[Output, Array, Array]:
    """Return an output with these steps behind it, what is read beside, and what is written where the product has `values`."""
    tail, beside = Tail(), rng.integers(0, 256, values.shape).astype(np.uint8)
    for step in steps:
        if step.kind == "table":
            low, high = INTEGER_RANGE[step.dtype]
            table = rng.integers(low, high + 1, 256).astype(step.dtype)
            tail = tail.with_table(table, str(values.dtype), "table")
            values = table[values.astype(np.int32) - np.iinfo(values.dtype).min]
        else:
            if step.kind == "max":  # of integers of one scale, zero point and dtype
                step = replace(step, dtype=str(values.dtype), beside=str(values.dtype))
            beside = beside.view(step.beside)
            function, values = _pair(rng, step, values, beside)
            tail = tail.with_pair(function, step.beside, is_first_operand=step.is_first_operand)
    return own.followed_by(tail, str(values.dtype)), beside, values


def _pair(rng: np.random.Generator, step: Step, values: Array, beside: Array) -> tuple[Any, Array]:
    """Return the function of a step, and its result by the oracle."""
    same = step.kind == "max"
    scales = [0.1] * 3 if same else rng.uniform(0.02, 0.2, 3).tolist()
    if step.kind == "mul":
        scales[2] = scales[0] * scales[1] * 90
    points = [int(rng.integers(*INTEGER_RANGE[each])) for each in (str(values.dtype), step.beside, step.dtype)]
    own = tensor("own", values.shape, str(values.dtype), scales[0], points[0])
    other = tensor("other", values.shape, step.beside, scales[1], points[0] if same else points[1])
    low, high = INTEGER_RANGE[step.dtype]
    y = output(values.shape, step.dtype, scales[2], points[0] if same else points[2], (low + 7, high - 5))
    sides = [Operand(tensor=each, values=None) for each in (own, other)]
    a, b = sides if step.is_first_operand else sides[::-1]
    op = PairwiseOp(kind=step.kind, a=a, b=b, y=y, rounding=step.rounding)
    if step.kind == "mul":
        function = product_of(a.tensor, b.tensor, y, stored_even=step.rounding == "half_even_stored")
    elif same:
        function = extreme_of(step.kind, y)
    else:
        function = sum_of(step.rounding, a.tensor, b.tensor, y, subtract=step.kind == "sub")
    found = expected(op, {"own": values, "other": beside})
    assert found is not None
    return function, found.values
