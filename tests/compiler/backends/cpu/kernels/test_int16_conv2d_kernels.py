"""16-bit convolutions and matmuls equal their oracle bit for bit, on every ISA of the host, at sizes around the vector width."""

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, check, part

from octavo.compiler.backends.cpu import kernels
from octavo.compiler.backends.cpu.kernels import Conv2dSpec
from octavo.compiler.backends.cpu.kernels.conv.channel_requantize import safe_steps
from octavo.ir.composites.outputs import FloatOutput, Output
from octavo.numerics import Window, conv2d, conv2d_accumulate, dequantize_accumulator
from octavo.numerics.rounding.fixed_point import fixed_point_multiplier

INT16 = Output(zero_point=0, qmin=-32768, qmax=32767)
SIZES = (1, 3, 15, 16, 17, 33, 65)
ROUNDINGS = ("reduced", "once", "twice", "twice_away", "float32")


def draw(rng, shape, dtype="int16"):
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def extremes(rng, shape):
    """Draw mostly the ends of the range, which sums grow the fastest with."""
    return rng.choice(np.array([-32768, 32767, -32768, 5], np.int16), shape)


def multiplier(rng, rounding, terms, channels):
    real = rng.uniform(0.2, 2.0, channels) / (128 * np.sqrt(terms))
    return real.astype(np.float32) if rounding == "float32" else fixed_point_multiplier(real, rounding)


