"""Comparisons, logic and choices equal their oracles, with one thread and two, over shapes that broadcast."""

import itertools

import numpy as np
import pytest
from kernel_runner import EACH_ISA, PARALLEL_SIZE, Case, check

from octavo.compiler.backends.cpu.kernels import Side
from octavo.compiler.backends.cpu.kernels.elementwise.compare import (
    Chosen,
    CompareSpec,
    LogicalSpec,
    SelectSpec,
    compare,
    logical,
    select,
)
from octavo.numerics.quantized import compare as oracle

SHAPES = (((2, 3, 17), (2, 3, 17)), ((5, 1, 33), (3, 1)), ((1,), (4, 65)), ((), (3,)))


def draw(rng, shape, dtype):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_comparisons(isa):
    rng = np.random.default_rng(1)
    shapes, dtypes, cases = itertools.cycle(SHAPES), itertools.cycle(itertools.product(("uint8", "int16"), repeat=2)), []
    for kind, rounding in itertools.product(oracle.COMPARISONS, ("integers", "float32", "fixed_point")):
        pair, (a_dtype, b_dtype) = next(shapes), next(dtypes)
        a, b = draw(rng, pair[0], a_dtype), draw(rng, pair[1], b_dtype)
        sides = [(0.0007, 3), (0.0011, 130)]
        spec = CompareSpec(
            kind=kind,
            a=Side(shape=a.shape, dtype=a_dtype, scale=sides[0][0], zero_point=sides[0][1]),
            b=Side(shape=b.shape, dtype=b_dtype, scale=sides[1][0], zero_point=sides[1][1]),
            rounding=rounding,
            threads=2,
        )
        names = ("a_scale", "a_zero_point", "b_scale", "b_zero_point")
        given = dict(zip(names, (value for side in sides for value in side), strict=True))
        expected = oracle.compare(kind, a, b, **given, rounding=rounding)
        cases.append(Case(kernel=compare(spec, isa=isa), inputs=(a, b), expected=expected, about=(kind, rounding, pair)))
    check(cases)


def test_fixed_point_tells_no_numbers_apart_that_are_closer_than_its_step():
    a = np.arange(5, dtype=np.uint8)
    given = {"a_scale": 0.001, "a_zero_point": 0, "b_scale": 0.001, "b_zero_point": 0}
    equal = [oracle.compare("equal", a, np.zeros_like(a), **given, rounding=rounding) for rounding in ("fixed_point", "float32")]
    np.testing.assert_array_equal(equal, [[True, True, False, False, False], [True, False, False, False, False]])


@pytest.mark.parametrize("isa", EACH_ISA)
def test_logic_and_choices(isa):
    rng = np.random.default_rng(2)
    cases = []
    for kind, pair in itertools.product(oracle.LOGIC, (*SHAPES, ((PARALLEL_SIZE,),) * 2)):
        shapes = pair[:1] if kind == "not" else pair
        operands = tuple(rng.integers(0, 2, shape).astype(bool) for shape in shapes)
        kernel = logical(LogicalSpec(kind=kind, shapes=shapes, threads=2), isa=isa)
        cases.append(Case(kernel=kernel, inputs=operands, expected=oracle.LOGIC[kind](*operands), about=(kind, pair)))
    for (a_dtype, dtype), pair in itertools.product((("uint8", "uint8"), ("int16", "int16"), ("uint8", "int16")), SHAPES):
        condition = rng.integers(0, 2, (2, 1, 1, 1)).astype(bool)
        a, b = draw(rng, pair[0], a_dtype), draw(rng, pair[1], dtype)
        info = np.iinfo(a_dtype)
        table = draw(rng, info.max - info.min + 1, dtype) if a_dtype != dtype or pair[0] == () else None
        sides = Chosen(shape=a.shape, dtype=a_dtype, table=table), Chosen(shape=b.shape, dtype=dtype)
        spec = SelectSpec(condition=condition.shape, a=sides[0], b=sides[1], dtype=dtype, threads=2)
        first = a if table is None else table[a.astype(np.int64) - info.min]
        expected = np.where(condition, first, b)
        cases.append(
            Case(kernel=select(spec, isa=isa), inputs=(condition, a, b), expected=expected, about=(a_dtype, dtype, pair))
        )
    check(cases)
