"""What moves integers, changes their parameters, and brings them from and to real numbers."""

import numpy as np
import pytest
from emulated_ops import Case, emitted, integers, output, tensor, wrong

from octavo.evaluation.conformance.oracles import expected
from octavo.ir.composites.base import QuantizedTensor
from octavo.ir.composites.movement import ConcatOp, DequantizeOp, GatherOp, MoveOp, QuantizeOp
from octavo.numerics import PerAxis, QuantParams
from octavo.numerics.affine import dequantize, quantize

SAME, SCALED, BOUNDED, SHIFTED = "same", "scaled", "bounded", "shifted"


def parameters(dtype, change):
    low = -128 if dtype == "int8" else 0
    other = {"int8": "uint8", "uint8": "int8"}[dtype]
    return {
        SAME: (dtype, 0.1, low + 130, None),
        SCALED: (dtype, 0.061, low + 7, (low + 3, low + 250)),
        BOUNDED: (dtype, 0.1, low + 130, (low + 30, low + 200)),
        SHIFTED: (other, 0.1, (0 if other == "uint8" else -128) + 129, None),
    }[change]


def source(shape, dtype):
    return tensor("x", shape, dtype, 0.1, (-128 if dtype == "int8" else 0) + 130)


def move_case(dtype, change, shape, to, axes=None, nhwc=(), fixed_point=None):
    new, scale, zero_point, bounds = parameters(dtype, change)
    op = MoveOp(x=source(shape, dtype), y=output(to, new, scale, zero_point, bounds, fixed_point), axes=axes)
    inputs = {"x": integers(shape, dtype, 1)}
    return Case(op, inputs, expected(op, inputs).values, nhwc)


def move_cases():
    for dtype in ("int8", "uint8"):
        for change in (SAME, SCALED, BOUNDED, SHIFTED):
            yield move_case(dtype, change, (2, 3, 4, 5), (6, 20))
            yield move_case(dtype, change, (2, 8, 4, 5), (16, 20), nhwc=("x",))
            yield move_case(dtype, change, (2, 12, 1, 1), (2, 12), nhwc=("x",))
            yield move_case(dtype, change, (2, 3, 4, 5), (2, 3, 4, 5), nhwc=("x",))
            yield move_case(dtype, change, (3, 4, 5), (5, 3, 4), (2, 0, 1))
            yield move_case(dtype, change, (2, 3, 4, 5), (2, 4, 5, 3), (0, 2, 3, 1), nhwc=("x",))
            yield move_case(dtype, change, (2, 3, 4, 5), (2, 4, 5, 3), (0, 2, 3, 1))
            yield move_case(dtype, change, (2, 3, 4, 8), (2, 8, 3, 4), (0, 3, 1, 2))
            yield move_case(dtype, change, (2, 3, 4, 8), (3, 2, 8, 4), (1, 0, 3, 2), nhwc=("x",))
        yield move_case(dtype, SCALED, (257,), (257,))
        yield move_case(dtype, SCALED, (3, 19), (3, 19), fixed_point="twice_away")


def gather_case(dtype, change, shape, maps, to=None, nhwc=(), fill=7):
    new, scale, zero_point, bounds = parameters(dtype, change)
    to = tuple(len(each) for each in maps) if to is None else to
    op = GatherOp(x=source(shape, dtype), y=output(to, new, scale, zero_point, bounds), maps=maps, fill=fill)
    inputs = {"x": integers(shape, dtype, 2)}
    return Case(op, inputs, expected(op, inputs).values, nhwc)


def gather_cases():
    every = [tuple(range(size)) for size in (2, 8, 5, 6)]
    padded = (-1, -1, *range(5), -1)
    for dtype in ("int8", "uint8"):
        for change in (SAME, SCALED):
            for nhwc in ((), ("x",)):
                yield gather_case(dtype, change, (2, 8, 5, 6), (every[0], every[1], padded, (-1, *every[3])), nhwc=nhwc)
                yield gather_case(dtype, change, (2, 8, 5, 6), (every[0], every[1], (1, 2, 3), (0, 2, 4)), nhwc=nhwc)
                yield gather_case(dtype, change, (2, 8, 5, 6), (*every[:3], every[3][::-1]), nhwc=nhwc)
                yield gather_case(dtype, change, (2, 8, 5, 6), (every[0], (4,), *every[2:]), to=(2, 5, 6), nhwc=nhwc)
                yield gather_case(dtype, change, (2, 8, 5, 6), ((1, 0, 1), (0, 0, 3, 7), every[2], every[3]), nhwc=nhwc)
        yield gather_case(dtype, SAME, (1, 8, 5, 6), ((-1, 0, 0), *every[1:]), fill=-3 if dtype == "int8" else 250)
        yield gather_case(dtype, SAME, (6,), ((5,),))


def concat_case(dtype, shapes, axis, nhwc=(), constants=(), *, same=False):
    low = -128 if dtype == "int8" else 0
    inputs = tuple(
        tensor(f"x{i}", shape, dtype, 0.1 if same else 0.1 * 0.7**i, low + 130 if same else low + 90 * i % 256)
        for i, shape in enumerate(shapes)
    )
    shape = list(shapes[0])
    shape[axis] = sum(each[axis] for each in shapes)
    values = {each.name: integers(each.shape, dtype, i) for i, each in enumerate(inputs)}
    op = ConcatOp(
        inputs=inputs, y=output(shape, dtype, 0.1, low + 130), axis=axis, constants={i: values[f"x{i}"] for i in constants}
    )
    given = {name: each for name, each in values.items() if int(name[1:]) not in constants}
    return Case(op, given, expected(op, values).values, nhwc)


