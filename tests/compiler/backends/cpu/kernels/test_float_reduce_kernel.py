"""Reductions of float32 against their oracle, bit for bit: rows, strips, extremes and their first places."""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
from kernel_runner import GENERIC, HOST_ISAS, Case, baseline_target, check, few

from octavo.compiler.backends.cpu.kernels import FloatReduceSpec, float_reduce
from octavo.numerics.floats import reduce as oracle

KINDS: tuple[Literal["sum", "mean", "max", "min", "argmax", "argmin"], ...] = ("sum", "mean", "max", "min", "argmax", "argmin")
SHAPES = [
    *((3, count, 1) for count in (1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 79, 95, 127, 129, 1000)),
    *((2, count, inner) for count in (1, 2, 9) for inner in (4, 15, 16, 17, 33, 127, 128, 129)),
    (70, 200, 1),
    (5, 40, 200),
]


def cases(rng: np.random.Generator, isa: str) -> Iterator[Case]:
    for number, shape in enumerate(SHAPES):
        for kind in KINDS:
            outer, count, inner = shape
            x = np.round(rng.normal(size=shape), 1 if kind.startswith("arg") else 8).astype(np.float32)  # extremes that are equal
            index_dtype = ("int32", "int64")[number % 2]
            spec = FloatReduceSpec(
                kind=kind, outer=outer, count=count, inner=inner, index_dtype=index_dtype, threads=1 + number % 2
            )
            expected = oracle.float_reduce(x, kind).astype(spec.out_dtype)
            yield Case(kernel=float_reduce(spec, isa=isa), inputs=(x,), expected=expected, about=spec)


@pytest.mark.parametrize("isa", HOST_ISAS)
def test_equals_the_oracle(rng: np.random.Generator, isa: str) -> None:
    check(cases(rng, isa))


def test_same_bits_on_the_baseline(rng: np.random.Generator) -> None:
    check(few(cases(rng, GENERIC), 5), baseline_target())


def test_places_of_what_is_no_number_lie_within_the_row() -> None:
    x = np.full((2, 20, 1), np.nan, np.float32)
    kernel = float_reduce(FloatReduceSpec(kind="argmax", outer=2, count=20, inner=1), isa=HOST_ISAS[0])
    check([Case(kernel=kernel, inputs=(x,), expected=np.full((2, 1), 19), about="NaN")])
