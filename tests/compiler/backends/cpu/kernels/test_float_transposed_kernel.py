"""Transposed convolutions of floats that hold whole numbers, whose sums are exact: equal to those of integers, phase by phase."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from kernel_runner import EACH_ISA, Case, check, part

from octavo.compiler.backends.cpu.kernels import FloatConv2dTransposeSpec, float_conv2d_transpose
from octavo.compiler.backends.cpu.kernels.conv.float_conv2d_transpose import transposed_obstacle
from octavo.numerics import Window, conv2d_transpose_accumulate

Pair = tuple[int, int]


def spec_of(
    kernel: Pair,
    strides: Pair,
    padding: Pair,
    *,
    extra: Pair = (0, 0),
    dilation: Pair = (1, 1),
    channels: tuple[int, int, int] = (3, 17, 1),
    adds: bool = False,
    threads: int = 1,
    size: tuple[int, int, int] = (2, 5, 7),
) -> FloatConv2dTransposeSpec:
    batch, height, width = size
    reach = [stride * (extent - 1) + 1 for extent, stride in zip((height, width), strides, strict=True)]
    outs = [r + (k - 1) * d - 2 * p + e for r, k, d, p, e in zip(reach, kernel, dilation, padding, extra, strict=True)]
    return FloatConv2dTransposeSpec(
        batch=batch,
        in_height=height,
        in_width=width,
        in_channels=channels[0],
        out_height=outs[0],
        out_width=outs[1],
        out_channels=channels[1],
        kernel=kernel,
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=channels[2],
        adds=adds,
        low=-20.0,
        high=30.0,
        threads=threads,
    )


def case(isa: str, spec: FloatConv2dTransposeSpec, extra: Pair) -> Case:
    rng = np.random.default_rng(sum(spec.kernel) + spec.in_channels)
    x = rng.integers(-4, 5, (spec.batch, spec.in_height, spec.in_width, spec.in_channels), np.int8)
    w = rng.integers(-4, 5, (*spec.kernel, spec.in_channels // spec.groups, spec.out_channels), np.int8)
    bias = rng.integers(-9, 9, spec.out_channels, np.int32)
    expected = conv2d_transpose_accumulate(
        x,
        w,
        x_zero_point=0,
        bias=bias,
        window=Window(strides=spec.strides, padding=(*spec.padding, *spec.padding), dilation=spec.dilation),
        output_padding=extra,
        groups=spec.groups,
    )
    inputs = [x.astype(np.float32)]
    if spec.adds:
        inputs.append(rng.integers(-9, 9, expected.shape).astype(np.float32))
        expected = expected + inputs[1]
    kernel = float_conv2d_transpose(spec, weight=w.astype(np.float32), bias=bias.astype(np.float32), isa=isa)
    return Case(kernel=kernel, inputs=tuple(inputs), expected=np.clip(expected, -20, 30).astype(np.float32), about=spec)


@pytest.mark.parametrize("isa", EACH_ISA)
def test_whole_numbers(isa: str) -> None:
    shapes = [((2, 2), (2, 2), (0, 0)), ((3, 3), (2, 2), (1, 1)), ((4, 5), (2, 3), (1, 2)), ((4, 2), (2, 2), (3, 1))]
    channels = itertools.cycle([(3, 17, 1), (6, 4, 2)])
    work = [(spec_of(*each, extra=(each[1][0] - 1, 0), channels=next(channels)), (each[1][0] - 1, 0)) for each in shapes]
    work.append((spec_of((3, 3), (2, 2), (2, 1), dilation=(3, 1), channels=(5, 33, 1)), (0, 0)))
    work.append((spec_of((4, 4), (2, 2), (1, 1), channels=(16, 40, 1), adds=True, threads=2, size=(1, 9, 16)), (0, 0)))
    work.append((spec_of((4, 4), (2, 2), (1, 1), channels=(8, 8, 8), adds=True), (0, 0)))
    # All of them hold such weights.
    dtypes = itertools.cycle(["float32", "bfloat16", "float32", "float16"])
    work = [(replace(spec, weight_dtype=next(dtypes)), extra) for spec, extra in work]
    check(case(isa, *each) for each in part(work, isa))


def test_what_no_kernel_is_written_for() -> None:
    assert "no tap reaches" in transposed_obstacle(spec_of((1, 1), (2, 2), (0, 0)))
    assert "no tap reaches" in transposed_obstacle(spec_of((3, 3), (2, 2), (0, 0), dilation=(2, 2)))
    assert transposed_obstacle(spec_of((2, 2), (2, 2), (1, 0))) == ""
