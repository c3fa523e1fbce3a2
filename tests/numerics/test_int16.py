"""The oracles of 16-bit ops equal LiteRT's reference kernels bit for bit, over every integer or thousands of sums."""

import litert_op
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from octavo.numerics import QuantParams, Window, avg_pool2d, conv2d, matmul, mul, reduce_sum
from octavo.numerics.quantized.binary import add_int16, product_multiplier
from octavo.numerics.quantized.int16_functions import logistic_table, tanh_table
from octavo.numerics.quantized.rescale import int16_rescale_table
from octavo.numerics.quantized.softmax import softmax_int16
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier, mean_multiplier

EVERY = np.arange(-32768, 32768).astype(np.int16).reshape(1, -1)
X_SCALE = 0.001


def tensor(values, scale, **fields):
    return litert_op.Quantized(shape=values.shape, dtype=str(values.dtype), scale=scale, values=values, **fields)


def result(shape, scale=1 / 32768):
    return litert_op.Quantized(shape=shape, dtype="int16", scale=scale)


def options(name, **fields):
    table = getattr(schema, f"{name}T")()
    for key, value in fields.items():
        setattr(table, key, value)
    return table


def draw(rng, shape):
    return rng.integers(-32768, 32768, shape).astype(np.int16)


def unary(operator, table, scale, out_scale):
    return litert_op.run(operator, table, [tensor(EVERY, scale)], result(EVERY.shape, out_scale)).ravel()


def layer(rng, inputs, channels, bias_dtype):
    """Return weights [inputs, channels], their scales, a bias, an output scale that the sums fill, and real multipliers."""
    scales = rng.uniform(0.001, 0.02, channels).astype(np.float32)
    weights = rng.integers(-127, 128, (inputs, channels)).astype(np.int8)
    bias = np.zeros(channels, np.int64) if bias_dtype is None else rng.integers(-90_000, 90_000, channels).astype(bias_dtype)
    out_scale = float(np.float32(X_SCALE * 1.2 * np.sqrt(inputs)))
    real = float(np.float32(X_SCALE)) * scales.astype(np.float64) / out_scale
    return weights, scales, bias, out_scale, real


def constant(values, scales, axis=0):
    return tensor(values, tuple(float(scale) for scale in scales), constant=True, axis=axis)


BIAS_TYPE = {"int32": schema.TensorType.INT32, "int64": schema.TensorType.INT64}


@pytest.mark.parametrize(("bias_dtype", "rounding"), [("int64", "reduced"), ("int32", "twice")])
@pytest.mark.parametrize("dilation", [1, 2])
def test_convolution(bias_dtype, rounding, dilation):
    rng = np.random.default_rng(dilation)
    weights, scales, bias, out_scale, real = layer(rng, 9 * 24, 32, bias_dtype)
    x = draw(rng, (1, 20, 21, 24))
    fields = {"strideH": 1, "strideW": 2, "dilationHFactor": 1, "dilationWFactor": 1}
    strides = (1, 2)
    if dilation == 2:
        fields, strides = {"strideH": 1, "strideW": 1, "dilationHFactor": 2, "dilationWFactor": 2}, (1, 1)
    kernel = weights.reshape(3, 3, 24, 32)
    given = {"bias": bias, "window": Window(strides=strides, dilation=(dilation, dilation)), "out_dtype": "int16"}
    actual = conv2d(x, kernel, multiplier=fixed_point_multiplier(real, rounding), **given)
    table = options("Conv2DOptions", padding=schema.Padding.VALID, quantizedBiasType=BIAS_TYPE[bias_dtype], **fields)
    operands = [tensor(x, X_SCALE), constant(kernel.transpose(3, 0, 1, 2).copy(), scales), constant(bias, scales * X_SCALE)]
    np.testing.assert_array_equal(actual, litert_op.run("CONV_2D", table, operands, result(actual.shape, out_scale)))
    other = "twice" if rounding == "reduced" else "reduced"
    changed = conv2d(x, kernel, multiplier=fixed_point_multiplier(real, other), **given)
    assert (changed != actual).any(), "the values do not tell the roundings apart"


