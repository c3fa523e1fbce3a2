"""Sums, products, extremes and tables of two tensors."""

import numpy as np
import pytest
from emulated_ops import Case, integers, output, tensor, wrong

from octavo.evaluation.conformance.oracles import expected
from octavo.ir.composites.elementwise import (
    AddOp,
    Choice,
    CompareOp,
    LogicalOp,
    LookupOp,
    Operand,
    PairLookupOp,
    PairwiseOp,
    SelectOp,
)
from octavo.ir.composites.movement import MoveOp
from octavo.numerics.quantized.compare import compare

DTYPES = ("int8", "uint8")


def point(dtype, which):
    low = -128 if dtype == "int8" else 0
    return low + {"least": 0, "middle": 131, "greatest": 255}[which]


def add_case(dtype, rounding, shape=(2, 3, 5, 7), b_shape=None, *, constant=False, scales=(0.04, 0.07, 0.09), nhwc=(), **more):
    points = more.pop("points", ("middle", "least", "middle"))
    dtypes = more.pop("dtypes", (dtype, dtype, dtype))
    b_shape = shape if b_shape is None else b_shape
    a = tensor("a", shape, dtypes[0], scales[0], point(dtypes[0], points[0]))
    b = tensor("b", b_shape, dtypes[1], scales[1], point(dtypes[1], points[1]))
    y = output(shape, dtypes[2], scales[2], point(dtypes[2], points[2]), **more)
    inputs = {"a": integers(shape, dtypes[0], 1), "b": integers(b_shape, dtypes[1], 2)}
    op = AddOp(a=a, b=b, b_values=inputs["b"] if constant else None, y=y, rounding=rounding)
    given = {"a": inputs["a"]} if constant else inputs
    return Case(op, given, expected(op, inputs).values, nhwc)


def add_cases():
    for dtype in DTYPES:
        low = -128 if dtype == "int8" else 0
        for rounding in ("half_up", "half_even", "half_even_stored"):
            yield add_case(dtype, rounding)
            yield add_case(dtype, rounding, (2, 4, 5, 16), scales=(0.25, 0.5, 1.0), nhwc=("a", "b"))
            yield add_case(dtype, rounding, (1, 8, 3, 4), scales=(0.5, 0.5, 0.25), nhwc=("b",), points=("greatest",) * 3)
            yield add_case(dtype, rounding, (3, 4, 5), (5,), constant=True, bounds=(low + 20, low + 201))
            yield add_case(dtype, rounding, (2, 3, 4, 5), (1, 4, 1), nhwc=("a",), points=("least",) * 3)
            yield add_case(dtype, rounding, (67,), (1,), constant=True, scales=(0.5, 0.5 / 256, 0.5))
            yield add_case(dtype, rounding, (1, 1, 4097), dtypes=("int8", "uint8", dtype))


def pairwise_case(kind, dtype, rounding, a_shape, b_shape, *, constant="", scales=(0.04, 0.07, 0.3), nhwc=(), bounds=None):
    same = kind in ("max", "min")
    shape = np.broadcast_shapes(a_shape, b_shape)
    points = (point(dtype, "middle"),) * 3 if same else (point(dtype, "middle"), point(dtype, "least"), point(dtype, "middle"))
    scales = (0.1,) * 3 if same else scales
    tensors = [tensor(name, each, dtype, scales[i], points[i]) for i, (name, each) in enumerate((("a", a_shape), ("b", b_shape)))]
    values = {"a": integers(a_shape, dtype, 3), "b": integers(b_shape, dtype, 4)}
    a, b = (Operand(tensor=each, values=values[each.name] if each.name == constant else None) for each in tensors)
    op = PairwiseOp(kind=kind, a=a, b=b, y=output(shape, dtype, scales[2], points[2], bounds), rounding=rounding)
    wide = {name: np.ascontiguousarray(np.broadcast_to(each, shape)) for name, each in values.items()}
    plain = PairwiseOp(
        kind=kind,
        a=Operand(tensor=tensor("a", shape, dtype, scales[0], points[0]), values=None),
        b=Operand(tensor=tensor("b", shape, dtype, scales[1], points[1]), values=None),
        y=op.y,
        rounding=rounding,
    )
    inputs = {name: each for name, each in values.items() if name != constant}
    return Case(op, inputs, expected(plain, wide).values, nhwc)


def pairwise_cases():
    for dtype in DTYPES:
        low = -128 if dtype == "int8" else 0
        for kind, rounding in (
            *(("sub", each) for each in ("half_up", "half_even", "half_even_stored")),
            *(("add", "half_up"), ("add", "half_even"), ("mul", "half_even"), ("mul", "half_even_stored")),
            *(("max", "half_even"), ("min", "half_even")),
        ):
            yield pairwise_case(kind, dtype, rounding, (2, 3, 4, 5), (2, 3, 4, 5), nhwc=("a",))
            yield pairwise_case(kind, dtype, rounding, (2, 8, 1, 1), (2, 8, 3, 4), nhwc=("b",), bounds=(low + 9, low + 222))
            yield pairwise_case(kind, dtype, rounding, (3, 1, 7), (5, 1), constant="a", scales=(0.5, 0.25, 0.25))
            yield pairwise_case(kind, dtype, rounding, (3, 16), (), constant="b", scales=(0.5, 0.5, 0.5))


