"""Places of extremes, and the greatest or least elements in their order."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from emulated_ops import SM_80, Case, integers, output, tensor, wrong

from octavo.compiler.backends.cuda.isa import ISAS
from octavo.compiler.backends.cuda.kernels.reductions.topk import TopkSpec, counts
from octavo.ir.composites.movement import TopkOp
from octavo.ir.composites.reduction import ArgReduceOp
from octavo.numerics import arg_reduce, top_k_indices

DTYPES = ("int8", "uint8")
LENGTHS = (1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129)


def values_of(shape, dtype, spread):
    """Integers of the whole range, or of few values, so that many are equal."""
    if spread == 256:
        return integers(shape, dtype, 1)
    return (np.random.default_rng(2).integers(0, spread, shape) + (-3 if dtype == "int8" else 60)).astype(dtype)


def place_case(kind, dtype, index_dtype, shape, axis, *, keeps=False, nhwc=(), spread=256):
    x, values = tensor("x", shape, dtype, 0.1, 3), values_of(shape, dtype, spread)
    flat = values.reshape(-1) if axis is None else values
    want = arg_reduce(flat, axis or 0, largest=kind == "argmax").astype(index_dtype)
    if keeps:
        want = want.reshape([1 if axis in (None, place) else size for place, size in enumerate(shape)])
    return Case(ArgReduceOp(kind=kind, x=x, axis=axis), {"x": values}, want, nhwc)


def place_cases():
    for kind, dtype in itertools.product(("argmax", "argmin"), DTYPES):
        for columns in LENGTHS:
            yield place_case(kind, dtype, "int64", (3, columns), 1, spread=256 if columns < 60 else 9)
        yield place_case(kind, dtype, "int32", (2, 1001), 1, spread=5)
        yield place_case(kind, dtype, "int32", (2, 7, 6), 1, keeps=True)
        yield place_case(kind, dtype, "int64", (70, 8), 0, spread=3)
        yield place_case(kind, dtype, "int32", (2, 21, 3, 5), 1, nhwc=("x",), spread=30)
        yield place_case(kind, dtype, "int64", (2, 8, 9, 5), 2, keeps=True, nhwc=("x",), spread=20)
        yield place_case(kind, dtype, "int64", (2, 8, 3, 5), None, nhwc=("x",))
        yield place_case(kind, dtype, "int32", (2, 9, 5), None, spread=2)


def topk_case(dtype, to, shape, axis, count, *, largest=True, nhwc=(), spread=256, isa=SM_80):
    x, values = tensor("x", shape, dtype, 0.1, 3), values_of(shape, dtype, spread)
    places = top_k_indices(values, count, axis=axis, largest=largest)
    want = np.take_along_axis(values, places, axis) if to is None else places.astype(to)
    y = output(want.shape, dtype, 0.1, 3) if to is None else None
    return Case(TopkOp(x=x, y=y, axis=axis, count=count, largest=largest), {"x": values}, want, nhwc, isa)


def topk_cases():
    for dtype, to, largest in itertools.product(DTYPES, (None, "int32", "int64"), (True, False)):
        for columns in LENGTHS:
            yield topk_case(dtype, to, (5, columns), 1, min(columns, 5), largest=largest, spread=256 if columns % 2 else 9)
        yield topk_case(dtype, to, (2, 3, 300), 2, 1, largest=largest)
        yield topk_case(dtype, to, (2, 300), 1, 300, largest=largest, spread=40)
        yield topk_case(dtype, to, (3, 77), 1, 70, largest=largest)
        yield topk_case(dtype, to, (2, 33, 3), 1, 4, largest=largest)
        yield topk_case(dtype, to, (2, 33, 3, 4), 1, 33, largest=largest, nhwc=("x",), spread=20)


def test_places_are_those_of_the_oracle():
    assert wrong(list(place_cases())) == []


def test_what_is_chosen_is_what_the_oracle_chooses():
    assert wrong(list(topk_cases())) == []


@pytest.mark.parametrize("name", ISAS)
def test_each_generation_finds_the_same(name):
    chosen = [*list(place_cases())[::9], *list(topk_cases())[::5]]
    assert wrong([replace(case, isa=ISAS[name]) for case in chosen]) == []


def test_few_are_looked_for_and_many_are_counted():
    def is_counted(extent, count):
        places = TopkSpec(rows=1, extent=extent, count=count, largest=True, gives_places=True, dtype="int8", to="int64")
        return counts(places)

    assert [is_counted(*each) for each in ((1000, 5), (64, 2), (8400, 300), (300, 300))] == [False, False, True, True]


@pytest.mark.parametrize(("check", "seed"), [("races", 1), ("addresses", 2)])
def test_places_are_looked_for_in_their_own_memory(check, seed):
    chosen = list(topk_cases())[::12]  # each shape once, of all dtypes and results in turn
    assert len({case.inputs["x"].shape for case in chosen}) == len(chosen) == 17
    cases = [*list(place_cases())[3::13], *chosen, topk_case("int8", "int32", (2, 300), 1, 300, spread=40)]
    assert wrong(cases, check=check, seed=seed) == []
