"""The generic convolution equals its oracle bit for bit, for any window, group count and thread count."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import tvm
from kernel_runner import Case, Compiled, baseline_target, check

from octavo import numerics
from octavo.compiler.backends.cpu.kernels import Conv2dSpec
from octavo.compiler.backends.cpu.kernels.conv.generic.conv2d import conv2d_generic
from octavo.ir.composites.outputs import Output

OUTPUTS = itertools.cycle((Output(zero_point=0), Output(zero_point=255, qmin=1), Output(zero_point=128, qmin=120, qmax=250)))
ZERO_POINTS = itertools.cycle((0, 255, 131))
WEIGHT_ZERO_POINTS = itertools.cycle(("none", "tensor", "axis"))


def spec(
    size: tuple[int, int],
    channels: tuple[int, int],
    kernel: tuple[int, int] = (1, 1),
    *,
    batch: int = 1,
    threads: int = 1,
    **window: object,
) -> Conv2dSpec:
    return Conv2dSpec(
        batch=batch,
        in_height=size[0],
        in_width=size[1],
        in_channels=channels[0],
        out_channels=channels[1],
        kernel=kernel,
        input_zero_point=next(ZERO_POINTS),
        output=next(OUTPUTS),
        threads=threads,
        **window,
    )


def case(rng: np.random.Generator, given: Conv2dSpec) -> Case:
    x = rng.integers(0, 256, (given.batch, given.in_height, given.in_width, given.in_channels)).astype(np.uint8)
    w = rng.integers(-128, 128, (*given.kernel, given.in_channels // given.groups, given.out_channels)).astype(np.int8)
    w_zero_point = {
        "none": 0,
        "tensor": int(rng.integers(-128, 128)),
        "axis": rng.integers(-128, 128, given.out_channels).astype(np.int32),
    }[next(WEIGHT_ZERO_POINTS)]
    bias = rng.integers(-5000, 5000, given.out_channels).astype(np.int32)
    # Sums spread over the output's range, with ties among them.
    taps = given.kernel[0] * given.kernel[1] * w.shape[2]
    multiplier = (rng.choice([0.5, 0.75, 1.1, 1.0], given.out_channels) / 2 ** np.ceil(np.log2(60 * taps**0.5))).astype(
        np.float32
    )
    kernel = conv2d_generic(given, weight=w, weight_zero_point=w_zero_point, bias=bias, multiplier=multiplier)
    expected = numerics.conv2d(
        x,
        w,
        x_zero_point=given.input_zero_point,
        w_zero_point=w_zero_point,
        bias=bias,
        multiplier=multiplier,
        zero_point=given.output.zero_point,
        qmin=given.output.qmin,
        qmax=given.output.qmax,
        window=numerics.Window(strides=given.strides, padding=given.padding, dilation=given.dilation),
        groups=given.groups,
    )
    assert expected.shape == (given.batch, given.out_height, given.out_width, given.out_channels)
    return Case(kernel=kernel, inputs=(x,), expected=expected, about=given)


def channel_specs() -> Iterator[Conv2dSpec]:
    for number, c in enumerate((1, 3, 15, 16, 33, 64)):
        yield spec((3, 5), (c, 18 - c % 3)) if number % 2 else spec((2, 4), (7, c), (2, 3), padding=(0, 1, 1, 1))
        yield spec((4, 5), (c, c), (3, 3), padding=(1, 1, 1, 1), groups=c)


WINDOWS = (  # size, kernel, more
    ((7, 9), (3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ((8, 8), (3, 3), {"padding": (0, 0, 1, 1), "strides": (2, 2)}),
    ((10, 13), (3, 3), {"padding": (2, 0, 1, 1), "strides": (3, 3)}),
    ((6, 11), (1, 7), {"padding": (0, 3, 0, 3)}),
    ((9, 4), (5, 1), {"padding": (4, 0, 1, 2), "strides": (3, 1)}),
    ((9, 10), (3, 3), {"padding": (2, 2, 2, 2), "dilation": (2, 3)}),
    ((9, 14), (3, 3), {"dilation": (1, 3), "strides": (1, 2)}),
    ((2, 2), (5, 5), {"padding": (2, 2, 2, 2)}),  # no window inside the image
    ((5, 5), (2, 2), {"padding": (3, 3, 3, 3), "strides": (2, 2)}),  # windows outside of it
    ((5, 5), (1, 1), {"padding": (1, 2, 0, 1)}),
    ((6, 7), (1, 1), {"strides": (2, 3)}),
    ((4, 4), (4, 4), {"batch": 3}),
    ((1, 1), (1, 1), {}),
)


def window_specs() -> Iterator[Conv2dSpec]:
    """Each window once with one group or several, and once by channel, of one result or several for a channel."""
    for first, (channels, groups) in enumerate((((3, 16), 1), ((6, 4), 2), ((17, 17), 17), ((4, 12), 4))):
        for size, kernel, window in WINDOWS[first % 2 :: 2]:
            yield spec(size, channels, kernel, groups=groups, **window)


def test_channels(rng: np.random.Generator) -> None:
    check(case(rng, given) for given in channel_specs())


def test_windows(rng: np.random.Generator) -> None:
    check(case(rng, given) for given in window_specs())


def test_threads(rng: np.random.Generator) -> None:
    given = [
        spec((17, 15), (8, 24), (3, 3), padding=(1, 1, 1, 1)),
        spec((16, 16), (40, 40), (3, 3), padding=(1, 1, 1, 1), groups=40, batch=2),
        spec((1, 1), (300, 170)),  # a dense layer: the threads share the channels
        spec((1, 1), (2048, 64), groups=2),
    ]
    check(case(rng, dataclasses.replace(each, threads=2)) for each in given)


def test_same_bits_without_fused_multiply_add(rng: np.random.Generator) -> None:
    check((case(rng, given) for given in itertools.islice(window_specs(), 0, None, 4)), baseline_target())


def test_weights_stay_int8_where_they_fit() -> None:
    given = spec((2, 2), (2, 3))
    w = np.full((1, 1, 2, 3), 100, np.int8)
    plain = {"bias": np.zeros(3, np.int32), "multiplier": np.ones(3, np.float32)}
    assert conv2d_generic(given, weight=w, weight_zero_point=0, **plain).constants[0].dtype == np.int8
    assert conv2d_generic(given, weight=w, weight_zero_point=-100, **plain).constants[0].dtype == np.int16


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
        {"kind": "llvm", "mtriple": "riscv64-linux-gnu"},
        {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"},
    ],
)
def test_compiles_for_other_cpus(rng: np.random.Generator, config: dict[str, str]) -> None:
    func = case(rng, spec((5, 5), (3, 17), (3, 3), padding=(1, 1, 1, 1))).kernel.func
    target = tvm.target.Target(config)
    assert Compiled({"kernel": func}, target).code.inspect_source("asm")