def convolution(isa, rounding, rng, shape, weight_shape, *, x=None, weight=None, zero_point=0, output=INT16, threads=1, **fields):
    x = draw(rng, shape) if x is None else x
    weight = rng.integers(-127, 128, weight_shape).astype(np.int16) if weight is None else weight
    channels, terms = weight_shape[3], int(np.prod(weight_shape[:3]))
    bias = rng.integers(-(2**20), 2**20, channels)
    scale = multiplier(rng, rounding, terms, channels)
    spec = Conv2dSpec(
        batch=shape[0],
        in_height=shape[1],
        in_width=shape[2],
        in_channels=shape[3],
        out_channels=channels,
        kernel=weight_shape[:2],
        input_zero_point=zero_point,
        output=output,
        dtype="int16",
        threads=threads,
        **fields,
    )
    window = Window(**{name: value for name, value in fields.items() if name != "groups"})
    about = (isa, rounding, shape, weight_shape, fields)
    if isinstance(output, FloatOutput):
        real_bias = rng.normal(size=channels).astype(np.float32)
        kernel = kernels.conv2d(spec, weight=weight, weight_zero_point=0, bias=real_bias, multiplier=scale, isa=isa)
        sums = conv2d_accumulate(
            x.astype(np.int64), weight, x_zero_point=zero_point, w_zero_point=0, window=window, groups=fields.get("groups", 1)
        )
        limits = {"low": output.low, "high": output.high, "rounding": output.rounding}
        expected = dequantize_accumulator(sums, scale, real_bias, **limits)
        return Case(kernel=kernel, inputs=(x,), expected=expected, about=about)
    kernel = kernels.conv2d(spec, weight=weight, weight_zero_point=0, bias=bias, multiplier=scale, isa=isa)
    bounds = {"zero_point": output.zero_point, "qmin": output.qmin, "qmax": output.qmax}
    given = {"x_zero_point": zero_point, "bias": bias, "window": window, "groups": fields.get("groups", 1)}
    expected = conv2d(x, weight, multiplier=scale, **given, **bounds, out_dtype="int16")
    return Case(kernel=kernel, inputs=(x,), expected=expected, about=about)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_matmul_sizes(isa):
    rng = np.random.default_rng(0)
    sizes = ((1, 1), (3, 16), (7, 17), (5, 65))
    work = [(i, j) for i in range(len(SIZES)) for j in range(len(sizes)) if (i + j) % 2 == 0]
    check(
        convolution(isa, ROUNDINGS[n % 5], rng, (1, sizes[j][0], 1, SIZES[i]), (1, 1, SIZES[i], sizes[j][1]))
        for n, (i, j) in enumerate(part(work, isa))
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_convolutions(isa):
    rng = np.random.default_rng(1)
    out = Output(zero_point=-300, qmin=-300, qmax=20_000)
    cases = [
        convolution(isa, rounding, rng, (2, 7, 9, channels), (3, 3, channels, 20), **fields)
        for rounding, channels, fields in (
            ("reduced", 1, {"padding": (1, 1, 1, 1)}),
            ("twice", 3, {"strides": (2, 2), "padding": (0, 1, 1, 0)}),
            ("once", 8, {"dilation": (2, 2), "padding": (2, 2, 2, 2)}),
            ("float32", 5, {"zero_point": 1234, "padding": (1, 1, 1, 1), "output": out}),
            ("reduced", 16, {"output": out}),
        )
    ]
    cases += [
        convolution(isa, "reduced", rng, (1, 6, 6, 32), (3, 3, 16, 34), groups=2, padding=(1, 1, 1, 1)),
        convolution(isa, "twice", rng, (1, 6, 6, 6), (3, 3, 2, 9), groups=3),
        convolution(isa, "reduced", rng, (1, 40, 40, 16), (3, 3, 16, 32), padding=(1, 1, 1, 1), threads=2),
    ]
    check(cases)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_results_in_float32(isa):
    rng = np.random.default_rng(9)
    bounds = ({}, {"low": 0.0, "rounding": "stepwise"}, {"low": -1.0, "high": 6.0})
    shapes = [
        ((2, 7, 9, 3), (3, 3, 3, 20), {"padding": (1, 1, 1, 1), "zero_point": 77}),
        ((1, 5, 6, 17), (3, 3, 1, 17), {"padding": (1, 1, 1, 1), "groups": 17}),
        ((1, 6, 6, 32), (3, 3, 16, 34), {"groups": 2, "strides": (2, 2)}),
        ((1, 3, 1, 1301), (1, 1, 1301, 18), {}),
    ]
    work = [(*shape, bounds[(i + j) % 3]) for i, shape in enumerate(shapes) for j in range(2)]
    check(
        convolution(isa, "float32", rng, shape, weight, output=FloatOutput(**each), **fields)
        for shape, weight, fields, each in part(work, isa)
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_depthwise(isa):
    rng = np.random.default_rng(2)
    work = [*((i, size, 1) for i, size in enumerate(SIZES)), *((i, SIZES[i], 2) for i in (1, 3, 4))]
    check(
        convolution(isa, ROUNDINGS[i % 5], rng, (1, 6, 7, size), (3, 3, 1, size * times), groups=size, padding=(1, 1, 1, 1))
        for i, size, times in part(work, isa)
    )


@pytest.mark.parametrize("isa", EACH_ISA)
def test_sums_beyond_32_bits(isa):
    rng = np.random.default_rng(3)
    cases = []
    for inputs, dtype_max in ((700, 127), (1301, 127), (900, 255)):
        weight = np.where(rng.random((1, 1, inputs, 18)) < 0.9, dtype_max, -dtype_max).astype(np.int16)
        assert safe_steps(weight, 2, 32768) is not None, "the sums fit int32"
        x = np.full((1, 3, 1, inputs), -32768, np.int16)
        x[:, 2] = extremes(rng, inputs)
        shape = weight.shape
        for rounding in ("reduced", "float32"):
            cases.append(convolution(isa, rounding, rng, x.shape, shape, x=x, weight=weight))
    weight = np.full((5, 5, 40, 16), 127, np.int16)
    x = np.full((1, 6, 6, 40), 32767, np.int16)
    cases.append(convolution(isa, "once", rng, x.shape, weight.shape, x=x, weight=weight, padding=(2, 2, 2, 2)))
    check(cases)


def test_steps_that_32_bits_hold():
    weight = np.full((1, 1, 512, 2), 128)
    assert safe_steps(weight[:, :, :511], 2, 32768) is None
    steps = safe_steps(weight, 2, 32768)
    assert steps is not None
    assert steps * 2 * 32768 * 128 < 2**31 <= (steps + 1) * 2 * 32768 * 128
