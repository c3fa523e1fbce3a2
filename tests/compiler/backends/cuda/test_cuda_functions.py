"""Functions of single elements in float32 that read integers, or give them."""

from dataclasses import replace

import numpy as np
import pytest
from emulated_ops import SM_80, Case, integers, output, tensor, wrong

from octavo.compiler.backends.cuda.isa import ISAS
from octavo.ir.composites.elementwise import MixedElementwiseOp
from octavo.numerics import dequantize, quantize
from octavo.numerics.floats.float_function import FUNCTIONS, TRANSCENDENTAL, FloatFunction, Step

SUM = FloatFunction(inputs=2, constants=(0.0,), steps=(Step(op="add", operands=(0, 1)), Step(op="maximum", operands=(3, 2))))
ALONE = [
    FloatFunction(inputs=count, constants=(), steps=(Step(op=name, operands=tuple(range(count))),))
    for name, (count, _) in FUNCTIONS.items()
]
SPECIAL = np.float32(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 3.4e38, 2.5, -2.5, 88.5, -87.5, -103.5, 9.03, 3.93, 1e30]
)


def floats(shape, seed, scale=3.0):
    values = np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32)
    values.reshape(-1)[: SPECIAL.size] = np.roll(SPECIAL, seed)[: values.size]
    return values


def mixed_case(function, shape, kinds, dtype=None, *, nhwc=(), rounding="half_even", channels=(), axis=None, isa=SM_80):
    """A function of tensors of these dtypes to one of `dtype`, None for float32."""
    inputs, known, reals = {}, [], []
    for number, kind in enumerate(kinds):
        name = f"x{number}"
        if kind is None:
            inputs[name] = floats(shape, number)
            reals.append(inputs[name])
            continue
        known.append(tensor(name, shape, kind, 0.043, 3))
        inputs[name] = integers(shape, kind, number)
        reals.append(dequantize(inputs[name], known[-1].params))
    columns = () if axis is None else (1,) * axis + (-1,) + (1,) * (len(shape) - axis - 1)
    want = function(*reals, *(each.reshape(columns) for each in channels))
    want = np.broadcast_to(want, shape).copy()
    y = None if dtype is None else output(shape, dtype, 0.05, 7)
    if y is not None:
        want = quantize(want, y.tensor.params, rounding)
    op = MixedElementwiseOp(
        op="add",
        inputs=tuple(inputs),
        integers=tuple(known),
        function=function,
        y=y,
        name="y",
        rounding=rounding,
        channels=tuple(channels),
        axis=axis,
    )
    return Case(op, inputs, want, nhwc, isa)


def function_cases():
    """Each operation by itself, of floats."""
    for function in ALONE:
        yield mixed_case(function, (7, 1001), [None] * function.inputs)
        yield mixed_case(function, (3, 5), [None] * function.inputs, "int8")


def mixed_cases():
    slopes = [np.random.default_rng(number).uniform(-0.5, 0.9, 21).astype(np.float32) for number in range(2)]
    steps = (Step(op="add", operands=(0, 1)), Step(op="leaky_relu", operands=(4, 2)), Step(op="leaky_relu", operands=(5, 3)))
    bent = FloatFunction(inputs=4, constants=(), steps=steps)
    for size in (1, 3, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129):
        yield mixed_case(SUM, (3, size), ["int8", None], "uint8")
    for rounding in ("half_even", "half_up", "half_away"):
        yield mixed_case(SUM, (5, 64), ["uint8", "int8"], "int8", rounding=rounding)
    yield mixed_case(SUM, (5, 64), [None, "uint8"])
    yield mixed_case(SUM, (2, 21, 3, 4), ["int8", None], "int8", nhwc=("x0",))
    yield mixed_case(SUM, (2, 21, 3, 4), ["int8", "int8"], "int8", nhwc=("x0", "x1"))
    yield mixed_case(bent, (2, 21, 3, 4), ["int8", None], "int8", nhwc=("x1",), channels=slopes, axis=1)
    yield mixed_case(bent, (2, 21, 3, 4), ["int8", None], "int8", channels=slopes, axis=1)
    yield mixed_case(bent, (2, 4, 21), [None, "uint8"], "uint8", channels=slopes, axis=2)


def test_each_operation_has_the_bits_of_its_definition():
    assert {each.steps[0].op for each in ALONE} > set(TRANSCENDENTAL)
    assert wrong(list(function_cases())) == []


def test_functions_between_integers_are_those_of_the_oracle():
    assert wrong(list(mixed_cases())) == []


@pytest.mark.parametrize("name", ISAS)
def test_each_generation_gives_the_same(name):
    assert wrong([replace(case, isa=ISAS[name]) for case in list(mixed_cases())[9:]]) == []


@pytest.mark.parametrize(("check", "seed"), [("races", 1), ("addresses", 2)])
def test_functions_read_and_write_their_own_memory(check, seed):
    assert wrong(list(mixed_cases())[::3], check=check, seed=seed) == []
