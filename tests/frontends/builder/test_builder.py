"""ModelBuilder: what it builds equals the oracles bit for bit and keeps the user's names; a wrong argument is named."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import octavo
from octavo import numerics
from octavo.errors import ModelError

ROOT = Path(__file__).resolve().parents[3]
RANGES = {"int8": (-128, 127), "uint8": (0, 255)}


def integers(rng, shape, dtype):
    low, high = RANGES[dtype]
    return rng.integers(low, high + 1, shape, dtype)


def run(builder, output, x):
    model = builder.build(output)
    explanation = octavo.explain(model)
    assert [op for op in explanation.ops if not op.integer] == []
    [result] = octavo.compile(model)(x).values()
    return result


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "weight_shape", "options", "padding"),
    [
        ((1, 9, 8, 3), (3, 3, 3, 5), {"padding": "VALID"}, (0, 0, 0, 0)),
        ((1, 9, 8, 3), (3, 3, 3, 5), {"padding": "SAME", "strides": (2, 2)}, (1, 0, 1, 1)),
        ((2, 7, 7, 4), (3, 2, 2, 6), {"padding": (0, 1, 2, 3), "groups": 2, "dilation": (2, 1)}, (0, 1, 2, 3)),
        ((1, 6, 6, 17), (3, 3, 1, 17), {"padding": "SAME", "groups": 17}, (1, 1, 1, 1)),
    ],
)
def test_conv2d_equals_the_oracle(dtype, weight_dtype, shape, weight_shape, options, padding):
    rng = np.random.default_rng(sum(weight_shape))
    x, weight = integers(rng, shape, dtype), integers(rng, weight_shape, weight_dtype)
    channels = weight_shape[-1]
    per_axis = weight_dtype == "int8"
    weight_scale = rng.uniform(0.01, 0.02, channels).astype(np.float32) if per_axis else np.float32(0.015)
    weight_zero_point = 0 if per_axis else 121
    bias = rng.integers(-2000, 2000, channels, np.int32)
    in_zero, out_zero, out_scale = (3, -7, 0.09) if dtype == "int8" else (131, 120, 0.09)

    b = octavo.ModelBuilder()
    given = b.input("x", shape, dtype=dtype, scale=0.02, zero_point=in_zero)
    y = b.conv2d(
        "y",
        given,
        weight,
        weight_scale,
        bias,
        weight_zero_point=weight_zero_point,
        out_scale=out_scale,
        out_zero_point=out_zero,
        activation="relu",
        **options,
    )
    expected = numerics.conv2d(
        x,
        weight,
        x_zero_point=in_zero,
        w_zero_point=weight_zero_point,
        bias=bias,
        multiplier=numerics.requantize_multiplier(0.02, weight_scale, out_scale),
        zero_point=out_zero,
        qmin=out_zero,
        qmax=RANGES[dtype][1],
        out_dtype=dtype,
        window=numerics.Window(
            **{name: value for name, value in options.items() if name in ("strides", "dilation")}, padding=padding
        ),
        groups=options.get("groups", 1),
    )
    assert y.shape == expected.shape
    actual = run(b, y, x)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)
    assert np.unique(actual).size > 20, "a saturated result shows nothing"


def test_dense_with_a_float_bias_and_relu6():
    rng = np.random.default_rng(1)
    x, weight = integers(rng, (3, 40), "uint8"), integers(rng, (40, 11), "int8")
    real_bias = rng.normal(0, 3, 11).astype(np.float32)
    b = octavo.ModelBuilder()
    y = b.dense(
        "y",
        b.input("x", (3, 40), dtype="uint8", scale=0.01, zero_point=100),
        weight,
        0.01,
        real_bias,
        out_scale=6 / 255,
        out_zero_point=-128,
        out_dtype="int8",
        activation="relu6",
    )
    expected = numerics.matmul(
        x,
        weight,
        x_zero_point=100,
        bias=np.rint(real_bias.astype(np.float64) / np.float32(np.float32(0.01) * np.float32(0.01))).astype(np.int32),
        multiplier=numerics.requantize_multiplier(0.01, 0.01, 6 / 255),
        zero_point=-128,
        qmin=-128,
        qmax=127,
        out_dtype="int8",
    )
    np.testing.assert_array_equal(run(b, y, x), expected)


def test_ops_without_weights_equal_the_oracles():
    rng = np.random.default_rng(2)
    x = integers(rng, (1, 6, 8, 5), "int8")
    b = octavo.ModelBuilder()
    given = b.input("x", x.shape, dtype="int8", scale=0.05, zero_point=-4)
    largest = b.max_pool2d("largest", given, (3, 2), strides=(1, 2), padding="SAME")
    average = b.avg_pool2d("average", given, (3, 2), strides=(1, 2), padding="SAME", out_scale=0.04, out_zero_point=2)
    total = b.add("total", largest, average, out_scale=0.08, out_zero_point=-9)
    joined = b.concat("joined", [total, average], out_scale=0.07, out_zero_point=1)
    mean = b.mean("mean", joined)
    flat = b.reshape("flat", joined, (1, -1))
    model = b.build([largest, average, total, joined, mean, flat, b.quantize("again", flat, out_scale=0.1, out_zero_point=0)])
    actual = octavo.compile(model)(x)
    windows = {"kernel": (3, 2), "window": numerics.Window(strides=(1, 2), padding=(1, 0, 1, 0)), "out_shape": (6, 4)}
    full = {"qmin": -128, "qmax": 127}
    expected = {"largest": numerics.max_pool2d(x, **windows, **full)}
    ratio = np.float32(0.05) / np.float32(0.04)
    expected["average"] = numerics.avg_pool2d(
        x, **windows, multiplier=ratio, input_zero_point=-4, zero_point=2, **full, dtype="int8"
    )
    half_even = numerics.float_sum_parameters(0.05, -4, 0.04, 2, 0.08, -9, stored=False)
    expected["total"] = numerics.float_sum(expected["largest"], expected["average"], half_even, **full, dtype="int8")
    expected["joined"] = numerics.concat(
        [expected["total"], expected["average"]],
        multipliers=[np.float32(scale) / np.float32(0.07) for scale in (0.08, 0.04)],
        input_zero_points=[-9, 2],
        zero_point=1,
        **full,
        dtype="int8",
    )
    same = {"multiplier": 1.0, "input_zero_point": 1, "zero_point": 1}
    expected["mean"] = numerics.global_avg_pool2d(expected["joined"], **same, **full, dtype="int8").reshape(1, -1)
    expected["flat"] = expected["joined"].reshape(1, -1)
    expected["again"] = numerics.requantize_tensor(
        expected["flat"],
        input_zero_point=1,
        multiplier=np.float32(0.07) / np.float32(0.1),
        zero_point=0,
        **full,
        dtype="int8",
    )
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value, err_msg=name)


def test_float_edges():
    x = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 12)
    b = octavo.ModelBuilder()
    q = b.quantize("q", b.input("x", (2, 12)), out_scale=0.02, out_zero_point=10)
    probability = b.softmax("probability", q)
    table = b.softmax("table", q, out_scale=1 / 256, out_zero_point=-128)
    actual = octavo.compile(b.build([b.dequantize("real", q), probability, table]))(x)
    params = numerics.QuantParams.per_tensor("int8", 0.02, 10)
    real = numerics.dequantize(numerics.quantize(x, params), params)
    np.testing.assert_array_equal(actual["real"], real)
    raised = np.exp(real - real.max(axis=-1, keepdims=True))
    expected = raised / raised.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(actual["probability"], expected, rtol=1e-5)
    assert np.abs(actual["table"] - np.rint(expected * 256 - 128)).max() <= 1


def small(*, scale=0.05, weight=1, name="y"):
    b = octavo.ModelBuilder()
    values = np.full((4, 3), weight, np.int8)
    x = b.input("x", (1, 4), dtype="int8", scale=0.1)
    return b.build(b.dense(name, x, values, np.full(3, 0.1), np.ones(3, np.int32), out_scale=scale, out_zero_point=0))


def test_every_tensor_has_the_user_s_name():
    model = small(name="layer/one")
    assert {entry.source_name: entry.kind for entry in model.tensors.values()} == {
        "x": "input",
        "layer/one.weight": "constant",
        "layer/one.bias": "constant",
        "layer/one": "activation",
    }
    assert model.source_format == "builder"
    assert list(octavo.compile(model)(np.ones((1, 4), np.int8))) == ["layer/one"]
    assert [op.source_name for op in octavo.explain(model).ops] == ["layer/one"]


def test_the_fingerprint_is_that_of_the_values():
    first = small().fingerprint
    assert first == small().fingerprint
    others = [small(scale=0.06), small(weight=2), small(name="z")]
    assert len({first, *(model.fingerprint for model in others)}) == 4


W4, W2 = np.ones((3, 3, 2, 4), np.int8), np.ones((2, 4), np.int8)
OUT = {"out_scale": 0.1, "out_zero_point": 0}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda b, x: b.input("x", (1, 2)), "x: there is a tensor of this name already"),
        (lambda b, x: b.input("", (1, 2)), "a name must be a text of at least one character"),
        (lambda b, x: b.input("z", (1, 0)), "z: shape (1, 0) must list whole numbers of at least 1"),
        (lambda b, x: b.input("z", (1, 2), dtype="int8"), "z: an input of dtype 'int8' needs a scale"),
        (lambda b, x: b.input("z", (1, 2), scale=1.0), "z: a float32 input has no scale"),
        (lambda b, x: b.input("z", (1, 2), dtype="int4", scale=1.0), "z: dtype must be the name 'int8' or 'uint8', got 'int4'"),
        (lambda b, x: b.input("z", (1, 2), dtype="uint8", scale=1.0, zero_point=-1), "z: zero points must lie in [0; 255]"),
        (lambda b, x: b.input("z", (1, 2), dtype="uint8", scale=1.0, zero_point=1.5), "z: a zero point must be a whole number"),
        (lambda b, x: b.input("z", (1, 2), dtype="int8", scale=0.0), "z: every scale must be positive and finite"),
        (lambda b, x: b.input("z", (1, 2), dtype="int8", scale=float("nan")), "z: every scale must be positive and finite"),
        (lambda b, x: b.input("z", (1, 2), dtype="int8", scale=1e-60), "in float32, got 0.0"),
        (lambda b, x: b.conv2d("y", x, W4.astype(np.float32), 0.1, **OUT), "y: the weight must be an int8 or uint8 NumPy array"),
        (lambda b, x: b.conv2d("y", x, [[1]], 0.1, **OUT), "NumPy array, got list"),
        (lambda b, x: b.conv2d("y", x, W2, 0.1, **OUT), "y: the weight must have 4 dimensions, HWIO"),
        (lambda b, x: b.conv2d("y", x, W4, [0.1, 0.2], **OUT), "y: weight_scale must be one number or 4"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, weight_zero_point=200, **OUT), "y: zero points must lie in [-128; 127]"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, groups=2, **OUT), "groups=2 does not fit an input of 2 channels"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, np.zeros(3, np.int32), **OUT), "y: the bias must have shape (4,)"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, np.zeros(4), **OUT), "y: the bias must be an int32 or float32 NumPy array"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, padding="same", **OUT), "y: padding must be 'VALID', 'SAME' or"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, padding=(1, 1), **OUT), "y: padding must be 'VALID', 'SAME' or"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, strides=2, **OUT), "y: strides must be a pair"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, dilation=(9, 9), **OUT), "y: a window of 19 x 19 does not fit an image of 5 x 5"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, activation="tanh", **OUT), "y: activation must be None, 'relu' or 'relu6'"),
        (lambda b, x: b.dense("y", x, np.ones((3, 4), np.int8), 0.1, **OUT), "y: weight of shape (3, 4) (in, out) does not fit"),
        (lambda b, x: b.add("y", x, b.input("z", (1, 5), dtype="int8", scale=1.0), **OUT), "must have one shape"),
        (lambda b, x: b.add("y", x, b.input("z", x.shape), **OUT), "y: z is float32; quantize it first"),
        (lambda b, x: b.concat("y", []), "y: give at least one tensor"),
        (lambda b, x: b.concat("y", [x], axis=4), "y: axis 4 does not exist"),
        (lambda b, x: b.reshape("y", x, (1, 7)), "does not have the 50 values of x"),
        (lambda b, x: b.mean("y", b.reshape("r", x, (1, 50))), "y: r has shape (1, 50); an image"),
        (lambda b, x: b.dequantize("y", octavo.ModelBuilder().input("x", (1, 2))), "y: tensor 'x' was not made by this builder"),
        (lambda b, x: b.dequantize("y", 3), "y: a value of type int was not made by this builder"),
        (lambda b, x: b.input("z", 5), "z: shape must be a list or tuple, got 5"),
        (lambda b, x: b.input("z", (1, 2), dtype=np.dtype("int8"), scale=1.0), "z: dtype must be the name 'int8' or 'uint8'"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, padding=1, **OUT), "y: padding must be 'VALID', 'SAME' or"),
        (lambda b, x: b.conv2d("y", x, W4, 0.1, groups="1", **OUT), "y: groups must be a whole number, got '1'"),
        (lambda b, x: b.conv2d("y", x, W4, "0.1", **OUT), "y: a scale must be a number, got '0.1'"),
        (lambda b, x: b.concat("y", [x, x], axis=1.5), "y: axis must be a whole number, got 1.5"),
        (lambda b, x: b.reshape("y", x, "a"), "y: shape must be a list or tuple, got 'a'"),
        (lambda b, x: b.build(None), "build: outputs must be a list or tuple, got None"),
        (lambda b, x: b.build([]), "build: give at least one output"),
        (lambda b, x: b.build(x), "build: output x is an input"),
    ],
)
def test_a_wrong_argument_is_named(make, said):
    b = octavo.ModelBuilder()
    x = b.input("x", (1, 5, 5, 2), dtype="int8", scale=0.1)
    with pytest.raises(ModelError) as caught:
        make(b, x)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_argument_leaves_the_builder_as_it_was():
    b = octavo.ModelBuilder()
    x = b.input("x", (1, 5, 5, 2), dtype="int8", scale=0.1)
    with pytest.raises(ModelError):
        b.conv2d("y", x, W4, 0.1, np.zeros(3, np.int32), **OUT)
    b.build(b.conv2d("y", x, W4, 0.1, **OUT))


def test_the_example_runs(capsys):
    runpy.run_path(str(ROOT / "examples/build_from_numpy.py"), run_name="__main__")
    assert "200 of 200 logits equal NumPy's, bit for bit" in capsys.readouterr().out


def test_the_page_runs(capsys):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/builder.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code, "docs/builder.md", "exec"), {})
    assert "4/4 ops integer, 100.0% of MACs" in capsys.readouterr().out