def test_depthwise_convolution_with_padding():
    rng = np.random.default_rng(1)
    weights, scales, bias, out_scale, real = layer(rng, 9, 40, "int64")
    x = draw(rng, (1, 9, 10, 20))
    kernel = weights.reshape(3, 3, 1, 40)
    given = {"bias": bias, "window": Window(padding=(1, 1, 1, 1)), "groups": 20, "out_dtype": "int16"}
    actual = conv2d(x, kernel, multiplier=fixed_point_multiplier(real, "reduced"), **given)
    fields = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "depthMultiplier": 2}
    table = options("DepthwiseConv2DOptions", padding=schema.Padding.SAME, **fields)
    operands = [tensor(x, X_SCALE), constant(kernel.reshape(1, 3, 3, 40), scales, 3), constant(bias, scales * X_SCALE)]
    np.testing.assert_array_equal(actual, litert_op.run("DEPTHWISE_CONV_2D", table, operands, result(actual.shape, out_scale)))


@pytest.mark.parametrize(("bias_dtype", "rounding"), [(None, "twice"), ("int32", "twice"), ("int64", "once")])
def test_fully_connected(bias_dtype, rounding):
    rng = np.random.default_rng(2)
    weights, scales, bias, out_scale, real = layer(rng, 40, 128, bias_dtype)
    x = draw(rng, (100, 40))
    actual = matmul(x, weights, bias=bias, multiplier=fixed_point_multiplier(real, rounding), out_dtype="int16")
    operands = [tensor(x, X_SCALE), constant(weights.T.copy(), scales)]
    operands += [] if bias_dtype is None else [constant(bias, scales * X_SCALE)]
    table = options("FullyConnectedOptions", quantizedBiasType=BIAS_TYPE.get(bias_dtype, 0))
    np.testing.assert_array_equal(actual, litert_op.run("FULLY_CONNECTED", table, operands, result(actual.shape, out_scale)))


@pytest.mark.parametrize("ratio", [0.003, 0.3, 0.5, 0.9, 1.0, 1.7, 3.1, 60.0])
def test_change_of_parameters(ratio):
    x, y = QuantParams.per_tensor("int16", 0.0007, 0), QuantParams.per_tensor("int16", 0.0007 / ratio, 0)
    scales = float(x.scale), float(y.scale)
    np.testing.assert_array_equal(int16_rescale_table(x, y), unary("QUANTIZE", schema.QuantizeOptionsT(), *scales))
    np.testing.assert_array_equal(int16_rescale_table(x, y, qmin=0), unary("RELU", None, *scales))
    for slope in (0.1, 0.3, -0.2, 1.5):
        expected = unary("LEAKY_RELU", options("LeakyReluOptions", alpha=slope), *scales)
        np.testing.assert_array_equal(int16_rescale_table(x, y, slope=slope), expected, err_msg=f"slope {slope}")


@pytest.mark.parametrize("scale", [1e-5, 0.0001, 0.0003, 2.0**-13, 2.0**-12, 2.0**-11, 2.0**-10, 0.001, 0.02])
def test_logistic_and_tanh(scale):
    np.testing.assert_array_equal(logistic_table(scale), unary("LOGISTIC", None, scale, 1 / 32768))
    np.testing.assert_array_equal(tanh_table(scale), unary("TANH", None, scale, 1 / 32768))


@pytest.mark.parametrize("columns", [1, 2, 10, 129, 1001])
@pytest.mark.parametrize("scale", [0.0001, 0.0005, 0.003])
def test_softmax(columns, scale):
    rng = np.random.default_rng(columns)
    for beta in (1.0, 0.3):
        x = draw(rng, (60, columns)) >> np.int16(rng.integers(0, 6))
        expected = litert_op.run("SOFTMAX", options("SoftmaxOptions", beta=beta), [tensor(x, scale)], result(x.shape))
        np.testing.assert_array_equal(softmax_int16(x, scale=scale, beta=beta), expected)


