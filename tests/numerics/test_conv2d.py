"""The convolution and matmul oracles against plain loops of Python integers, and against ONNX Runtime."""

import itertools

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from octavo.numerics import (
    Window,
    conv2d,
    conv2d_accumulate,
    conv2d_transpose_accumulate,
    matmul,
    matmul_accumulate,
    requantize,
    requantize_multiplier,
)
from reference_sessions import reference_session


def integers(rng: np.random.Generator, low: int, high: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(low, high, shape).astype(dtype)


def loops(x, w, x_zero_point, w_zero_point, bias, strides, padding, dilation, groups) -> np.ndarray:
    """A convolution as its definition reads, in Python integers."""
    kernel_h, kernel_w, group_in, out_channels = w.shape
    batch, height, width, _ = x.shape
    out_h = (height + padding[0] + padding[2] - dilation[0] * (kernel_h - 1) - 1) // strides[0] + 1
    out_w = (width + padding[1] + padding[3] - dilation[1] * (kernel_w - 1) - 1) // strides[1] + 1
    y = np.zeros((batch, out_h, out_w, out_channels), np.int32)
    for n, oy, ox, oc in np.ndindex(*y.shape):
        group = oc // (out_channels // groups)
        total = int(bias[oc])
        for ky, kx, ic in itertools.product(range(kernel_h), range(kernel_w), range(group_in)):
            iy = oy * strides[0] - padding[0] + ky * dilation[0]
            ix = ox * strides[1] - padding[1] + kx * dilation[1]
            if 0 <= iy < height and 0 <= ix < width:
                value = int(x[n, iy, ix, group * group_in + ic]) - x_zero_point
                total += value * (int(w[ky, kx, ic, oc]) - int(w_zero_point[oc]))
        y[n, oy, ox, oc] = total
    return y


CASES = [
    {"size": (4, 5), "kernel": (3, 3), "channels": (2, 3)},
    {"size": (5, 4), "kernel": (3, 2), "channels": (3, 4), "padding": (1, 0, 2, 1), "strides": (2, 1)},
    {"size": (6, 7), "kernel": (2, 3), "channels": (4, 6), "groups": 2, "dilation": (2, 3), "padding": (0, 2, 1, 3)},
    {"size": (5, 5), "kernel": (3, 3), "channels": (3, 6), "groups": 3, "strides": (1, 2), "padding": (1, 1, 1, 1)},
    {"size": (2, 1), "kernel": (1, 1), "channels": (5, 2)},
    {"size": (1, 1), "kernel": (3, 3), "channels": (1, 1), "padding": (1, 1, 1, 1)},
]


@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_accumulators_equal_plain_loops(rng: np.random.Generator, case: dict, x_dtype: str) -> None:
    (in_channels, out_channels), groups = case["channels"], case.get("groups", 1)
    window = {name: case.get(name, (1, 1)) for name in ("strides", "dilation")} | {"padding": case.get("padding", (0, 0, 0, 0))}
    low = 0 if x_dtype == "uint8" else -128
    x = integers(rng, low, low + 256, (2, *case["size"], in_channels), x_dtype)
    w = integers(rng, -128, 128, (*case["kernel"], in_channels // groups, out_channels), "int8")
    bias, w_zero_point = integers(rng, -9999, 9999, (out_channels,), "int32"), integers(rng, -128, 128, (out_channels,), "int32")
    got = conv2d_accumulate(
        x, w, x_zero_point=low + 7, w_zero_point=w_zero_point, bias=bias, groups=groups, window=Window(**window)
    )
    assert np.array_equal(got, loops(x, w, low + 7, w_zero_point, bias, groups=groups, **window))
    assert got.dtype == np.int32


def test_sums_beyond_int32_wrap() -> None:
    w = np.ones((1, 1, 1, 1), np.int8)
    got = conv2d_accumulate(np.full((1, 1, 1, 1), 9, np.uint8), w, x_zero_point=0, bias=np.array([2**31 - 1], np.int32))
    assert got.item() == -(2**31) + 8


def test_groups_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"2 groups of 2 inputs do not fit x \(1, 1, 1, 3\) and w \(1, 1, 2, 4\)"):
        conv2d_accumulate(np.zeros((1, 1, 1, 3), np.uint8), np.zeros((1, 1, 2, 4), np.int8), x_zero_point=0, groups=2)


def test_conv2d_requantizes_the_accumulators(rng: np.random.Generator) -> None:
    x, w = integers(rng, 0, 256, (1, 5, 5, 4), "uint8"), integers(rng, -128, 128, (3, 3, 4, 6), "int8")
    multiplier = rng.uniform(0.0005, 0.002, 6).astype(np.float32)
    acc = conv2d_accumulate(x, w, x_zero_point=9)
    got = conv2d(x, w, x_zero_point=9, multiplier=multiplier, zero_point=120, qmin=10, qmax=240)
    assert np.array_equal(got, requantize(acc, multiplier, 120, 10, 240))
    signed = conv2d(x, w, x_zero_point=9, multiplier=multiplier, zero_point=-8, qmin=-128, qmax=127, out_dtype="int8")
    assert np.array_equal(signed, requantize(acc, multiplier, -8, -128, 127, "int8"))


@pytest.mark.parametrize("shape", [(5,), (2, 5), (3, 2, 5)])
def test_matmul_is_a_pointwise_convolution(rng: np.random.Generator, shape: tuple[int, ...]) -> None:
    x, w = integers(rng, 0, 256, shape, "uint8"), integers(rng, -128, 128, (5, 7), "int8")
    bias, w_zero_point = integers(rng, -999, 999, (7,), "int32"), integers(rng, -128, 128, (7,), "int32")
    operands = {"x_zero_point": 77, "w_zero_point": w_zero_point, "bias": bias}
    pixels, kernel = x.reshape(1, 1, -1, 5), w.reshape(1, 1, 5, 7)
    assert np.array_equal(
        matmul_accumulate(x, w, **operands), conv2d_accumulate(pixels, kernel, **operands).reshape(*shape[:-1], 7)
    )
    scaling = {"multiplier": np.float32(0.003), "zero_point": 31}
    assert np.array_equal(
        matmul(x, w, **operands, **scaling), conv2d(pixels, kernel, **operands, **scaling).reshape(*shape[:-1], 7)
    )


def qlinear_conv(x, w, scales, zero_points, bias, strides, padding, groups) -> np.ndarray:
    """What ONNX Runtime's QLinearConv gives for NHWC x and HWIO w."""
    names = ["x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "bias"]
    values = [scales[0], zero_points[0], w.transpose(3, 2, 0, 1), scales[1], zero_points[1], scales[2], zero_points[2], bias]
    constants = [onnx.numpy_helper.from_array(np.ascontiguousarray(v), n) for v, n in zip(values, names[1:], strict=True)]
    node = helper.make_node("QLinearConv", names, ["y"], strides=strides, pads=padding, group=groups)
    typed = [
        helper.make_tensor_value_info(n, TensorProto.UINT8, None if n == "y" else x.transpose(0, 3, 1, 2).shape) for n in "xy"
    ]
    graph = helper.make_graph([node], "conv", typed[:1], typed[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = reference_session(model)
    (y,) = session.run(None, {"x": np.ascontiguousarray(x.transpose(0, 3, 1, 2))})
    return y.transpose(0, 2, 3, 1)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("per_axis", [False, True])
def test_equals_onnx_runtime_bit_for_bit(rng: np.random.Generator, groups: int, per_axis: bool) -> None:
    x, w = integers(rng, 0, 256, (1, 9, 8, 8), "uint8"), integers(rng, -127, 128, (3, 3, 8 // groups, 16), "int8")
    bias = integers(rng, -20_000, 20_000, (16,), "int32")
    w_scale = rng.uniform(0.01, 0.02, 16 if per_axis else ()).astype(np.float32)
    x_scale, y_scale = np.float32(0.0173), np.float32(0.31 / groups**0.5)
    w_zero_point = np.zeros(w_scale.shape, np.int8)
    got = conv2d(
        x,
        w,
        x_zero_point=121,
        bias=bias,
        multiplier=requantize_multiplier(x_scale, w_scale, y_scale),
        zero_point=133,
        window=Window(strides=(2, 1), padding=(1, 0, 1, 2)),
        groups=groups,
    )
    zero_points = (np.uint8(121), w_zero_point, np.uint8(133))
    want = qlinear_conv(x, w, (x_scale, w_scale, y_scale), zero_points, bias, [2, 1], [1, 0, 1, 2], groups)
    assert np.array_equal(got, want)
    assert np.ptp(got.astype(int)) > 100


def test_a_transposed_convolution_adds_each_pixel_times_the_kernel(rng: np.random.Generator):
    x, w = integers(rng, 0, 256, (2, 3, 4, 4), "uint8"), integers(rng, -128, 128, (3, 2, 2, 6), "int8")
    bias = integers(rng, -99, 99, (6,), "int32")
    window = Window(strides=(2, 3), padding=(1, 0, 2, 1), dilation=(1, 2))
    given = {"x_zero_point": 9, "w_zero_point": -5, "bias": bias, "window": window, "output_padding": (1, 2), "groups": 2}
    y = conv2d_transpose_accumulate(x, w, **given)
    want = np.zeros((2, 5, 13, 6), np.int32) + bias
    for n, iy, ix, ic, ky, kx in np.ndindex(*x.shape, 3, 2):
        oy, ox, group = iy * 2 + ky - 1, ix * 3 + kx * 2, ic // 2
        if 0 <= oy < 5 and ox < 13:
            for oc in range(group * 3, group * 3 + 3):
                want[n, oy, ox, oc] += (int(x[n, iy, ix, ic]) - 9) * (int(w[ky, kx, ic % 2, oc]) + 5)
    np.testing.assert_array_equal(y, want)
