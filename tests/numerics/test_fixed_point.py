"""Fixed-point changes of parameters and pooling's roundings equal LiteRT's bit for bit, tie by tie."""

import math
from fractions import Fraction

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import QuantParams, avg_pool2d
from octavo.numerics.quantized.rescale import has_coarse_multiplier, rescale_table
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier, is_power_of_two

RATIOS = (0.3, 0.4, 0.45, 0.5, 0.744, 0.9999, 1.0, 1.239, 2.458, 7.3, 60.0)


def every(dtype):
    low = -128 if dtype == "int8" else 0
    return np.arange(low, low + 256).astype(dtype).reshape(1, 256)


def run(operator, options, x, y, values):
    given = litert_op.Quantized(
        shape=values.shape, dtype=x.dtype, scale=float(x.scale), zero_point=int(x.zero_point), values=values
    )
    wanted = litert_op.Quantized(shape=values.shape, dtype=y.dtype, scale=float(y.scale), zero_point=int(y.zero_point))
    return litert_op.run(operator, options, [given], wanted)


@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("y_dtype", ["int8", "uint8"])
def test_requantize_is_that_of_litert(x_dtype, y_dtype):
    rng = np.random.default_rng(3)
    for ratio in RATIOS:
        x, y = (
            QuantParams.per_tensor(dtype, scale, int(rng.integers(0, 100)))
            for dtype, scale in ((x_dtype, 0.05), (y_dtype, 0.05 / ratio))
        )
        expected = run("QUANTIZE", schema.QuantizeOptionsT(), x, y, every(x_dtype))
        np.testing.assert_array_equal(rescale_table(x, y), expected.ravel(), err_msg=f"{x_dtype} {y_dtype} {ratio}")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("slope", [0.02, 0.1, 0.3, 1.5, -0.2])
def test_leaky_relu_is_that_of_litert(dtype, slope):
    x, y = QuantParams.per_tensor(dtype, 0.05, 40), QuantParams.per_tensor(dtype, 0.037, 30)
    assert has_coarse_multiplier(x, y, slope)
    options = schema.LeakyReluOptionsT()
    options.alpha = slope
    np.testing.assert_array_equal(rescale_table(x, y, slope=slope), run("LEAKY_RELU", options, x, y, every(dtype)).ravel())


def test_a_slope_without_a_factor_is_refused():
    x = QuantParams.per_tensor("int8", 0.05, 0)
    with pytest.raises(ValueError, match="slope"):
        rescale_table(x, x, slope=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("size", [(2, 2), (2, 3), (4, 4), (8, 8)])
def test_average_pool_is_that_of_litert(dtype, size):
    options = schema.Pool2DOptionsT()
    options.padding, (options.filterHeight, options.filterWidth) = schema.Padding.VALID, size
    options.strideH, options.strideW = 1, 1
    low = -128 if dtype == "int8" else 0
    # A few steps around each value: every other mean is a tie.
    base = np.random.default_rng(1).integers(low + 2, low + 253, (1, 1, 1, 2000))
    values = (base + np.random.default_rng(2).integers(-2, 3, (1, *size, 2000))).astype(dtype)
    common = {"dtype": dtype, "scale": 0.05, "zero_point": 5}
    given = litert_op.Quantized(shape=values.shape, values=values, **common)
    expected = litert_op.run("AVERAGE_POOL_2D", options, [given], litert_op.Quantized(shape=(1, 1, 1, 2000), **common))
    fields = {"kernel": size, "out_shape": (1, 1), "multiplier": 1.0, "input_zero_point": 0, "zero_point": 0, "dtype": dtype}
    actual = avg_pool2d(values, rounding="half_away", **fields)
    np.testing.assert_array_equal(actual, expected)
    assert (actual != avg_pool2d(values, **fields)).any(), "the values hold no tie"


@pytest.mark.parametrize(("dtype", "points"), [("int8", (3, 3)), ("int8", (-100, 3)), ("int8", (4, 6)), ("uint8", (130, 5))])
def test_mean_is_that_of_litert(dtype, points):
    options = schema.ReducerOptionsT()
    options.keepDims = True
    low = -128 if dtype == "int8" else 0
    values = np.random.default_rng(1).integers(low, low + 256, (1, 2, 2, 2000)).astype(dtype)
    axes = litert_op.Quantized(shape=(2,), dtype="int32", values=np.int32([1, 2]), constant=True)
    given = litert_op.Quantized(shape=values.shape, dtype=dtype, scale=0.05, zero_point=points[0], values=values)
    wanted = litert_op.Quantized(shape=(1, 1, 1, 2000), dtype=dtype, scale=0.05, zero_point=points[1])
    actual = avg_pool2d(
        values,
        kernel=(2, 2),
        out_shape=(1, 1),
        multiplier=1.0,
        input_zero_point=points[0],
        zero_point=points[1],
        dtype=dtype,
        rounding="half_even_stored",
    )
    np.testing.assert_array_equal(actual, litert_op.run("MEAN", options, [given, axes], wanted))


SHIFTED = {
    "shift_half_up": lambda q: math.floor(q + Fraction(1, 2)),
    "shift_half_away": lambda q: math.copysign(math.floor(abs(q) + Fraction(1, 2)), q),
    "shift_half_even": round,
}


@pytest.mark.parametrize("rounding", SHIFTED)
def test_a_shift_rounds_the_exact_number(rounding):
    """Every tie of the smaller shifts, a shift for each channel, and some so long that nothing is left."""
    values = np.concatenate([np.arange(-40, 41), [-(2**31), -(2**31) + 1, 2**31 - 1]])
    powers = np.array([-80, -62, -33, -32, -4, -3, -2, -1, 0, 1, 5, 20])
    factor = fixed_point_multiplier(np.ldexp(1.0, powers), rounding)
    found = factor.apply(np.repeat(values[:, None], powers.size, axis=1))
    exact = [[int(SHIFTED[rounding](int(value) * Fraction(2) ** int(power))) for power in powers] for value in values]
    np.testing.assert_array_equal(found, exact)


def test_only_powers_of_two_shift():
    assert is_power_of_two([0.25, 1.0, 2.0**-60, 8.0])
    assert not is_power_of_two([0.25, 0.3])