def table_cases():
    for a_dtype, b_dtype, y_dtype in (("int8", "uint8", "int8"), ("uint8", "int8", "uint8")):
        table = integers((256, 256), y_dtype, 5)
        a, b = (tensor(name, (2, 3, 5, 4), dtype, 0.1, 3) for name, dtype in (("a", a_dtype), ("b", b_dtype)))
        op = PairLookupOp(a=a, b=b, rows=None, y=output(a.shape, y_dtype, 0.2, 5), table=table)
        inputs = {"a": integers(a.shape, a_dtype, 6), "b": integers(b.shape, b_dtype, 7)}
        yield Case(op, inputs, expected(op, inputs).values, ("b",))
        rows = np.random.default_rng(8).integers(0, 9, (3, 1, 1)).astype(np.int32)
        op = PairLookupOp(a=a, b=None, rows=rows, y=output(a.shape, y_dtype, 0.2, 5), table=table[:9])
        least = np.iinfo(a_dtype).min
        want = table[:9][np.broadcast_to(rows, a.shape), inputs["a"].astype(np.int32) - least]
        yield Case(op, {"a": inputs["a"]}, want)
        yield Case(op, {"a": inputs["a"]}, want, ("a",))


def lookup_cases():
    for x_dtype, y_dtype in (("int8", "int8"), ("uint8", "int8"), ("int8", "uint8")):
        table = integers((256,), y_dtype, 9)
        for shape, nhwc in (((2, 3, 5, 4), ("x",)), ((259,), ())):
            x = tensor("x", shape, x_dtype, 0.1, 3)
            op = LookupOp(x=x, y=output(shape, y_dtype, 0.2, 5), table=table)
            inputs = {"x": integers(shape, x_dtype, 10)}
            yield Case(op, inputs, expected(op, inputs).values, nhwc)


def choice_cases():
    rng = np.random.default_rng(11)
    a_shape, b_shape, shape = (2, 3, 4, 5), (3, 1, 5), (2, 3, 4, 5)
    for dtype in DTYPES:
        low = -128 if dtype == "int8" else 0
        values = {"a": integers(a_shape, dtype, 12), "b": integers(b_shape, dtype, 13)}
        values["b"][:] = values["a"][0, :, :1]
        for kind, rounding in (
            ("equal", "integers"),
            ("less", "float32"),
            ("greater_equal", "float32"),
            ("not_equal", "integers"),
        ):
            scales = (0.1, 0.1) if rounding == "integers" else (0.1, 0.07)
            a, b = (
                tensor(name, each.shape, dtype, scale, low + 130)
                for (name, each), scale in zip(values.items(), scales, strict=True)
            )
            given = {"rounding": rounding, "a_zero_point": low + 130, "b_zero_point": low + 130}
            scale = {"a_scale": scales[0], "b_scale": scales[1]}
            want = compare(kind, values["a"], values["b"], **scale, **given)
            sides = {"a": Operand(tensor=a, values=None), "b": Operand(tensor=b, values=None)}
            op = CompareOp(kind=kind, **sides, rounding=rounding, name="y", shape=shape)
            yield Case(op, values, want, ("a",))
        condition = rng.integers(0, 2, (2, 1, 4, 5)).astype(bool)
        y = output(shape, dtype, 0.07, low + 120)
        a = tensor("a", a_shape, dtype, 0.1, low + 130)
        op = SelectOp(
            condition="c",
            condition_shape=condition.shape,
            a=Choice(tensor=a, values=None),
            b=Choice(tensor=tensor("b", b_shape, dtype, 0.07, low + 120), values=values["b"]),
            y=y,
        )
        moved = MoveOp(x=a, y=y, axes=None)
        want = np.where(condition, expected(moved, {"a": values["a"]}).values, values["b"])
        yield Case(op, {"c": condition, "a": values["a"]}, want, ("a",))
    p, q = (rng.integers(0, 2, each).astype(bool) for each in ((2, 3, 4), (3, 1)))
    for kind, want in (("and", p & q), ("or", p | q), ("not", ~p)):
        names = ("p",) if kind == "not" else ("p", "q")
        given = {name: each for name, each in (("p", p), ("q", q)) if name in names}
        op = LogicalOp(kind=kind, operands=names, shapes=tuple(each.shape for each in given.values()), name="y", shape=p.shape)
        yield Case(op, given, want)


def test_comparisons_and_choices_are_those_of_the_oracle():
    assert wrong(list(choice_cases())) == []


def test_sums_are_those_of_the_oracle():
    assert wrong(list(add_cases())) == []


def test_pairs_are_those_of_the_oracle():
    assert wrong([*pairwise_cases(), *table_cases(), *lookup_cases()]) == []


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_pairs_read_and_write_their_own_memory(check):
    cases = [add_case("int8", "half_up"), add_case("uint8", "half_even", (67,), (1,), constant=True)]
    cases.append(pairwise_case("mul", "int8", "half_even", (2, 8, 1, 1), (2, 8, 3, 4), nhwc=("b",)))
    assert wrong(cases, check=check, seed=1) == []