@pytest.mark.parametrize(
    "scales", [(0.001, 0.001, 0.001), (0.0003, 0.01, 0.008), (2.0**-10, 2.0**-11, 2.0**-9), (0.002, 0.0017, 0.0023)]
)
def test_sum_and_difference(scales):
    rng = np.random.default_rng(3)
    a, b = draw(rng, (1, 20_000)), draw(rng, (1, 20_000))
    given = dict(zip(("a_scale", "b_scale", "out_scale"), scales, strict=True))
    for operator, name, subtract in (("ADD", "AddOptions", False), ("SUB", "SubOptions", True)):
        table = options(name, potScaleInt16=False)
        expected = litert_op.run(operator, table, [tensor(a, scales[0]), tensor(b, scales[1])], result(a.shape, scales[2]))
        np.testing.assert_array_equal(add_int16(a, b, subtract=subtract, **given), expected, err_msg=operator)


@pytest.mark.parametrize("scales", [(0.001, 0.0013, 0.02), (0.001, 0.001, 0.02), (2.0**-10, 2.0**-10, 2.0**-6)])
def test_product(scales):
    rng = np.random.default_rng(4)
    a, b = draw(rng, (1, 20_000)), draw(rng, (1, 20_000))
    expected = litert_op.run(
        "MUL", schema.MulOptionsT(), [tensor(a, scales[0]), tensor(b, scales[1])], result(a.shape, scales[2])
    )
    np.testing.assert_array_equal(mul(a, b, multiplier=product_multiplier(*scales, "twice_away"), dtype="int16"), expected)


@pytest.mark.parametrize("ratio", [1.0, 1.4, 0.5, 0.03])
@pytest.mark.parametrize("axes", [(1, 2), (1,), (3,)])
def test_mean(ratio, axes):
    x = draw(np.random.default_rng(5), (1, 6, 7, 500))
    out_scale = X_SCALE / ratio
    multiplier = mean_multiplier(
        float(np.float32(X_SCALE)) / float(np.float32(out_scale)), int(np.prod([x.shape[axis] for axis in axes]))
    )
    actual = reduce_sum(x, axes, multiplier=multiplier, dtype="int16")
    operands = [tensor(x, X_SCALE), litert_op.Quantized(shape=(len(axes),), dtype="int32", values=np.int32(axes), constant=True)]
    table = options("ReducerOptions", keepDims=False)
    np.testing.assert_array_equal(actual, litert_op.run("MEAN", table, operands, result(actual.shape, out_scale)))


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (6, 7)])
def test_average_pool(kernel):
    x = draw(np.random.default_rng(6), (1, 6, 7, 500))
    table = options("Pool2DOptions", padding=schema.Padding.VALID, strideH=1, strideW=1)
    table.filterHeight, table.filterWidth = kernel
    out = (7 - kernel[0], 8 - kernel[1])
    fields = {"kernel": kernel, "out_shape": out, "multiplier": 1.0, "input_zero_point": 0, "zero_point": 0}
    actual = avg_pool2d(x, dtype="int16", rounding="half_away", **fields)
    expected = litert_op.run("AVERAGE_POOL_2D", table, [tensor(x, X_SCALE)], result((1, *out, 500), X_SCALE))
    np.testing.assert_array_equal(actual, expected)


def test_a_product_stays_within_64_bits():
    factor = fixed_point_multiplier([0.001, 0.5, 3.0], "twice_away")
    most = np.full(3, factor.max_value)
    for value in (most, -most):
        exact = [(int(v) * int(f) + (1 << 30)) >> 31 for v, f in zip(value, factor.factor, strict=True)]
        assert all(-(2**63) <= int(v) * int(f) < 2**63 for v, f in zip(value, factor.factor, strict=True))
        np.testing.assert_array_equal((value * factor.factor + (1 << 30)) >> 31, exact)
