"""The rounding that a quantize says: composites say it, kernels follow it, and a plain one rounds half to even."""

import numpy as np
import pytest
from tvm import relax

from octavo.compiler.partition.pipeline import integer_regions
from octavo.numerics import FloatMeanParameters, QuantParams, Window, avg_pool2d, float_avg_pool2d, softmax
from octavo.numerics.quantized.rescale import rescale_table
from octavo.target import CPU
from qdq_graph import Qdq, graph, round_as, run_lowered

X = (0.05, 3)
EVERY = np.arange(-128, 128).astype(np.int8).reshape(1, 256)


def pooled(out=X, window=None, rounding="half_even"):
    def body(writer, params):
        q = Qdq(writer, "int8")
        window_ = window or {"pool_size": (2, 2), "strides": (2, 2)}
        pool = writer.emit("pool", relax.op.nn.avg_pool2d(q.dequantize("x", params["x"], X), layout="NHWC", **window_))
        return q.quantize("y", pool, out, is_output=True)

    return round_as(graph({"x": ((1, 4, 4, 32), "int8")}, body), rounding)


def mapped(function, out, rounding="half_even"):
    def body(writer, params):
        q = Qdq(writer, "int8")
        x = q.dequantize("x", params["x"], X)
        return q.quantize("y", x if function is None else writer.emit("f", function(x)), out, is_output=True)

    return round_as(graph({"x": ((1, 256), "int8")}, body), rounding)


def info(module):
    (composite,) = [f for _, f in integer_regions(module, CPU).module.functions_items() if "quantize_info" in f.attrs]
    return composite.attrs["quantize_info"]


def test_averages_round_as_their_quantize_says():
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 4, 32)).astype(np.int8)
    plain, away = pooled(), pooled(rounding="half_away")
    assert info(plain)["rounding"] == "half_even"
    assert info(away)["rounding"] == "half_away"
    fields = {"kernel": (2, 2), "window": Window(strides=(2, 2)), "out_shape": (2, 2), "multiplier": 1.0}
    expected = avg_pool2d(x, input_zero_point=0, zero_point=0, dtype="int8", rounding="half_away", **fields)
    np.testing.assert_array_equal(run_lowered(away, x), expected)
    half_even = avg_pool2d(x, input_zero_point=3, zero_point=3, dtype="int8", **fields)
    np.testing.assert_array_equal(run_lowered(plain, x), half_even)
    assert (expected != half_even).any(), "the values hold no tie"


@pytest.mark.parametrize("out", [X, (0.021, -7)])
def test_averages_in_float32(out):
    """Every tap counts, those beyond the padding too, which other roundings leave to float."""
    x = np.random.default_rng(0).integers(-128, 128, (1, 4, 4, 32)).astype(np.int8)
    window = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "ceil_mode": True, "count_include_pad": True}
    module = pooled(out, window, rounding="float32")
    assert info(module)["rounding"] == "float32"
    parameters = FloatMeanParameters(in_scale=X[0], input_zero_point=X[1], out_scale=out[0], zero_point=out[1])
    fields = {"kernel": (3, 3), "window": Window(strides=(2, 2), padding=(1, 1, 1, 1)), "out_shape": (3, 3)}
    expected = float_avg_pool2d(x, parameters, count_include_pad=True, dtype="int8", **fields)
    np.testing.assert_array_equal(run_lowered(module, x), expected)
    names = [var.name_hint for var in integer_regions(pooled(out, window), CPU).module.get_global_vars()]
    assert not any(name.startswith("octavo_pool2d") for name in names)


def test_softmax_of_an_integer_inverse_scale():
    """1 / 0.0045 is 222.2: counted as 222 steps."""
    module = mapped(relax.op.nn.softmax, (0.0045, -100), rounding="integer_inverse_scale")
    assert info(module)["rounding"] == "integer_inverse_scale"
    x = np.sort(np.random.default_rng(0).integers(-128, 0, (1, 256))).astype(np.int8)
    x[0, -1] = 127
    common = {"scale": np.float32(X[0]), "zero_point": -100, "qmin": -128, "qmax": 127, "dtype": "int8"}
    expected = softmax(x, out_scale=1 / 222, **common)
    np.testing.assert_array_equal(run_lowered(module, x), expected)
    assert (expected != softmax(x, out_scale=0.0045, **common)).any()


def test_averages_that_change_parameters_round_half_to_even():
    assert info(pooled((0.06, 3), rounding="half_away"))["rounding"] == "half_even"


@pytest.mark.parametrize(
    ("function", "slope"),
    [(None, 1.0), (lambda x: relax.op.nn.leakyrelu(x, 0.3), 0.3)],
)
def test_fixed_point_tables(function, slope):
    out = (0.0672, -20)
    plain, fixed = mapped(function, out), mapped(function, out, rounding="half_up")
    table = rescale_table(QuantParams.per_tensor("int8", *X), QuantParams.per_tensor("int8", *out), slope=slope)
    np.testing.assert_array_equal(run_lowered(fixed, EVERY).ravel(), table)
    difference = np.abs(table.astype(int) - run_lowered(plain, EVERY).ravel())
    assert difference.max() == 1, "both roundings agree on every value"
