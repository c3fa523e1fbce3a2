"""Functions of float32 elements: their distance from float64's, their values at the ends, and programs of them."""

import math

import numpy as np
import pytest

from octavo.numerics.floats import float_function
from octavo.numerics.floats.float_function import FloatFunction, Step

INF = float("inf")
WIDE = np.linspace(-103, 88, 100_003)
REFERENCES = {
    "exp": (np.exp, WIDE),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), np.linspace(-87, 88, 100_003)),
    "tanh": (np.tanh, np.concatenate([np.linspace(-9.5, 9.5, 50_001), np.exp(np.linspace(-90, 2, 10_001))])),
    "erf": (np.vectorize(math.erf), np.concatenate([np.linspace(-4.2, 4.2, 50_001), np.exp(np.linspace(-90, 1, 10_001))])),
}
MAX_UNITS = {"exp": 1, "sigmoid": 3, "tanh": 6, "erf": 6}
"""As the docstrings state it."""


@pytest.mark.parametrize("name", REFERENCES)
def test_the_error_stays_below_what_is_stated(name: str) -> None:
    reference, values = REFERENCES[name]
    x = values.astype(np.float32)
    expected = reference(x.astype(np.float64))
    units = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert (np.abs(getattr(float_function, name)(x) - expected) / units).max() <= MAX_UNITS[name]


@pytest.mark.parametrize(
    ("name", "ends"),
    [("exp", (0, 1, 1, INF)), ("sigmoid", (0, 0.5, 0.5, 1)), ("tanh", (-1, -0.0, 0, 1)), ("erf", (-1, -0.0, 0, 1))],
)
def test_the_ends_are_exact(name: str, ends: tuple[float, ...]) -> None:
    x = np.array([-INF, -0.0, 0.0, INF, np.nan], np.float32)
    assert getattr(float_function, name)(x).tobytes()[:16] == np.array(ends, np.float32).tobytes()
    assert np.isnan(getattr(float_function, name)(x)[4])


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_one_is_reached_where_float32_rounds_to_it(name: str) -> None:
    limit = np.float32(getattr(float_function, f"{name.upper()}_LIMIT"))
    around = np.concatenate([np.linspace(limit / 2, limit, 20_001, dtype=np.float32), [np.nextafter(limit, np.float32(10))]])
    exact = REFERENCES[name][0](around.astype(np.float64)).astype(np.float32)
    for sign in (1, -1):
        np.testing.assert_array_equal(getattr(float_function, name)(sign * around) == sign, exact == 1)


def test_a_program_reads_inputs_constants_and_earlier_steps() -> None:
    steps = (Step(op="multiply_add", operands=(0, 2, 1)), Step(op="maximum", operands=(3, 0)))
    function = FloatFunction(inputs=2, constants=(0.5,), steps=steps)
    x, y = np.float32([1, -4, 8]), np.float32([1, 1, 1])
    assert function(x, y).tolist() == [1.5, -1, 8]


def test_a_step_reads_no_later_value() -> None:
    with pytest.raises(ValueError, match="can only read earlier ones"):
        FloatFunction(inputs=1, constants=(), steps=(Step(op="add", operands=(0, 1)),))
    with pytest.raises(ValueError, match="add takes 2 operands, got 1"):
        Step(op="add", operands=(0,))