def concat_cases():
    for dtype in ("int8", "uint8"):
        for same in (True, False):
            yield concat_case(dtype, [(2, 4, 3, 5), (2, 8, 3, 5)], 1, ("x0",), same=same)
            yield concat_case(dtype, [(2, 4, 3, 5), (2, 8, 3, 5), (2, 1, 3, 5)], 1, same=same)
            yield concat_case(dtype, [(2, 4, 3, 5), (2, 4, 3, 1)], 3, ("x0", "x1"), same=same)
            yield concat_case(dtype, [(2, 4, 3, 5), (1, 4, 3, 5)], 0, ("x1",), same=same)
            yield concat_case(dtype, [(3, 16), (3, 32), (3, 4)], 1, constants=(1,), same=same)
            yield concat_case(dtype, [(2, 4 * each, 3, 5) for each in (1, 3, 2, 5, 1)], 1, [f"x{i}" for i in range(5)], same=same)
            yield concat_case(dtype, [(5,), (7,)], 0, same=same)


def edge_cases():
    reals = np.array([0.05, -0.05, 0.15, 0.25, -0.25, 1e30, -1e30, np.inf, -np.inf, np.nan, 0.0, -0.0, 12.75], np.float32)
    drawn = np.random.default_rng(1).normal(size=(2, 8, 3, 5)).astype(np.float32) * 5
    drawn.reshape(-1)[: reals.size] = reals
    for dtype in ("int8", "uint8"):
        low = -128 if dtype == "int8" else 0
        per_tensor = QuantParams.per_tensor(dtype, 0.1, low + 130)
        scales, points = np.linspace(0.05, 0.2, 8, dtype=np.float32), np.arange(low + 100, low + 108, dtype=np.int32)
        for params in (per_tensor, QuantParams(dtype=dtype, scale=scales, zero_point=points, granularity=PerAxis(1))):
            for nhwc in ((), ("x",)):
                for ties in ("half_even", "half_up", "half_away"):
                    result = output(drawn.shape, dtype, 0.1, low + 130)
                    result = type(result)(
                        tensor=QuantizedTensor(name="y", shape=drawn.shape, params=params), qmin=low, qmax=low + 255
                    )
                    yield Case(QuantizeOp(source="x", y=result, rounding=ties), {"x": drawn}, quantize(drawn, params, ties), nhwc)
                q = integers(drawn.shape, dtype, 3)
                x = QuantizedTensor(name="x", shape=drawn.shape, params=params)
                yield Case(DequantizeOp(x=x, result="y"), {"x": q}, dequantize(q, params), nhwc)
    sums = np.array([2**31 - 1, -(2**31), 5, 2**24 + 1, 77], np.int32)
    params = QuantParams.per_tensor("int32", 0.3, -5)
    x = QuantizedTensor(name="x", shape=(5,), params=params)
    yield Case(DequantizeOp(x=x, result="y"), {"x": sums}, dequantize(sums, params))


def test_movements_are_those_of_the_oracle():
    assert wrong([*move_cases(), *gather_cases()]) == []


def test_concatenations_are_those_of_the_oracle():
    assert wrong(list(concat_cases())) == []


def test_edges_are_those_of_the_oracle():
    assert wrong(list(edge_cases())) == []


@pytest.mark.parametrize(
    "case",
    [
        move_case("int8", SAME, (2, 3, 4, 5), (6, 20)),
        move_case("int8", SAME, (2, 12, 1, 1), (2, 12), nhwc=("x",)),
        move_case("int8", SAME, (2, 3, 4, 5), (2, 4, 5, 3), (0, 2, 3, 1), nhwc=("x",)),
        move_case("int8", SAME, (1, 3, 4, 5), (3, 1, 4, 5), (1, 0, 2, 3)),
    ],
)
def test_what_moves_nothing_is_a_view(case):
    assert emitted(case).launches == ()


def test_a_concatenation_of_tensors_that_lie_alike_is_one_launch():
    shapes = [(2, 4, 3, 5), (2, 8, 3, 5), (2, 16, 3, 5)]

    def launches(nhwc):
        return [kernel.name for kernel in emitted(concat_case("int8", shapes, 1, nhwc)).kernels].count("concat")

    assert launches(("x0", "x1", "x2")) == launches(()) == 1
    assert launches(("x0", "x1")) == 3


@pytest.mark.parametrize("check", ["races", "addresses"])
def test_movements_read_and_write_their_own_memory(check):
    cases = [move_case("int8", SCALED, (257,), (257,)), move_case("uint8", SCALED, (3, 4, 5), (5, 3, 4), (2, 0, 1))]
    cases += [*list(gather_cases())[:3], concat_case("int8", [(2, 4, 3, 5), (2, 8, 3, 5)], 1, ("x0",))]
    cases.append(concat_case("uint8", [(2, 4, 3, 5), (2, 3, 3, 5)], 1))
    assert wrong(cases, check=check, seed=1) == []
